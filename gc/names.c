/*
 * names: the names of dynamic symbols in a marking that makes all survivors old; included by gc.c.
 *
 * Job: the table of names keeps each name alive, and a symbol its name. So that both die in one collection,
 * the table is marked last (symbol_names.c).
 *
 * Entry points: rb_gc_names_late, rb_gc_names_now.
 *
 * Who writes this memory after a fork: nobody: it happens before the fork.
 */

/* While all survivors of a marking shall become old: the table of the names of
 * dynamic symbols, which is then gone through at the end. Else 0. */
static VALUE names_marked_late;

void
rb_gc_names_late(void)
{
    names_marked_late = rb_sym_dynamic_names();
}

/* +live_p+ says whether an object was marked; +objspace+ is its first argument. */
void
rb_gc_names_now(bool (*live_p)(void *objspace, VALUE obj), void *objspace)
{
    names_marked_late = 0;
    rb_sym_settle_dynamic_names(live_p, objspace);
}

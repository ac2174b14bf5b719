/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * late_names: the names of dynamic symbols in a marking that makes all survivors old; included by gc.c.
 *
 * Job: a table keeps the name of a dynamic symbol alive until the symbol is freed, so a name dies one
 * collection after its symbol: in a page that is sealed by then. Such a marking therefore marks the table
 * last, without the names of dead symbols (symbol_names.c), and both die in one collection.
 *
 * Entry points: rb_gc_names_late, rb_gc_names_now.
 *
 * Who writes this memory after a fork: nobody. The marking takes place before the fork.
 */

/* The table of the names of dynamic symbols during a marking that makes all survivors old; 0 at other
 * times. */
static VALUE names_marked_late;

/* Called at the beginning of such a marking: the table is left out of the roots. */
void
rb_gc_names_late(void)
{
    names_marked_late = rb_sym_dynamic_names();
}

/* Called towards the end of such a marking: marks the names of live symbols. +live_p+ says whether an object
 * was marked; +objspace+ is its first argument. */
void
rb_gc_names_now(bool (*live_p)(void *objspace, VALUE obj), void *objspace)
{
    names_marked_late = 0;
    rb_sym_settle_dynamic_names(live_p, objspace);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * symbol_names: takes the names of dead dynamic symbols out of the symbol tables; included by symbol.c.
 *
 * Job: see late_names.c, which calls it.
 *
 * Entry points: rb_sym_dynamic_names, rb_sym_settle_dynamic_names.
 *
 * Who writes this memory after a fork: nobody. It happens before the fork.
 */

/* Gives the table of the names of dynamic symbols. No other table of the VM keeps these names alive. */
VALUE
rb_sym_dynamic_names(void)
{
    return ruby_global_symbols.dsymbol_fstr_hash;
}

/* What settle_dynamic_name needs. */
struct dynamic_names {
    bool (*live_p)(void *data, VALUE obj);
    void *data;
    rb_symbols_t *symbols;
};

/* Deletes one name of the table if its symbol is dead; else marks it. */
static int
settle_dynamic_name(st_data_t str, st_data_t val, st_data_t data)
{
    const struct dynamic_names *names = (const struct dynamic_names *)data;
    st_data_t sym;

    if (st_lookup(names->symbols->str_sym, str, &sym) && DYNAMIC_SYM_P((VALUE)sym) &&
            RSYMBOL((VALUE)sym)->fstr == (VALUE)str && !names->live_p(names->data, (VALUE)sym)) {
        RSYMBOL((VALUE)sym)->fstr = 0;
        st_delete(names->symbols->str_sym, &str, NULL);
        return ST_DELETE;
    }
    rb_gc_mark((VALUE)str);
    return ST_CONTINUE;
}

/* Called towards the end of a marking that did not mark the table of rb_sym_dynamic_names. Takes the names of
 * symbols that are dead by +live_p+ out of the tables, so that a symbol and its name die in one collection,
 * and marks all other names. */
void
rb_sym_settle_dynamic_names(bool (*live_p)(void *data, VALUE obj), void *data)
{
    struct dynamic_names names = { live_p, data, &ruby_global_symbols };

    rb_hash_stlike_foreach(names.symbols->dsymbol_fstr_hash, settle_dynamic_name, (st_data_t)&names);
}

/*
 * symbol_names: takes the names of dead dynamic symbols out of the tables; included by symbol.c.
 *
 * Entry points: rb_sym_dynamic_names, rb_sym_settle_dynamic_names.
 *
 * Who writes this memory after a fork: nobody: it happens before the fork.
 */

/* The names of dynamic symbols; nothing else of ours keeps them. */
VALUE
rb_sym_dynamic_names(void)
{
    return ruby_global_symbols.dsymbol_fstr_hash;
}

struct dynamic_names {
    bool (*live_p)(void *data, VALUE obj);
    void *data;
    rb_symbols_t *symbols;
};

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

/* Towards the end of a marking that has not gone by rb_sym_dynamic_names: of the
 * symbols of which +live_p+ does not say that they live takes the names out of the
 * tables, so that a symbol and its name die in one collection, and marks all others. */
void
rb_sym_settle_dynamic_names(bool (*live_p)(void *data, VALUE obj), void *data)
{
    struct dynamic_names names = { live_p, data, &ruby_global_symbols };

    rb_hash_stlike_foreach(names.symbols->dsymbol_fstr_hash, settle_dynamic_name, (st_data_t)&names);
}

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_YOUNG_TABLES_H
#define COW_YOUNG_TABLES_H

/*
 * young_tables: tables of the VM that grow while a program runs, in two parts after a fork.
 *
 * Job: a forked child adds entries to tables that its parent has filled: method caches of classes, interned
 * strings, inline caches of constants. Entries go to random places of a table, so a child would soon copy all
 * of it; and a table that must grow is copied whole. Here what a child adds goes to a young table of its own.
 * Whoever looks something up, deletes, marks or walks looks at both parts. When the child seals its own heap
 * it merges them, because from then on its children share what it has.
 *
 *     table                        part of the parent                part of the child
 *     interned strings             rb_young_tables.inherited_fstrings      vm->frozen_strings
 *     inline caches by constant    rb_young_tables.inherited_constants     vm->constant_cache
 *     call caches of a class       RCLASS_CC_TBL                     cow_young_class(klass)->cc_tbl
 *     callable methods of a class  RCLASS_CALLABLE_M_TBL             cow_young_class(klass)->callable_m_tbl
 *
 * An inherited struct rb_class_cc_entries is never extended. A call with other arguments makes a second one
 * for the same method, in the child's part. So each plain call cache is in one of the two tables of its
 * class, and an invalidation looks at both (doc/call-caches.md, notes 1 and 5).
 *
 * Where a child forks again before it seals, its children go on in its young tables.
 *
 * Entry points: rb_young_tables_prefork, rb_young_tables_postfork_child, rb_young_tables_merge;
 * cow_young_class, cow_young_cc_tbl, cow_young_callable_m_tbl, rb_young_cc_tbl_to_write,
 * rb_young_callable_m_tbl_to_write, rb_young_class_free; rb_young_tables_update_references,
 * rb_young_tables_free; rb_young_inherited_constant_p.
 *
 * All but rb_young_tables_prefork need the VM lock, or that the other Ractors are stopped.
 *
 * Who writes this memory after a fork: a child writes its young tables, and the parent's part only if it
 * deletes an entry there.
 */

#include "id_table.h"
#include "ruby/st.h"

struct cow_young_class {
    struct rb_id_table *cc_tbl, *callable_m_tbl; /* NULL: empty */
    /* A list of all, while a collection that has moved objects enters them anew. */
    VALUE klass;
    struct cow_young_class *next;
};

struct cow_young_tables {
    st_table *classes; /* of an inherited class: struct cow_young_class *; NULL: none */
    st_table *inherited_fstrings; /* NULL: they are not in two parts */
    struct rb_id_table *inherited_constants; /* likewise */
    st_table *next_fstrings; /* empty, for the next child; NULL: it needs none */
    struct rb_id_table *next_constants; /* likewise */
};

extern struct cow_young_tables rb_young_tables;

void rb_young_tables_prefork(void);
void rb_young_tables_postfork_child(void);
void rb_young_tables_merge(void);
void rb_young_tables_update_references(void);
void rb_young_tables_free(void);
bool rb_young_inherited_constant_p(ID id, const void *cache);
void rb_young_class_free(VALUE klass);
struct rb_id_table **rb_young_cc_tbl_to_write(VALUE klass);
struct rb_id_table **rb_young_callable_m_tbl_to_write(VALUE klass);

/* Gives the child's part of the tables of a class; NULL: it has none. */
static inline struct cow_young_class *
cow_young_class(VALUE klass)
{
    st_data_t found;

    if (rb_young_tables.classes == NULL || !st_lookup(rb_young_tables.classes, klass, &found)) return NULL;
    return (struct cow_young_class *)found;
}

/* Gives the child's table of call caches of a class; NULL: it has none. */
static inline struct rb_id_table *
cow_young_cc_tbl(VALUE klass)
{
    const struct cow_young_class *young = cow_young_class(klass);

    return young ? young->cc_tbl : NULL;
}

/* Gives the child's table of callable methods of a class; NULL: it has none. */
static inline struct rb_id_table *
cow_young_callable_m_tbl(VALUE klass)
{
    const struct cow_young_class *young = cow_young_class(klass);

    return young ? young->callable_m_tbl : NULL;
}

#endif /* COW_YOUNG_TABLES_H */

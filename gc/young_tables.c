/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * young_tables: the parts of young_tables.h that are not inlined; included by vm.c.
 */

#include "young_tables.h"

struct cow_young_tables rb_young_tables;

#if VM_CHECK_MODE > 0
/* For tests: every class has a young part from the start (COWRUBY_YOUNG_CLASSES=all). */
static bool
cow_young_classes_all(void)
{
    static int all = -1;

    if (all < 0) {
        const char *env = getenv("COWRUBY_YOUNG_CLASSES");

        all = env && strcmp(env, "all") == 0;
    }
    return all;
}
#else
# define cow_young_classes_all() false
#endif

/* Gives the young part of a class, which it gets if it is inherited; NULL: it is not. */
static struct cow_young_class *
cow_young_class_to_write(VALUE klass)
{
    if (!rb_gc_obj_inherited_p(klass) && !cow_young_classes_all()) return NULL;
    struct cow_young_class *young = cow_young_class(klass);

    if (young == NULL) {
        young = ZALLOC(struct cow_young_class);
        if (rb_young_tables.classes == NULL) rb_young_tables.classes = st_init_numtable();
        st_insert(rb_young_tables.classes, klass, (st_data_t)young);
    }
    return young;
}

/* Gives where the table of call caches of a class is to which this process adds. The table may be NULL. */
struct rb_id_table **
rb_young_cc_tbl_to_write(VALUE klass)
{
    struct cow_young_class *young = cow_young_class_to_write(klass);

    return young ? &young->cc_tbl : &RCLASS_CC_TBL(klass);
}

/* The same for callable methods. */
struct rb_id_table **
rb_young_callable_m_tbl_to_write(VALUE klass)
{
    struct cow_young_class *young = cow_young_class_to_write(klass);

    return young ? &young->callable_m_tbl : &RCLASS_CALLABLE_M_TBL(klass);
}

/* Called when a class is freed, when the contents of its young tables are no longer needed. */
void
rb_young_class_free(VALUE klass)
{
    struct cow_young_class *young = cow_young_class(klass);
    st_data_t key = klass;

    if (young == NULL) return;
    st_delete(rb_young_tables.classes, &key, NULL);
    if (young->cc_tbl) rb_id_table_free(young->cc_tbl);
    if (young->callable_m_tbl) rb_id_table_free(young->callable_m_tbl);
    xfree(young);
}

/* Before a fork: makes the empty tables that the child will take. Takes the VM lock, because Ractors may fork
 * at once. Raises NoMemoryError, which a child could not: it would be left between two states. */
void
rb_young_tables_prefork(void)
{
    RB_VM_LOCK();
    if (rb_young_tables.inherited_fstrings == NULL && rb_young_tables.next_fstrings == NULL)
        rb_young_tables.next_fstrings = st_init_table(GET_VM()->frozen_strings->type);
    if (rb_young_tables.inherited_constants == NULL && rb_young_tables.next_constants == NULL)
        rb_young_tables.next_constants = rb_id_table_create(0);
    RB_VM_UNLOCK();
}

/* In a child, before it runs any Ruby. Where another Ractor has merged the tables since they were looked at,
 * there is no empty one, and they stay in one part. */
void
rb_young_tables_postfork_child(void)
{
    rb_vm_t *vm = GET_VM();

    if (rb_young_tables.inherited_fstrings == NULL && rb_young_tables.next_fstrings != NULL) {
        rb_young_tables.inherited_fstrings = vm->frozen_strings;
        vm->frozen_strings = rb_young_tables.next_fstrings;
        rb_young_tables.next_fstrings = NULL;
    }
    if (rb_young_tables.inherited_constants == NULL && rb_young_tables.next_constants != NULL) {
        rb_young_tables.inherited_constants = vm->constant_cache;
        vm->constant_cache = rb_young_tables.next_constants;
        rb_young_tables.next_constants = NULL;
    }
}

/* Gives the inherited interned string with the contents of +str+; 0: there is none. */
VALUE
rb_vm_inherited_fstring(VALUE str)
{
    st_data_t key = str, found;

    if (rb_young_tables.inherited_fstrings == NULL) return 0;
    if (!st_lookup(rb_young_tables.inherited_fstrings, key, &found)) return 0;
    if (!rb_objspace_garbage_object_p(found)) return found;

    /* It is dead. Its sweep must not delete the string that takes its place. */
    FL_UNSET(found, RSTRING_FSTR);
    st_delete(rb_young_tables.inherited_fstrings, &key, NULL);
    return 0;
}

/* Called when an interned string is freed. No contents are in both parts. */
void
rb_vm_fstring_delete(VALUE str)
{
    st_data_t key = str;

    if (st_delete(GET_VM()->frozen_strings, &key, NULL) || rb_young_tables.inherited_fstrings == NULL) return;
    st_delete(rb_young_tables.inherited_fstrings, &key, NULL);
}

/* What is merged leaves the child's part at once, so that nothing is in both parts if there is no memory for
 * the rest. */
static int
cow_young_merge_entry(st_data_t key, st_data_t value, st_data_t inherited)
{
    st_insert((st_table *)inherited, key, value);
    return ST_DELETE;
}

static enum rb_id_table_iterator_result
cow_young_merge_constant(ID id, VALUE caches, void *inherited)
{
    VALUE found;

    if (rb_id_table_lookup(inherited, id, &found)) {
        st_foreach((st_table *)caches, cow_young_merge_entry, (st_data_t)found);
        st_free_table((st_table *)caches);
    }
    else {
        rb_id_table_insert(inherited, id, caches);
    }
    return ID_TABLE_DELETE;
}

static enum rb_id_table_iterator_result
cow_young_merge_method(ID id, VALUE method, void *inherited)
{
    rb_id_table_insert(inherited, id, method);
    return ID_TABLE_DELETE;
}

/* The call caches of one method: into those that the class has, or as they are. */
static enum rb_id_table_iterator_result
cow_young_merge_ccs(ID id, VALUE young, void *inherited)
{
    struct rb_class_cc_entries *from = (struct rb_class_cc_entries *)young, *to;
    VALUE found;

    if (METHOD_ENTRY_INVALIDATED(from->cme)) {
        rb_vm_ccs_free(from);
    }
    else if (!rb_id_table_lookup(inherited, id, &found)) {
        rb_id_table_insert(inherited, id, young);
    }
    else if ((to = (struct rb_class_cc_entries *)found)->cme != from->cme) {
        VM_ASSERT(METHOD_ENTRY_INVALIDATED(to->cme));
        rb_id_table_insert(inherited, id, young);
        rb_vm_ccs_free(to);
    }
    else if (from->len > 0) {
        SIZED_REALLOC_N(to->entries, struct rb_class_cc_entries_entry, to->len + from->len, to->capa);
        MEMCPY(to->entries + to->len, from->entries, struct rb_class_cc_entries_entry, from->len);
        to->len = to->capa = to->len + from->len;
        ruby_xfree(from->entries);
        ruby_xfree(from);
    }
    else {
        ruby_xfree(from);
    }
    return ID_TABLE_DELETE;
}

/* Merges a table of a class, or takes the child's where the class has none. */
static void
cow_young_merge_table(struct rb_id_table **to, struct rb_id_table **from,
                      enum rb_id_table_iterator_result (*merge)(ID, VALUE, void *))
{
    if (*from == NULL) return;
    if (*to == NULL) {
        *to = *from;
    }
    else {
        rb_id_table_foreach(*from, merge, *to);
        rb_id_table_free(*from);
    }
    *from = NULL;
}

static int
cow_young_merge_class(st_data_t klass, st_data_t value, st_data_t ignored)
{
    struct cow_young_class *young = (struct cow_young_class *)value;

    if (rb_objspace_garbage_object_p(klass)) return ST_CONTINUE; /* the sweep frees them */
    cow_young_merge_table(&RCLASS_CC_TBL(klass), &young->cc_tbl, cow_young_merge_ccs);
    cow_young_merge_table(&RCLASS_CALLABLE_M_TBL(klass), &young->callable_m_tbl, cow_young_merge_method);
    ruby_xfree(young);
    return ST_DELETE;
}

static VALUE
cow_young_merge(VALUE ignored)
{
    rb_vm_t *vm = GET_VM();

    if (rb_young_tables.inherited_fstrings) {
        st_table *young = vm->frozen_strings;

        st_foreach(young, cow_young_merge_entry, (st_data_t)rb_young_tables.inherited_fstrings);
        vm->frozen_strings = rb_young_tables.inherited_fstrings;
        rb_young_tables.inherited_fstrings = NULL;
        st_free_table(young);
    }
    if (rb_young_tables.inherited_constants) {
        struct rb_id_table *young = vm->constant_cache;

        rb_id_table_foreach(young, cow_young_merge_constant, rb_young_tables.inherited_constants);
        vm->constant_cache = rb_young_tables.inherited_constants;
        rb_young_tables.inherited_constants = NULL;
        rb_id_table_free(young);
    }
    if (rb_young_tables.classes) st_foreach(rb_young_tables.classes, cow_young_merge_class, 0);
    return Qnil;
}

static VALUE
cow_young_allow_gc(VALUE disabled)
{
    if (disabled == Qfalse) rb_gc_enable();
    return Qnil;
}

/* Makes one of the two parts again. Called before this process seals its heap, with the VM lock, and not in a
 * collection. Raises NoMemoryError; the tables are in order then. */
void
rb_young_tables_merge(void)
{
    /* A collection could free the class whose tables are being merged. */
    if (rb_young_tables.inherited_fstrings || rb_young_tables.inherited_constants || rb_young_tables.classes)
        rb_ensure(cow_young_merge, Qnil, cow_young_allow_gc, rb_gc_disable_no_rest());
}

/* At the end of the process, when its memory is freed: after the classes. */
void
rb_young_tables_free(void)
{
    if (rb_young_tables.inherited_fstrings) st_free_table(rb_young_tables.inherited_fstrings);
    if (rb_young_tables.inherited_constants) rb_id_table_free(rb_young_tables.inherited_constants);
    if (rb_young_tables.next_fstrings) st_free_table(rb_young_tables.next_fstrings);
    if (rb_young_tables.next_constants) rb_id_table_free(rb_young_tables.next_constants);
    if (rb_young_tables.classes) st_free_table(rb_young_tables.classes);
    rb_young_tables = (struct cow_young_tables){ 0 };
}

/* Has the parent noted that +cache+ depends on the constant +id+? */
bool
rb_young_inherited_constant_p(ID id, const void *cache)
{
    VALUE caches;

    if (rb_young_tables.inherited_constants == NULL) return false;
    if (!rb_id_table_lookup(rb_young_tables.inherited_constants, id, &caches)) return false;
    return st_lookup((st_table *)caches, (st_data_t)cache, NULL);
}

static int
cow_young_list_class(st_data_t klass, st_data_t value, st_data_t arg)
{
    struct cow_young_class *young = (struct cow_young_class *)value, **first = (struct cow_young_class **)arg;

    young->klass = klass;
    young->next = *first;
    *first = young;
    return ST_CONTINUE;
}

static enum rb_id_table_iterator_result
cow_young_update_ccs(VALUE value, void *ignored)
{
    struct rb_class_cc_entries *ccs = (struct rb_class_cc_entries *)value;

    rb_gc_update_reference(&ccs->cme);
    for (int i = 0; i < ccs->len; i++) rb_gc_update_reference(&ccs->entries[i].cc);
    return ID_TABLE_CONTINUE;
}

static enum rb_id_table_iterator_result
cow_young_check_method(VALUE method, void *ignored)
{
    return rb_gc_location(method) != method ? ID_TABLE_REPLACE : ID_TABLE_CONTINUE;
}

static enum rb_id_table_iterator_result
cow_young_replace_method(VALUE *method, void *ignored, int existing)
{
    *method = rb_gc_location(*method);
    return ID_TABLE_CONTINUE;
}

/* After objects have moved: enters the young parts of classes under the new addresses of their classes, and
 * updates what they refer to. Needs no memory, which a collection could not ask for: the table has room for
 * as many entries as it had. */
void
rb_young_tables_update_references(void)
{
    struct cow_young_class *first = NULL;

    if (rb_young_tables.inherited_fstrings) rb_gc_update_tbl_refs(rb_young_tables.inherited_fstrings);
    if (rb_young_tables.classes == NULL || rb_young_tables.classes->num_entries == 0) return;

    st_foreach(rb_young_tables.classes, cow_young_list_class, (st_data_t)&first);
    st_clear(rb_young_tables.classes);
    for (struct cow_young_class *young = first; young; young = young->next) {
        st_insert(rb_young_tables.classes, rb_gc_location(young->klass), (st_data_t)young);
        if (young->cc_tbl) rb_id_table_foreach_values(young->cc_tbl, cow_young_update_ccs, NULL);
        if (young->callable_m_tbl)
            rb_id_table_foreach_values_with_replace(young->callable_m_tbl, cow_young_check_method,
                                                    cow_young_replace_method, NULL);
    }
}

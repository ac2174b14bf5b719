/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * census: says before a fork what the memory of this process holds; only in builds with COW_CENSUS. Included
 * by gc.c.
 *
 * Job: benchmark/pages compares the pages of a worker with those of its master; the census tells it which
 * structure of the VM a word belongs to. The file that COWRUBY_CENSUS names gets a line for each piece of
 * memory, with its address and its bytes in hexadecimal digits and the name of its kind, as in
 *
 *     7f31c8a04000 a0 T_CLASS
 *     55d0c1e3f2b0 40 method definition
 *
 * Pieces may lie within each other: the smaller one says more. What is not named belongs to extensions, to
 * the system's libraries or to YJIT; in a child's census also to the inherited part of tables that are in two
 * parts. Where malloc says how large a block is, pieces are as large as their blocks.
 *
 * Entry points: cow_census, before fork(2).
 *
 * Who writes this memory after a fork: nobody.
 */

#ifdef COW_CENSUS
#ifdef HAVE_MALLOC_USABLE_SIZE
# include <malloc.h>
#endif

/* As in id_table.c, which does not show it. */
struct cow_census_id_table {
    int capa, num, used;
    struct { int key, collision; VALUE value; } *items;
};

static void
cow_census_piece(FILE *out, const void *address, size_t size, const char *kind)
{
    if (address && size > 0) fprintf(out, "%lx %zx %s\n", (unsigned long)(uintptr_t)address, size, kind);
}

/* A block of malloc's, whose size malloc knows. +size+ is what the caller knows of it. */
static void
cow_census_block(FILE *out, const void *address, size_t size, const char *kind)
{
#ifdef HAVE_MALLOC_USABLE_SIZE
    if (address) size = malloc_usable_size((void *)address);
#endif
    cow_census_piece(out, address, size, kind);
}

static void
cow_census_st_table(FILE *out, const st_table *table, const char *kind)
{
    char text[100];

    if (table == NULL) return;
    snprintf(text, sizeof(text), "%s: st_table", kind);
    cow_census_block(out, table, sizeof(*table), text);
    snprintf(text, sizeof(text), "%s: bins", kind);
    cow_census_block(out, table->bins, 0, text);
    snprintf(text, sizeof(text), "%s: entries", kind);
    cow_census_block(out, table->entries, 0, text);
}

static void
cow_census_id_table(FILE *out, const struct rb_id_table *table, const char *kind)
{
    const struct cow_census_id_table *shown = (const void *)table;
    char text[100];

    if (table == NULL) return;
    snprintf(text, sizeof(text), "%s: rb_id_table", kind);
    cow_census_block(out, table, sizeof(*shown), text);
    snprintf(text, sizeof(text), "%s: items", kind);
    cow_census_block(out, shown->items, shown->capa * sizeof(*shown->items), text);
}

static enum rb_id_table_iterator_result
cow_census_ccs(VALUE value, void *out)
{
    const struct rb_class_cc_entries *ccs = (const void *)value;

    cow_census_block(out, ccs, sizeof(*ccs), "class: ccs");
    cow_census_block(out, ccs->entries, ccs->capa * sizeof(*ccs->entries), "class: entries of a ccs");
    return ID_TABLE_CONTINUE;
}

static void
cow_census_class(FILE *out, VALUE klass)
{
    if (!RCLASS_EXT(klass)) return;
    if (!RB_TYPE_P(klass, T_ICLASS) || RICLASS_OWNS_M_TBL_P(klass)) {
        cow_census_id_table(out, RCLASS_M_TBL(klass), "class: methods");
    }
    if (!RB_TYPE_P(klass, T_ICLASS)) {
        cow_census_id_table(out, RCLASS_CONST_TBL(klass), "class: constants");
        if (!rb_shape_obj_too_complex(klass))
            cow_census_block(out, RCLASS_IVPTR(klass), 0, "class: instance variables");
    }
    cow_census_id_table(out, RCLASS_CVC_TBL(klass), "class: class variable cache");
    cow_census_id_table(out, RCLASS_CALLABLE_M_TBL(klass), "class: callable methods");
    cow_census_id_table(out, RCLASS_CC_TBL(klass), "class: call caches");
    if (RCLASS_CC_TBL(klass)) rb_id_table_foreach_values(RCLASS_CC_TBL(klass), cow_census_ccs, out);
    if (FL_TEST_RAW(klass, RCLASS_SUPERCLASSES_INCLUDE_SELF))
        cow_census_block(out, RCLASS_SUPERCLASSES(klass), 0, "class: superclasses");
    for (struct rb_subclass_entry *entry = RCLASS_SUBCLASSES(klass); entry; entry = entry->next) {
        cow_census_block(out, entry, sizeof(*entry), "class: entry of a subclass");
    }
}

static void
cow_census_iseq(FILE *out, const rb_iseq_t *iseq)
{
    const struct rb_iseq_constant_body *body = ISEQ_BODY(iseq);

    if (body == NULL) return;
    cow_census_block(out, body, sizeof(*body), "iseq: body");
    cow_census_piece(out, iseq->jit, 2 * sizeof(VALUE), "iseq: words of the JIT");
    cow_census_piece(out, body->is_entries, ISEQ_IS_SIZE(body) * sizeof(union iseq_inline_storage_entry),
                     "iseq: inline storage");
    cow_census_piece(out, body->call_data, body->ci_size * sizeof(struct rb_call_data), "iseq: call data");
    cow_census_block(out, body->iseq_encoded, body->iseq_size * sizeof(VALUE), "iseq: bytecode");
    cow_census_block(out, body->insns_info.body, 0, "iseq: lines");
    cow_census_block(out, body->insns_info.positions, 0, "iseq: positions");
#if VM_INSN_INFO_TABLE_IMPL == 2
    cow_census_block(out, body->insns_info.succ_index_table, 0, "iseq: positions");
#endif
    cow_census_block(out, body->catch_table, 0, "iseq: catch table");
    cow_census_block(out, body->param.opt_table, 0, "iseq: optional parameters");
    cow_census_block(out, body->param.keyword, 0, "iseq: keyword parameters");
    cow_census_block(out, body->variable, 0, "iseq: rare values");
    cow_census_piece(out, body->local_table, body->local_table_size * sizeof(ID), "iseq: names of locals");
    if (ISEQ_MBITS_BUFLEN(body->iseq_size) > 1)
        cow_census_block(out, body->mark_bits.list, 0, "iseq: bits of references");
    for (unsigned int i = 0; body->is_entries && i < body->ic_size; i++) {
        const struct iseq_inline_constant_cache *cache = &ISEQ_IS_IC_ENTRY(body, i);

        cow_census_block(out, cache->segments, 0, "iseq: names of a constant");
    }
}

static void
cow_census_imemo(FILE *out, VALUE obj)
{
    switch (imemo_type(obj)) {
      case imemo_iseq:
        cow_census_iseq(out, (const rb_iseq_t *)obj);
        break;
      case imemo_ment:
        cow_census_block(out, ((const rb_method_entry_t *)obj)->def, 0, "method definition");
        break;
      case imemo_env:
        cow_census_block(out, ((const rb_env_t *)obj)->env, 0, "environment of a block");
        break;
      default:
        break;
    }
}

static void
cow_census_object(FILE *out, VALUE obj)
{
    char kind[200];

    if (RB_TYPE_P(obj, T_IMEMO)) {
        snprintf(kind, sizeof(kind), "imemo_%s", rb_imemo_name(imemo_type(obj)));
    }
    else {
        snprintf(kind, sizeof(kind), "%s", obj_type_name(obj));
    }
    cow_census_piece(out, (const void *)obj, rb_gc_obj_slot_size(obj), kind);

    switch (BUILTIN_TYPE(obj)) {
      case T_CLASS:
      case T_MODULE:
      case T_ICLASS:
        cow_census_class(out, obj);
        break;
      case T_IMEMO:
        cow_census_imemo(out, obj);
        break;
      case T_STRING:
        if (!STR_EMBED_P(obj) && !FL_TEST_RAW(obj, STR_SHARED | STR_NOFREE)) {
            cow_census_block(out, RSTRING(obj)->as.heap.ptr, 0, "string: bytes");
        }
        break;
      case T_ARRAY:
        if (!FL_TEST_RAW(obj, RARRAY_EMBED_FLAG) && !FL_TEST_RAW(obj, ELTS_SHARED)) {
            cow_census_block(out, RARRAY(obj)->as.heap.ptr, 0, "array: elements");
        }
        break;
      case T_OBJECT:
        if (rb_shape_obj_too_complex(obj))
            cow_census_st_table(out, ROBJECT_IV_HASH(obj), "object: instance variables");
        else if (!FL_TEST_RAW(obj, ROBJECT_EMBED))
            cow_census_block(out, ROBJECT(obj)->as.heap.ivptr, 0, "object: instance variables");
        break;
      case T_HASH:
        if (RHASH_ST_TABLE_P(obj)) {
            const st_table *table = RHASH_ST_TABLE(obj);

            cow_census_block(out, table->bins, 0, "hash: bins");
            cow_census_block(out, table->entries, 0, "hash: entries");
        }
        break;
      case T_STRUCT:
        if (!(RBASIC(obj)->flags & RSTRUCT_EMBED_LEN_MASK))
            cow_census_block(out, RSTRUCT(obj)->as.heap.ptr, 0, "struct: members");
        break;
      case T_REGEXP:
        if (RREGEXP_PTR(obj)) {
            cow_census_block(out, RREGEXP_PTR(obj), sizeof(regex_t), "regexp: regex_t");
            cow_census_block(out, RREGEXP_PTR(obj)->p, 0, "regexp: program");
        }
        break;
      case T_DATA:
        if (RTYPEDDATA_P(obj) && !RTYPEDDATA_EMBEDDED_P(obj)) {
            snprintf(kind, sizeof(kind), "data: %s", RTYPEDDATA_TYPE(obj)->wrap_struct_name);
            cow_census_piece(out, DATA_PTR(obj), 8, kind); /* it need not be malloc's */
        }
        break;
      default:
        break;
    }
}

static int
cow_census_run(void *start, void *end, size_t stride, void *out)
{
    for (VALUE obj = (VALUE)start; obj != (VALUE)end; obj += stride) {
        switch (BUILTIN_TYPE(obj)) {
          case T_NONE:
          case T_MOVED:
          case T_ZOMBIE:
            break;
          default:
            cow_census_object(out, obj);
        }
    }
    return 0;
}

static void
cow_census_vm(FILE *out)
{
    rb_vm_t *vm = GET_VM();
    rb_ractor_t *ractor;
    rb_thread_t *thread;

    cow_census_piece(out, vm, sizeof(*vm), "rb_vm_t");
    cow_census_piece(out, vm->global_cc_cache_table, sizeof(vm->global_cc_cache_table),
                     "rb_vm_t: call caches of C");
    cow_census_st_table(out, vm->frozen_strings, "table of fstrings");
    cow_census_st_table(out, vm->ci_table, "table of callinfos");
    cow_census_st_table(out, vm->overloaded_cme_table, "table of overloaded methods");
    cow_census_id_table(out, vm->constant_cache, "table of constant caches");
    cow_census_id_table(out, vm->negative_cme_table, "table of missing methods");
    ccan_list_for_each(&vm->ractor.set, ractor, vmlr_node) {
        cow_census_block(out, ractor, sizeof(*ractor), "rb_ractor_t");
        ccan_list_for_each(&ractor->threads.set, thread, lt_node) {
            cow_census_block(out, thread, sizeof(*thread), "rb_thread_t");
            cow_census_piece(out, thread->ec->vm_stack, thread->ec->vm_stack_size * sizeof(VALUE),
                             "VM stack");
        }
    }
}

static enum rb_id_table_iterator_result
cow_census_trackers(ID id, VALUE table, void *out)
{
    cow_census_st_table(out, (const st_table *)table, "caches of a constant");
    return ID_TABLE_CONTINUE;
}

/* Writes the census, once in a process. */
static void
cow_census(void)
{
    static rb_pid_t written;
    const char *path = getenv("COWRUBY_CENSUS");
    FILE *out;

    if (path == NULL || written == getpid()) return;
    written = getpid();
    if ((out = fopen(path, "w")) == NULL) {
        rb_warn("COWRUBY_CENSUS=%s cannot be written: %s", path, strerror(errno));
        return;
    }
    cow_census_vm(out);
    rb_id_table_foreach(GET_VM()->constant_cache, cow_census_trackers, out);
    rb_objspace_each_objects_alone(cow_census_run, out);
    if (ferror(out) | fclose(out)) rb_warn("COWRUBY_CENSUS=%s is not whole: %s", path, strerror(errno));
}
#else
# define cow_census() ((void)0)
#endif

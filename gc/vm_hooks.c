/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vm_hooks: what the collector must know of an object's type, and of the process; included by gc.c.
 *
 * Job: says whether an object owns anything outside its slot: if it does not, the sweep frees it without
 * reading it. Holds the entry points of the collector that need the VM's own headers.
 *
 * Entry points: rb_gc_obj_plain_p, rb_gc_obj_needs_cleanup; rb_objspace_each_objects_alone,
 * rb_objspace_each_free_slots; rb_gc_call_as_postponed_job, rb_gc_check_ints, rb_gc_current_thread;
 * rb_gc_try_before_seal, rb_gc_allocate_for_child.
 *
 * Who writes this memory after a fork: nobody; this file has no memory of its own.
 */

#include "iseq_jit.h"

/* Does the object need no cleanup when it dies? True only if its flags say so:
 * rb_gc_obj_free_vm_weak_references and rb_gc_obj_free would do nothing. */
bool
rb_gc_obj_plain_p(VALUE obj)
{
    const VALUE flags = RBASIC(obj)->flags;

    if (flags & (FL_EXIVAR | FL_FINALIZE)) return false;
    switch (flags & T_MASK) {
      case T_FLOAT:
      case T_RATIONAL:
      case T_COMPLEX:
        return true;
      case T_STRING:
        return !(flags & RSTRING_FSTR) && (!(flags & STR_NOEMBED) || flags & (STR_SHARED | STR_NOFREE));
      case T_ARRAY:
        return (flags & (RARRAY_EMBED_FLAG | ELTS_SHARED)) != 0;
      case T_OBJECT:
        return (flags & ROBJECT_EMBED) && !rb_shape_obj_too_complex(obj);
      case T_STRUCT:
        return (flags & RSTRUCT_EMBED_LEN_MASK) != 0;
      case T_BIGNUM:
        return (flags & BIGNUM_EMBED_FLAG) != 0;
      case T_HASH:
        return !(flags & RHASH_ST_TABLE_FLAG);
      case T_IMEMO:
        switch (imemo_type(obj)) {
          case imemo_callcache:
          case imemo_constcache:
          case imemo_cref:
          case imemo_ifunc:
          case imemo_memo:
          case imemo_svar:
          case imemo_throw_data:
            return true;
          default:
            return false;
        }
      default:
        return false;
    }
}

/* Called before an object comes to own something outside its slot, or when it does: memory, or an entry of a
 * table that must go with it (rb_gc_obj_plain_p). */
void
rb_gc_obj_needs_cleanup(VALUE obj)
{
    rb_gc_impl_obj_needs_cleanup(rb_gc_get_objspace(), obj);
}

/* As rb_objspace_each_objects, but no other Ractor runs meanwhile, so that the callback may read what objects
 * own. The callback must run no Ruby. Raises NoMemoryError if there is no memory, after it has let go of the
 * lock: beside Ractors an exception that leaves it ends the process. */
void
rb_objspace_each_objects_alone(int (*callback)(void *, void *, size_t, void *), void *data)
{
    rb_execution_context_t *const ec = GET_EC();
    const unsigned int level = rb_gc_vm_lock();
    enum ruby_tag_type state;

    rb_gc_vm_barrier();
    EC_PUSH_TAG(ec);
    if ((state = EC_EXEC_TAG()) == TAG_NONE) {
        rb_gc_impl_each_objects(rb_gc_get_objspace(), callback, data);
    }
    EC_POP_TAG();
    rb_gc_vm_unlock(level);
    if (state != TAG_NONE) EC_JUMP_TAG(ec, state);
}

/* Calls back with each run of free slots, as rb_objspace_each_objects does with runs of allocated ones.
 * Their contents are undefined, and another Ractor may claim them at any time, so the callback must not
 * read them. */
void
rb_objspace_each_free_slots(int (*callback)(void *, void *, size_t, void *), void *data)
{
    rb_gc_impl_each_free_slots(rb_gc_get_objspace(), callback, data);
}

/* Calls +func+ as a postponed job is called: signals wait, a wait for another thread is refused as in a
 * signal handler, and an exception ends here. */
void
rb_gc_call_as_postponed_job(void (*func)(void *), void *data)
{
    rb_execution_context_t *ec = GET_EC();
    const rb_atomic_t mask = POSTPONED_JOB_INTERRUPT_MASK | TRAP_INTERRUPT_MASK;
    const rb_atomic_t added = mask & ~ec->interrupt_mask;
    const VALUE errinfo = ec->errinfo;

    ec->errinfo = Qnil;
    ec->interrupt_mask |= added;
    EC_PUSH_TAG(ec);
    if (EC_EXEC_TAG() == TAG_NONE) func(data);
    EC_POP_TAG();
    ec->interrupt_mask &= ~added;
    ec->errinfo = errinfo;
}

/* Gives the thread that runs: an address that compaction does not change, while it may move Thread
 * objects. */
const void *
rb_gc_current_thread(void)
{
    return GET_THREAD();
}

/* See iseq_jit.h. */
uint16_t *rb_iseq_jit_calls;
uint16_t rb_iseq_jit_call_table[COW_ISEQ_JIT_TABLE];

/* The number of forks between the process that started the interpreter and this one. */
unsigned int rb_gc_fork_depth;

/* Runs handlers of signals, and what else waits for the thread. Unlike rb_thread_check_ints it is no blocking
 * call, which would raise what Thread.handle_interrupt puts off until one. */
void
rb_gc_check_ints(void)
{
    RUBY_VM_CHECK_INTS(GET_EC());
}

/* Called before a fork, when the heap is sealed: allocates what the child will need. That may collect, so the
 * finalizers of what has died run after it. */
void
rb_gc_allocate_for_child(void)
{
#ifdef COW_YOUNG_TABLES_H
    rb_young_tables_prefork();
#endif
}

static VALUE
cow_before_seal(VALUE unused)
{
#ifdef COW_YOUNG_TABLES_H
    rb_young_tables_merge();
#endif
#ifdef RB_YJIT_FORKS
    if (rb_yjit_enabled_p && !rb_yjit_before_seal()) rb_memerror();
#endif
    return Qnil;
}

/* Called before this process seals its heap, with the VM lock, and not in a collection; it may begin one.
 * Gives false if there is no memory: what has two parts keeps them. */
bool
rb_gc_try_before_seal(void)
{
    rb_execution_context_t *const ec = GET_EC();
    const VALUE error = ec->errinfo;
    int state;

    rb_protect(cow_before_seal, Qnil, &state);
    if (state == 0) return true;
    rb_ec_raised_reset(ec, RAISED_NOMEMORY);
    ec->errinfo = error;
    return false;
}

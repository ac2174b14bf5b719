/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_MARK_PUSH_H
#define COW_MARK_PUSH_H

/*
 * mark_push: pushing on the mark stack, and the check when an object is popped.
 *
 * Entry points: push_mark_stack, which replaces upstream's and reads no object; cow_mark_stack_check, when
 * the object is about to be read anyway; cow_mark_stack_trim_cache.
 *
 * Who writes this memory after a fork: a process that marks writes its own mark stack (mark_stack.h).
 */

/* Gives cached chunks back to the system, but COW_MARK_STACK_KEPT_CHUNKS; at the end of a marking in a
 * process that shares its memory. */
static void
cow_mark_stack_trim_cache(mark_stack_t *stack)
{
    while (stack->cache_size > COW_MARK_STACK_KEPT_CHUNKS) {
        stack_chunk_t *chunk = stack->cache;

        stack->cache = chunk->next;
        stack->cache_size--;
        cow_mark_stack_free_chunk(chunk, sizeof(stack_chunk_t));
    }
    stack->unused_cache_size = stack->cache_size;
}

/* Pushes an object, without reading it; upstream's name. */
static void
push_mark_stack(mark_stack_t *stack, VALUE obj)
{
    if (stack->index == stack->limit) {
        push_mark_stack_chunk(stack);
    }
    stack->chunk->data[stack->index++] = obj;
}

/* Stops the process if what was marked is no object. Called when the object is about to be read anyway, not
 * when it is pushed. */
static inline void
cow_mark_stack_check(VALUE obj)
{
    const uint32_t no_objects = 1u << T_NONE | 1u << T_NIL | 1u << T_FIXNUM | 1u << T_MOVED | 1u << T_ZOMBIE |
                                1u << T_UNDEF | 1u << T_MASK | 1u << T_NODE;

    if (RB_LIKELY(!(no_objects >> BUILTIN_TYPE(obj) & 1))) return;
    rb_obj_info_dump(obj);
    rb_bug(BUILTIN_TYPE(obj) == T_NONE ? "try to mark T_NONE object" :
           "mark_stack: expected an object, found another value (see above)");
}

#endif /* COW_MARK_PUSH_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_NEW_OBJECT_H
#define COW_NEW_OBJECT_H

/*
 * new_object: records of a new object whether it needs a cleanup.
 *
 * Job: an object that owns something outside its slot has its cleanup bit set before it owns it. The sweep
 * frees all other dead objects without reading them.
 *
 * Entry points: rb_gc_impl_obj_needs_cleanup sets the bit; cow_newobj_plain_p says that a new object needs
 * none.
 *
 * Who writes this memory after a fork: a process that makes objects writes the cleanup bits of its open
 * pages; one that makes an inherited object own something, those of the object's page.
 */

/* Sets the cleanup bit of +obj+. Any Ractor may call it, without a lock. */
void
rb_gc_impl_obj_needs_cleanup(void *objspace_ptr, VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    /* Objects of other Ractors may have bits in the same word. */
    if (!cow_bit_test(&bits, COW_BITMAP_CLEANUP))
        cow_slot_map_set(&bits.word[COW_BITMAP_CLEANUP * bits.stride], bits.mask, rb_gc_multi_ractor_p());
}

/* Does a new object with these +flags+ need no cleanup (rb_gc_obj_plain_p)? Finds most that need none: it
 * looks at the type and at the flag by which several types say that they are embedded. */
static inline bool
cow_newobj_plain_p(VALUE flags)
{
#define PLAIN(type, user1) ((uint64_t)1 << ((type) | (user1) << 5))
    const uint64_t plain = PLAIN(T_FLOAT, 0) | PLAIN(T_COMPLEX, 0) | PLAIN(T_RATIONAL, 0) |
                           PLAIN(T_STRING, 0) | PLAIN(T_HASH, 0) | PLAIN(T_FLOAT, 1) | PLAIN(T_COMPLEX, 1) |
                           PLAIN(T_RATIONAL, 1) | PLAIN(T_ARRAY, 1) | PLAIN(T_OBJECT, 1) | PLAIN(T_STRUCT, 1);
#undef PLAIN

    return plain >> ((flags & RUBY_T_MASK) | (flags & FL_USER1) >> (FL_USHIFT + 1 - 5)) & 1;
}

#endif /* COW_NEW_OBJECT_H */

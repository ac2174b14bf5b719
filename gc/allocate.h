#ifndef COW_ALLOCATE_H
#define COW_ALLOCATE_H

/*
 * allocate: what is noted of a new object.
 *
 * Job: an object that owns something outside its slot has a cleanup bit; the sweep does not read the others.
 *
 * Entry points: rb_gc_impl_obj_needs_cleanup, cow_newobj_plain_p.
 *
 * Who writes this memory after a fork: a process that makes objects, the cleanup bits of its own pages.
 */

void
rb_gc_impl_obj_needs_cleanup(void *objspace_ptr, VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    /* Another Ractor's objects may have bits in the same word. */
    if (!cow_bit_test(&bits, COW_BITMAP_CLEANUP))
        cow_slot_map_set(&bits.word[COW_BITMAP_CLEANUP * bits.stride], bits.mask, rb_gc_multi_ractor_p());
}

/* Is a new object with these flags plain (rb_gc_obj_plain_p)? Says so of most that are: by the
 * type and the flag by which several types tell that they are embedded. */
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

#endif /* COW_ALLOCATE_H */

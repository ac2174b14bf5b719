/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_POISON_H
#define COW_POISON_H

/*
 * poison: marks memory that the process must not access at present. AddressSanitizer and Valgrind know what
 * malloc has allocated, but not what an arena has; this file says it to them.
 *
 * Entry points: cow_poison, when memory is freed; cow_unpoison, when it is allocated, and before its
 * addresses go back to the system, which may give them to any other part of the program;
 * cow_unpoison_contents, to read what stands in free memory. COW_READS_POISON.
 *
 * Without these tools the functions do nothing, and under Valgrind next to nothing. CRuby itself poisons the
 * free slots of an allocated page (internal/sanitizers.h).
 *
 * Who writes this memory after a fork: a process that allocates or frees a page writes AddressSanitizer's own
 * memory, a byte for eight; else nobody.
 */

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
# define COW_ASAN 1
#elif defined(__has_feature)
# if __has_feature(address_sanitizer)
#  define COW_ASAN 1
# endif
#endif
#ifndef COW_ASAN
# define COW_ASAN 0
#endif

#if COW_ASAN
# include <sanitizer/asan_interface.h>
#endif
#ifdef HAVE_VALGRIND_MEMCHECK_H
# include <valgrind/memcheck.h>
#endif

/* Attribute of a function that reads words of slots although they may be poisoned. */
#if COW_ASAN
# define COW_READS_POISON __attribute__((no_sanitize_address))
#else
# define COW_READS_POISON
#endif

/* From now on any access to this memory is reported. */
static inline void
cow_poison(const void *memory, size_t size)
{
#if COW_ASAN
    __asan_poison_memory_region(memory, size);
#endif
#ifdef VALGRIND_MAKE_MEM_NOACCESS
    (void)VALGRIND_MAKE_MEM_NOACCESS(memory, size);
#endif
}

/* This memory may be read and written again; its contents are undefined. */
static inline void
cow_unpoison(const void *memory, size_t size)
{
#if COW_ASAN
    __asan_unpoison_memory_region(memory, size);
#endif
#ifdef VALGRIND_MAKE_MEM_UNDEFINED
    (void)VALGRIND_MAKE_MEM_UNDEFINED(memory, size);
#endif
}

/* The same of memory whose contents were written before it was poisoned, such as the link of a free list:
 * Valgrind forgets that they were. */
static inline void
cow_unpoison_contents(const void *memory, size_t size)
{
    cow_unpoison(memory, size);
#ifdef VALGRIND_MAKE_MEM_DEFINED
    (void)VALGRIND_MAKE_MEM_DEFINED(memory, size);
#endif
}

#endif /* COW_POISON_H */

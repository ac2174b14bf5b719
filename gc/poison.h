#ifndef COW_POISON_H
#define COW_POISON_H

/*
 * poison: memory that is there and is nobody's. AddressSanitizer and Valgrind know what
 * malloc has handed out, not what an arena has: they are told here.
 *
 * Entry points: poison, before memory is taken back; unpoison, when it is handed out,
 * and before its addresses go back to the system, which may give them to anybody.
 *
 * Elsewhere both do nothing, and under Valgrind next to nothing. Free slots of a page
 * that is handed out are CRuby's to poison (internal/sanitizers.h).
 *
 * Who writes this memory after a fork: nobody. AddressSanitizer has a byte of its own
 * for eight.
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

/* For a function that reads words of slots whether they are poisoned or not. */
#if COW_ASAN
# define COW_READS_POISON __attribute__((no_sanitize_address))
#else
# define COW_READS_POISON
#endif

/* Whoever reads or writes it from now on is told of. */
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

/* It may be read and written again; what stands in it is anything. */
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

#endif /* COW_POISON_H */

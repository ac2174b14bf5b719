/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_ISEQ_JIT_H
#define COW_ISEQ_JIT_H

/*
 * iseq_jit: the words of an iseq that a JIT and the interpreter write while the program runs.
 *
 * Job: counts the calls of an iseq until it is compiled, and holds what the JIT has made of it then. Upstream
 * has these words in the body of the iseq, of which nothing else is written: a forked child would copy an OS
 * page for the two words of one iseq. Here an iseq has 16 bytes in a region of their own (vm_words.h).
 *
 * While an iseq is not compiled, the word of its machine code counts. Its highest bit is set then, if any
 * call was counted:
 *
 *     63   62 ... 16                          15 ... 0
 *     1    YJIT's total of calls, at a time   calls
 *
 * Addresses of code are below 2 ** 63. The calls stop at COW_ISEQ_JIT_MOST_CALLS; nothing is written any more
 * then.
 *
 * A forked process that waits long until it compiles (yjit_policy.rs) goes on in a table of its own, of 2
 * bytes for the 16 of an iseq, found by their address. Two iseqs whose words are a multiple of 64 MB apart,
 * the size of a region, share a counter: they are compiled earlier or later than others, or never.
 *
 * Entry points: cow_iseq_jit_code, cow_iseq_jit_set_code, cow_iseq_jit_count, cow_iseq_jit_threshold,
 * cow_iseq_jit_threshold_of; cow_iseq_jit_note_total, cow_iseq_jit_calls_since.
 *
 * Who writes this memory after a fork: a child that runs an inherited iseq, until the iseq is compiled or has
 * run very often; the table, if there is one, and the words of an iseq that is compiled or about to be.
 */

#include <limits.h>
#include <stdint.h>
#include "vm_words_streams.h"

#define COW_ISEQ_JIT_MOST_CALLS 0xffff
#define COW_ISEQ_JIT_COUNTS (UINT64_C(1) << 63)
#define COW_ISEQ_JIT_TOTAL_MASK ((UINT64_C(1) << 47) - 1)

struct rb_iseq_jit {
    uint64_t code; /* the address of the machine code, or counters */
    void *yjit_payload;
};

/* The table: a counter for each iseq that a region can hold. Most are never touched, and take no memory. */
#define COW_ISEQ_JIT_TABLE (COW_VM_WORDS_REGION / sizeof(struct rb_iseq_jit))
extern uint16_t rb_iseq_jit_call_table[COW_ISEQ_JIT_TABLE];
/* The same; NULL: this process counts in the words of the iseqs. */
extern uint16_t *rb_iseq_jit_calls;

/* Gives the counter of the iseq in the table. */
static inline uint16_t *
cow_iseq_jit_counter(uint16_t *calls, const struct rb_iseq_jit *jit)
{
    return &calls[(uintptr_t)jit / sizeof(*jit) % COW_ISEQ_JIT_TABLE];
}

/* Gives after how many calls an iseq is compiled, if the user wants it after +threshold+. */
static inline unsigned int
cow_iseq_jit_threshold(uint64_t threshold)
{
    return threshold < COW_ISEQ_JIT_MOST_CALLS ? (unsigned int)threshold : COW_ISEQ_JIT_MOST_CALLS;
}

/* The same for one iseq. Requests of one kind call the same methods, as often: in a process that waits they
 * would all be compiled in the course of one request, which would take a tenth of a second. So there each has
 * a threshold of its own, from three quarters of the given one to five quarters, by its address. */
static inline unsigned int
cow_iseq_jit_threshold_of(const struct rb_iseq_jit *jit, uint64_t threshold)
{
    const unsigned int given = cow_iseq_jit_threshold(threshold);

    if (!rb_iseq_jit_calls) return given;
    /* Fibonacci hashing: neighbours are far apart. */
    const uint64_t place = (uintptr_t)jit / sizeof(*jit) * UINT64_C(0x9e3779b97f4a7c15) >> 48;
    return cow_iseq_jit_threshold(given - given / 4 + (place * (given / 2) >> 16));
}

/* Gives the machine code of the iseq; NULL: it is not compiled. */
static inline void *
cow_iseq_jit_code(const struct rb_iseq_jit *jit)
{
    return (int64_t)jit->code > 0 ? (void *)(uintptr_t)jit->code : NULL;
}

/* Sets the machine code of the iseq. NULL: it has none, and its calls are counted from 0. */
static inline void
cow_iseq_jit_set_code(struct rb_iseq_jit *jit, const void *code)
{
    if (jit->code != (uintptr_t)code) jit->code = (uintptr_t)code;
    if (rb_iseq_jit_calls) {
        uint16_t *counter = cow_iseq_jit_counter(rb_iseq_jit_calls, jit);

        if (*counter != 0) *counter = 0;
    }
}

/* Counts a call of an iseq that is not compiled. Gives the number of its calls; UINT_MAX: more than can be
 * counted. */
static inline unsigned int
cow_iseq_jit_count(struct rb_iseq_jit *jit)
{
    const unsigned int calls = jit->code & COW_ISEQ_JIT_MOST_CALLS;

    if (rb_iseq_jit_calls) {
        uint16_t *counter = cow_iseq_jit_counter(rb_iseq_jit_calls, jit);

        return calls + *counter < COW_ISEQ_JIT_MOST_CALLS ? calls + ++*counter : UINT_MAX;
    }
    if (calls == COW_ISEQ_JIT_MOST_CALLS) return UINT_MAX;
    jit->code = (jit->code | COW_ISEQ_JIT_COUNTS) + 1;
    return calls + 1;
}

/* Notes the +total+ of calls of all iseqs, in an iseq whose calls are being counted. */
static inline void
cow_iseq_jit_note_total(struct rb_iseq_jit *jit, uint64_t total)
{
    jit->code = COW_ISEQ_JIT_COUNTS | (total & COW_ISEQ_JIT_TOTAL_MASK) << 16 |
        (jit->code & COW_ISEQ_JIT_MOST_CALLS);
}

/* Gives by how much the total has grown since it was noted, to +total+. */
static inline uint64_t
cow_iseq_jit_calls_since(const struct rb_iseq_jit *jit, uint64_t total)
{
    return (total - (jit->code >> 16)) & COW_ISEQ_JIT_TOTAL_MASK;
}

#endif /* COW_ISEQ_JIT_H */

/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PRESSURE_TREE_H
#define COW_PRESSURE_TREE_H

/*
 * pressure_tree: memory that a process shares with all that it has forked, in which they agree about
 * pressure.
 *
 * Job: of the processes of a server one at a time reads the system's files, whichever comes first when a
 * reading is due; the others read its answer, a word. A master sleeps most of the time, and may die: so
 * nothing here depends on it. Stalls are sums, of which two readings make a share: the sums of the last
 * reading stand here as well, so that it does not matter who made it. Each process writes down what memory
 * it takes, so that RUBY_GC_MEMORY_LIMIT holds for the sum. Full collections for pressure take turns, because
 * each of them takes time and memory: as many at a time as there are processors. (One at a time was too few
 * for hundreds of processes: doc/pressure.md, Simulation.)
 *
 * Entry points: cow_pressure_tree_begin, cow_pressure_tree_due, cow_pressure_tree_publish,
 * cow_pressure_tree_level, cow_pressure_tree_account, cow_pressure_tree_sum, cow_pressure_tree_turn,
 * cow_pressure_tree_done.
 *
 * Who writes this memory after a fork: all processes of the tree, by atomic instructions; the sums who makes
 * a reading. It is mapped as shared, so that no write copies it. A process of the tree that is not trusted
 * can write nonsense: it makes others collect, or not, and nothing else.
 *
 * Times are in ns, of a clock that all processes of the machine share.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pressure_policy.h"
#include "pressure_files.h"

/* Processes that can be counted. What more there are takes memory that nobody counts. */
enum { COW_PRESSURE_PROCESSES = 1000 };

/* A note of what a process takes is renewed by others when it is as old as this, which is longer than a
 * process that collects rests between two notes (COW_PRESSURE_LONGEST_REST_NS); and so many in one sum. */
#define COW_PRESSURE_NOTE_STALE_NS (20 * COW_PRESSURE_WINDOW_NS)
enum { COW_PRESSURE_NOTES_RENEWED = 4 };

/* There are at most so many turns. A process that has one for longer has lost it. */
enum { COW_PRESSURE_MOST_TURNS = 16 };
#define COW_PRESSURE_TURN_NS (15 * COW_PRESSURE_WINDOW_NS)

struct cow_pressure_process {
    int32_t pid; /* 0: nobody */
    uint32_t kilobytes;
    uint64_t noted_at;
    uint64_t started; /* cow_pressure_files_started */
};

struct cow_pressure_tree {
    uint64_t read_at;   /* when a process last undertook to make a reading */
    uint64_t answer;    /* its ms, times 128; plus 64 if there were files; plus 8 times level; plus cause */
    uint64_t turns[COW_PRESSURE_MOST_TURNS]; /* ms when a full collection began, times 2^32; plus the pid;
                                              * 0: none is going on */
    uint32_t turn_count; /* of .turns are used; 0: one */
    struct cow_pressure_sums sums; /* of the last reading */
    struct cow_pressure_process processes[COW_PRESSURE_PROCESSES];
};

/* Is a reading due? If so the caller makes it, and it is due for nobody else in the next half of a window. */
static inline bool
cow_pressure_tree_due(struct cow_pressure_tree *tree, uint64_t now)
{
    uint64_t before = __atomic_load_n(&tree->read_at, __ATOMIC_RELAXED);

    const int64_t age = (int64_t)(now - before);

    /* One that lies far ahead is of a clock that was set back since, as after a checkpoint, or nonsense. */
    if (before != 0 && age > -(int64_t)COW_PRESSURE_WINDOW_NS && age < (int64_t)(COW_PRESSURE_WINDOW_NS / 2))
        return false;
    return __atomic_compare_exchange_n(&tree->read_at, &before, now, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* Publishes what a reading has found, and whether it has found any +files+. */
static inline void
cow_pressure_tree_publish(struct cow_pressure_tree *tree, enum cow_pressure_level level,
                          enum cow_pressure_cause cause, bool files, uint64_t now)
{
    const uint64_t word = now / 1000000 * 128 + (files ? 64 : 0) + (uint64_t)level * 8 + (uint64_t)cause;

    __atomic_store_n(&tree->answer, word, __ATOMIC_RELEASE);
}

/* Gives the level that a reading of a process of the tree has found, and writes its cause and whether it has
 * found any files. Calm if that is older than a window, or if there was none. */
static inline enum cow_pressure_level
cow_pressure_tree_level(const struct cow_pressure_tree *tree, enum cow_pressure_cause *cause, bool *files,
                        uint64_t now)
{
    const uint64_t word = __atomic_load_n(&tree->answer, __ATOMIC_ACQUIRE);
    const uint64_t level = word / 8 % 8;

    *cause = COW_PRESSURE_NONE;
    *files = word == 0 || word / 64 % 2;
    if (word == 0 || now / 1000000 - word / 128 > COW_PRESSURE_WINDOW_NS / 1000000) return COW_PRESSURE_CALM;
    if (level == 0 || level > COW_PRESSURE_CRITICAL) return COW_PRESSURE_CALM;
    *cause = COW_PRESSURE_TREE;
    return (enum cow_pressure_level)level;
}

/* Writes what a process takes into its note. */
static inline void
cow_pressure_tree_note(struct cow_pressure_process *process, uint64_t started, double bytes, uint64_t now)
{
    const double most = (double)UINT32_MAX, kilobytes = bytes / 1024;

    __atomic_store_n(&process->started, started, __ATOMIC_RELAXED);
    __atomic_store_n(&process->kilobytes, kilobytes < most ? (uint32_t)kilobytes : UINT32_MAX,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&process->noted_at, now, __ATOMIC_RELEASE);
}

/* Writes down that process +pid+, which was +started+ then, takes +bytes+. Gives false if there is no place
 * for it. */
static inline bool
cow_pressure_tree_account(struct cow_pressure_tree *tree, int32_t pid, uint64_t started, double bytes,
                          uint64_t now)
{
    struct cow_pressure_process *const end = tree->processes + COW_PRESSURE_PROCESSES;
    struct cow_pressure_process *place = NULL;

    for (struct cow_pressure_process *process = tree->processes; process < end; process++) {
        const int32_t found = __atomic_load_n(&process->pid, __ATOMIC_ACQUIRE);

        if (found == pid) {
            cow_pressure_tree_note(process, started, bytes, now);
            return true;
        }
        if (found == 0 && place == NULL) place = process;
    }
    for (; place && place < end; place++) {
        int32_t nobody = 0;

        if (!__atomic_compare_exchange_n(&place->pid, &nobody, pid, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED)) continue;
        cow_pressure_tree_note(place, started, bytes, now);
        return true;
    }
    return false;
}

/* Asks the kernel what another process takes. Gives false if it has ended, or another one has its number.
 * Where the kernel does not say it to this process, what the other one has noted itself stays. */
static inline bool
cow_pressure_tree_renew(struct cow_pressure_process *process, struct cow_pressure_files *files, int32_t pid,
                        uint64_t now)
{
    const uint64_t started = cow_pressure_files_started(files, pid);
    const uint64_t noted = __atomic_load_n(&process->started, __ATOMIC_RELAXED);
    double bytes = cow_pressure_files_taken(files, pid);

    if (bytes == 0 || (started != 0 && noted != 0 && started != noted)) return false;
    if (bytes < 0) bytes = (double)__atomic_load_n(&process->kilobytes, __ATOMIC_RELAXED) * 1024;
    cow_pressure_tree_note(process, noted ? noted : started, bytes, now);
    return true;
}

/* Gives the bytes of all processes. Renews stale notes, and forgets processes that have ended. +files+ gives
 * room for texts. */
static inline double
cow_pressure_tree_sum(struct cow_pressure_tree *tree, struct cow_pressure_files *files,
                      bool (*alive)(int32_t pid), uint64_t now)
{
    double sum = 0;
    int renewed = 0;

    for (int i = 0; i < COW_PRESSURE_PROCESSES; i++) {
        struct cow_pressure_process *process = &tree->processes[i];
        int32_t pid = __atomic_load_n(&process->pid, __ATOMIC_ACQUIRE);

        if (pid == 0) continue;
        bool there = alive(pid);
        const uint64_t noted_at = __atomic_load_n(&process->noted_at, __ATOMIC_ACQUIRE);
        int64_t age = (int64_t)(now - noted_at);

        if (age < -(int64_t)COW_PRESSURE_WINDOW_NS) age = INT64_MAX; /* as in cow_pressure_tree_due */
        if (there && age >= (int64_t)COW_PRESSURE_NOTE_STALE_NS && renewed < COW_PRESSURE_NOTES_RENEWED) {
            renewed++;
            there = cow_pressure_tree_renew(process, files, pid, now);
        }
        if (there) {
            sum += (double)__atomic_load_n(&process->kilobytes, __ATOMIC_RELAXED) * 1024;
        }
        else {
            __atomic_store_n(&process->started, 0, __ATOMIC_RELAXED);
            __atomic_compare_exchange_n(&process->pid, &pid, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        }
    }
    return sum;
}

/* Called when the memory has been made, on a machine with so many +processors+. */
static inline void
cow_pressure_tree_begin(struct cow_pressure_tree *tree, long processors)
{
    tree->turn_count = processors < COW_PRESSURE_MOST_TURNS ? (uint32_t)processors : COW_PRESSURE_MOST_TURNS;
}

/* May the turn be taken that +word+ says who has? */
static inline bool
cow_pressure_turn_is_free(uint64_t word, int32_t pid, bool (*alive)(int32_t pid), uint64_t ms)
{
    const int32_t holder = (int32_t)(word & UINT32_MAX);

    return word == 0 || holder == pid || !alive(holder) ||
           ((ms - (word >> 32)) & UINT32_MAX) >= COW_PRESSURE_TURN_NS / 1000000;
}

/* Takes a turn to collect, if not as many other processes have one as may. */
static inline bool
cow_pressure_tree_turn(struct cow_pressure_tree *tree, int32_t pid, bool (*alive)(int32_t pid), uint64_t now)
{
    const uint64_t ms = now / 1000000 & UINT32_MAX;
    uint32_t count = __atomic_load_n(&tree->turn_count, __ATOMIC_RELAXED);

    if (count < 1) count = 1;
    if (count > COW_PRESSURE_MOST_TURNS) count = COW_PRESSURE_MOST_TURNS;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = __atomic_load_n(&tree->turns[i], __ATOMIC_ACQUIRE);

        if (cow_pressure_turn_is_free(word, pid, alive, ms) &&
            __atomic_compare_exchange_n(&tree->turns[i], &word, ms << 32 | (uint32_t)pid, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

/* Gives the turns that +pid+ has to other processes. */
static inline void
cow_pressure_tree_done(struct cow_pressure_tree *tree, int32_t pid)
{
    for (int i = 0; i < COW_PRESSURE_MOST_TURNS; i++) {
        uint64_t word = __atomic_load_n(&tree->turns[i], __ATOMIC_ACQUIRE);

        if ((int32_t)(word & UINT32_MAX) != pid) continue;
        __atomic_compare_exchange_n(&tree->turns[i], &word, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

#endif /* COW_PRESSURE_TREE_H */

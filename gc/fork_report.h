/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_FORK_REPORT_H
#define COW_FORK_REPORT_H

/*
 * fork_report: the line that a process writes to standard error before its first fork, with
 * RUBY_GC_FORK_REPORT=1: what it has that its children will share.
 *
 * Job: asks the kernel how much anonymous memory the process has, as lib/cowruby/memory does; writes that and
 * what the caller (fork.c) knows of the heap as one line. What cannot be read is named in the line with the
 * reason, and the rest of the line is there.
 *
 * No fork waits for a reader: where standard error takes nothing within COW_FORK_REPORT_WAIT, the line is
 * dropped, and a reader that has gone away gets none, so that there is no SIGPIPE. All of it is plain C on
 * the stack: no object of Ruby's and no block of malloc's is made after the seal. So sizes are printed as
 * whole numbers of tenths: Ruby's snprintf takes memory for a double.
 *
 * Entry points: cow_fork_report_read, cow_fork_report_text, cow_fork_report_write.
 *
 * Who writes this memory after a fork: nobody.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "os.h"
#include "pressure_files.h"

#if COW_HAS_MMAP
# include <poll.h>
#endif

/* Milliseconds that a fork waits until standard error takes the line. */
#ifndef COW_FORK_REPORT_WAIT
# define COW_FORK_REPORT_WAIT 100
#endif

enum {
    COW_FORK_REPORT_LINE = 512, /* bytes of the longest line, with its end */
    COW_FORK_REPORT_FILE = 2048 /* bytes of smaps_rollup that are read; it has about 700 */
};

/* What a process has before it forks, in bytes where nothing else is said. */
struct cow_fork_report {
    long pid;
    double anonymous; /* in memory and of no file; below 0: not known */
    int error; /* then why: errno; 0: the kernel does not say it */
    size_t heap_pages, sealed_pages; /* numbers */
    size_t heap_bytes; /* of .heap_pages */
    size_t malloc_bytes; /* in use; 0: the allocator does not say it */
    size_t vm_bytes, yjit_bytes; /* regions of vm_words.h */
};

/* Reads .anonymous: from smaps_rollup, else, where an old kernel has none, from status. */
static inline void
cow_fork_report_read(struct cow_fork_report *report)
{
    static const struct { const char *path, *name; } files[] = {
        { "/proc/self/smaps_rollup", "Anonymous:" }, { "/proc/self/status", "RssAnon:" }
    };
    char text[COW_FORK_REPORT_FILE];

    report->anonymous = -1;
    report->error = 0;
    for (int i = 0; i < 2 && report->anonymous < 0; i++) {
        if (!cow_os_read(files[i].path, text, sizeof(text))) {
            report->error = errno;
            continue;
        }
        const double kilobytes = cow_pressure_number(text, files[i].name);
        report->error = 0;
        if (kilobytes >= 0) report->anonymous = kilobytes * 1024;
    }
}

/* Gives the tenths of a MB that +bytes+ are, rounded. */
static inline size_t
cow_fork_report_tenths(double bytes)
{
    return (size_t)(bytes * 10 / (1 << 20) + 0.5);
}

/* Adds to the +length+ bytes of +line+ what a kind of memory takes; gives the new length. */
static inline int
cow_fork_report_kind(char *line, int length, size_t bytes, const char *what)
{
    const size_t tenths = cow_fork_report_tenths((double)bytes);

    if (bytes == 0) return length;
    return length + snprintf(line + length, (size_t)(COW_FORK_REPORT_LINE - length), ", %zu.%zu MB of %s",
                             tenths / 10, tenths % 10, what);
}

/* Writes the line to +line+, of COW_FORK_REPORT_LINE bytes; gives its length, with the end of the line. */
static inline int
cow_fork_report_text(const struct cow_fork_report *report, char *line)
{
    int length = snprintf(line, COW_FORK_REPORT_LINE, "cowruby: process %ld forks with ", report->pid);
    size_t tenths;

    if (report->anonymous >= 0) {
        tenths = cow_fork_report_tenths(report->anonymous);
        length += snprintf(line + length, (size_t)(COW_FORK_REPORT_LINE - length),
                           "%zu.%zu MB of memory that its children can share: ", tenths / 10, tenths % 10);
    }
    else {
        length += snprintf(line + length, (size_t)(COW_FORK_REPORT_LINE - length),
                           "memory of which /proc/self does not say how much it is (%.80s): ",
                           report->error ? strerror(report->error) : "the kernel does not count it");
    }
    tenths = cow_fork_report_tenths((double)report->heap_bytes);
    length += snprintf(line + length, (size_t)(COW_FORK_REPORT_LINE - length),
                       "%zu.%zu MB in %zu heap pages (%zu sealed)", tenths / 10, tenths % 10,
                       report->heap_pages, report->sealed_pages);
    length = cow_fork_report_kind(line, length, report->malloc_bytes, "malloc");
    length = cow_fork_report_kind(line, length, report->vm_bytes, "VM words");
    length = cow_fork_report_kind(line, length, report->yjit_bytes, "YJIT data");
    length += snprintf(line + length, (size_t)(COW_FORK_REPORT_LINE - length),
                       "; to see what they do share: cowruby-memory %ld\n", report->pid);
    COW_ASSERT(length < COW_FORK_REPORT_LINE);
    return length;
}

/* Writes +length+ bytes of +line+ to +file+ in one piece, if it takes them soon. Gives false if it does
 * not. */
static inline bool
cow_fork_report_write(int file, const char *line, int length)
{
#if COW_HAS_MMAP
    struct pollfd wanted = { .fd = file, .events = POLLOUT };
    ssize_t written;
    int ready, wait = COW_FORK_REPORT_WAIT;

    /* Signals may come for ever: after each it waits for half as long, at last not at all. */
    while ((ready = poll(&wanted, 1, wait)) < 0 && errno == EINTR && wait > 0) wait /= 2;
    if (ready != 1 || wanted.revents != POLLOUT) return false;
    do {
        written = write(file, line, (size_t)length);
    } while (written < 0 && errno == EINTR);
    return written == length;
#else
    return false;
#endif
}

#endif /* COW_FORK_REPORT_H */

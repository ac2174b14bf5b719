/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_PRESSURE_FILES_H
#define COW_PRESSURE_FILES_H

/*
 * pressure_files: what Linux tells of memory: stalls (PSI), the limit of the cgroup (v2 or v1), what a
 * process takes.
 *
 * Job: finds the files of the process's cgroup, and reads them. A file that is not there, may not be read or
 * holds nonsense gives no reading; nothing is said about it, because most systems lack some of them.
 *
 *     stalls    memory.pressure of the cgroup (v2), or the file of PSI that MEMORY_PRESSURE_WATCH names; else
 *               /proc/pressure/memory, while less than an eighth of the machine's memory is available: else
 *               others stall because of a limit of their own. With MEMORY_PRESSURE_WATCH=/dev/null, which is
 *               how systemd switches that off, none.
 *     limit     of the cgroup or one above it, whichever is nearest to its use: memory.max and memory.high
 *               (v2), memory.limit_in_bytes (v1). The use is without the pages of files, which the kernel
 *               drops before it ends a process. They are asked for only where the use comes near the limit,
 *               because the kernel adds up its counters then.
 *     killed    whether the kernel has ended a process of the cgroup (v2: or of one below it) for want of
 *               memory: oom_kill in memory.events (v2) or memory.oom_control (v1). Their other counters say
 *               nothing here: "max" and "high" also rise where the kernel drops pages of files to stay below
 *               the limit.
 *     process   Pss in /proc/PID/smaps_rollup, or resident pages in /proc/PID/statm.
 *
 * Each reading finds the cgroup anew, because a process may be moved. Collections happen on small stacks, so
 * the texts stand in the struct.
 *
 * Entry points: cow_pressure_files_read, cow_pressure_files_taken, cow_pressure_files_resident,
 * cow_pressure_files_anonymous, cow_pressure_files_started.
 *
 * Who writes this memory after a fork: a process writes the struct at readings.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "os.h"
#include "pressure_policy.h"

enum {
    COW_PRESSURE_PATH = 512,
    COW_PRESSURE_TEXT = 8192
};

#define COW_PRESSURE_V2 "/sys/fs/cgroup"
#define COW_PRESSURE_V1 "/sys/fs/cgroup/memory"

/* A limit of v1 that means none is the greatest multiple of a page. */
#define COW_PRESSURE_NO_LIMIT 4e18

/* Room for paths and for what files hold. All 0 at first. */
struct cow_pressure_files {
    char v1[COW_PRESSURE_PATH], v2[COW_PRESSURE_PATH]; /* directories of the cgroup; "": none */
    char path[COW_PRESSURE_PATH + 64], above[COW_PRESSURE_PATH];
    char cgroups[COW_PRESSURE_TEXT], text[COW_PRESSURE_TEXT];
};

/* What the files of stalls and of events held at the last reading. All 0 at first. */
struct cow_pressure_sums {
    double some_us, full_us;
    uint64_t read_at; /* ns; 0: nothing was read */
    uint64_t source;  /* which file it was: cow_pressure_source */
    double killed;
    uint64_t killed_source; /* 0: nothing was read */
    uint64_t killed_read_at;
    uint64_t killed_at; /* when a reading found more of them; 0: none did */
};

/* Gives a number for a path, another one for another path. FNV-1a. */
static inline uint64_t
cow_pressure_source(const char *path)
{
    uint64_t number = UINT64_C(0xcbf29ce484222325);

    for (; *path; path++) number = (number ^ (unsigned char)*path) * UINT64_C(0x100000001b3);
    return number;
}

/* Gives the line after +line+; NULL: that was the last one. */
static inline const char *
cow_pressure_next_line(const char *line)
{
    const char *end = strchr(line, '\n');

    return end ? end + 1 : NULL;
}

/* Gives the number that follows +name+ where a line begins with it; -1: there is none. "max" is none. */
static inline double
cow_pressure_number(const char *text, const char *name)
{
    const size_t length = strlen(name);

    for (const char *line = text; line != NULL; line = cow_pressure_next_line(line)) {
        if (strncmp(line, name, length) != 0) continue;
        const char *number = line + length;
        char *end;

        while (*number == ' ' || *number == '\t') number++;
        if (*number < '0' || *number > '9') return -1;
        double found = strtod(number, &end);
        if (*end != '\0' && *end != '\n' && *end != ' ') return -1;
        return found >= 0 && found < 1e30 ? found : -1;
    }
    return -1;
}

/* Reads DIRECTORY/NAME into .text. */
static inline bool
cow_pressure_file(struct cow_pressure_files *files, const char *directory, const char *name)
{
    const int length = snprintf(files->path, sizeof(files->path), "%s/%s", directory, name);

    return length > 0 && length < (int)sizeof(files->path) &&
           cow_os_read(files->path, files->text, sizeof(files->text));
}

/* Gives the number that a file holds; -1: none. */
static inline double
cow_pressure_file_number(struct cow_pressure_files *files, const char *directory, const char *name)
{
    return cow_pressure_file(files, directory, name) ? cow_pressure_number(files->text, "") : -1;
}

/* Copies the path of the cgroup whose line in .cgroups has +controller+ as one of its second field ("" is
 * v2's), below +mount+, to +directory+; where that has no file +probe+, as below a unit of systemd that
 * delegates without the controller, of the next one above it that has; "" if there is none. A process in a
 * container may see the path of another name space: then the mount itself is its cgroup. */
static inline void
cow_pressure_find(struct cow_pressure_files *files, const char *controller, const char *mount,
                  const char *probe, char *directory)
{
    directory[0] = '\0';
    for (const char *line = files->cgroups; line != NULL; line = cow_pressure_next_line(line)) {
        const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        const char *end = strchr(line, '\n');

        if (path == NULL || (end && path > end)) continue;
        bool is = path == names + 1 && *controller == '\0';
        for (const char *name = names + 1; *controller && name < path; ) {
            const size_t length = strcspn(name, ",:");
            if (length == strlen(controller) && strncmp(name, controller, length) == 0) is = true;
            name += length + 1;
        }
        if (!is) continue;

        const int length = end ? (int)(end - path - 1) : (int)strlen(path + 1);
        const int whole = snprintf(directory, COW_PRESSURE_PATH, "%s%.*s", mount, length, path + 1);
        const bool fits = whole > 0 && whole < COW_PRESSURE_PATH;
        if (fits && cow_pressure_file(files, directory, probe)) return;
        const bool exists = fits && cow_pressure_file(files, directory, "cgroup.controllers"); /* of v2 */
        for (char *last; exists && (last = strrchr(directory + strlen(mount), '/')) != NULL; ) {
            *last = '\0';
            if (cow_pressure_file(files, directory, probe)) return;
        }
        snprintf(directory, COW_PRESSURE_PATH, "%s", mount);
        if (!cow_pressure_file(files, directory, probe)) directory[0] = '\0';
        return;
    }
}

/* Finds the directories of the cgroup. The root of v2 has no use of its own, and is no cgroup here. */
static inline void
cow_pressure_files_find(struct cow_pressure_files *files)
{
    files->v1[0] = files->v2[0] = '\0';
    if (!cow_os_read("/proc/self/cgroup", files->cgroups, sizeof(files->cgroups))) return;
    cow_pressure_find(files, "", COW_PRESSURE_V2, "memory.current", files->v2);
    cow_pressure_find(files, "memory", COW_PRESSURE_V1, "memory.usage_in_bytes", files->v1);
}

/* Gives the bytes of files in the text of memory.stat. */
static inline double
cow_pressure_dropped(const char *text, bool v2)
{
    const char *const names[] = { v2 ? "inactive_file " : "total_inactive_file ",
                                  v2 ? "active_file " : "total_active_file ",
                                  v2 ? "slab_reclaimable " : "none" };
    double sum = 0;

    for (int i = 0; i < 3; i++) {
        const double bytes = cow_pressure_number(text, names[i]);
        if (bytes > 0) sum += bytes;
    }
    return sum;
}

/* Reads the limit of one cgroup into +reading+, if its use is nearer to it than those there. */
static inline void
cow_pressure_cgroup(struct cow_pressure_files *files, struct cow_pressure_reading *reading,
                    const char *directory, bool v2)
{
    double used =
        cow_pressure_file_number(files, directory, v2 ? "memory.current" : "memory.usage_in_bytes");
    double allowed = cow_pressure_file_number(files, directory, v2 ? "memory.max" : "memory.limit_in_bytes");
    double high = v2 ? cow_pressure_file_number(files, directory, "memory.high") : -1;

    if (allowed < 0 || (high >= 0 && high < allowed)) allowed = high;
    if (used < 0 || allowed < 0 || allowed >= COW_PRESSURE_NO_LIMIT) return;
    if (used >= allowed * COW_PRESSURE_MODERATE_PART && cow_pressure_file(files, directory, "memory.stat")) {
        const double dropped = cow_pressure_dropped(files->text, v2);
        used = dropped < used ? used - dropped : 0;
    }
    if (reading->allowed >= 0 && used * reading->allowed <= reading->used * allowed) return;
    reading->used = used;
    reading->allowed = allowed;
}

/* Reads the limits of a cgroup and of those above it, up to the mount. */
static inline void
cow_pressure_cgroups(struct cow_pressure_files *files, struct cow_pressure_reading *reading,
                     const char *directory, bool v2)
{
    const size_t mount = strlen(v2 ? COW_PRESSURE_V2 : COW_PRESSURE_V1);

    snprintf(files->above, sizeof(files->above), "%s", directory);
    while (files->above[0] != '\0') {
        char *end = strrchr(files->above, '/');

        cow_pressure_cgroup(files, reading, files->above, v2);
        if (strlen(files->above) <= mount || end == NULL || end < files->above + mount) return;
        *end = '\0';
    }
}

/* Reads into +reading+ whether the kernel has ended a process of the cgroup. The other processes of a tree
 * read after this one: it counts for as long as a level stays. When it was is not known where the last
 * reading was long ago; then it does not count. */
static inline void
cow_pressure_killed(struct cow_pressure_files *files, struct cow_pressure_sums *sums,
                    struct cow_pressure_reading *reading, const char *directory, const char *name,
                    uint64_t now)
{
    const struct cow_pressure_sums last = *sums;
    const uint64_t stay = COW_PRESSURE_CALM_WINDOWS * COW_PRESSURE_WINDOW_NS;

    sums->killed_source = 0;
    if (!cow_pressure_file(files, directory, name)) return;
    sums->killed = cow_pressure_number(files->text, "oom_kill ");
    if (sums->killed < 0) return;
    sums->killed_source = cow_pressure_source(files->path);
    sums->killed_read_at = now;
    if (last.killed_source != sums->killed_source || now < last.killed_read_at) sums->killed_at = 0;
    else if (sums->killed > last.killed && now - last.killed_read_at <= 2 * stay) sums->killed_at = now;
    if (sums->killed_at != 0 && now - sums->killed_at < stay) reading->killed = 1;
}

/* Is so little of the machine's memory available that stalls anywhere may be for want of it? */
static inline bool
cow_pressure_machine_short(struct cow_pressure_files *files)
{
    if (!cow_os_read("/proc/meminfo", files->cgroups, sizeof(files->cgroups))) return false;
    double available = cow_pressure_number(files->cgroups, "MemAvailable:");
    double all = cow_pressure_number(files->cgroups, "MemTotal:");

    return available >= 0 && all > 0 && available < all / 8;
}

/* Reads a file of PSI into .text. */
static inline bool
cow_pressure_psi(struct cow_pressure_files *files, const char *path)
{
    return cow_os_read(path, files->text, sizeof(files->text)) && strncmp(files->text, "some ", 5) == 0;
}

/* Gives the share of +passed_us+ by which a sum has grown; -1 if it was another sum. */
static inline double
cow_pressure_stalled(double before, double now, double passed_us)
{
    const double share = (now - before) / passed_us;

    return before >= 0 && now >= before && share <= 1.1 ? share : -1;
}

/* Reads stalls into +reading+: shares of the time since the last reading, whose sums are in +sums+.
 * +watched+: the value of MEMORY_PRESSURE_WATCH, or NULL; only files of PSI are opened, because to open
 * another one may take from it what it has for others. Gives false where there is no such file. */
static inline bool
cow_pressure_stalls(struct cow_pressure_files *files, struct cow_pressure_sums *sums,
                    struct cow_pressure_reading *reading, const char *watched, uint64_t now)
{
    static const char machine[] = "/proc/pressure/memory";
    bool own = true;

    if (watched && strcmp(watched, "/dev/null") == 0) return false;
    if (watched && strncmp(watched, COW_PRESSURE_V2 "/", sizeof(COW_PRESSURE_V2)) == 0) {
        snprintf(files->path, sizeof(files->path), "%s", watched);
    }
    else {
        snprintf(files->path, sizeof(files->path), "%s/memory.pressure", files->v2);
        own = files->v2[0] != '\0';
    }
    if (!own || !cow_pressure_psi(files, files->path)) {
        own = false;
        snprintf(files->path, sizeof(files->path), "%s", machine);
        if (!cow_pressure_psi(files, files->path)) return false;
    }

    const char *some = strstr(files->text, "total="), *line = strstr(files->text, "\nfull ");
    const char *full = line ? strstr(line, "total=") : NULL;
    const struct cow_pressure_sums last = *sums;
    const double passed_us = now > last.read_at ? (double)(now - last.read_at) / 1000 : 0;

    sums->some_us = some ? cow_pressure_number(some, "total=") : -1;
    sums->full_us = full ? cow_pressure_number(full, "total=") : -1;
    sums->read_at = now;
    sums->source = cow_pressure_source(files->path);
    if (sums->some_us < 0) return false;
    if (last.read_at == 0 || last.source != sums->source || passed_us <= 0) return true;
    if (!own && !cow_pressure_machine_short(files)) return true;
    reading->some = cow_pressure_stalled(last.some_us, sums->some_us, passed_us);
    reading->full = sums->full_us >= 0 ? cow_pressure_stalled(last.full_us, sums->full_us, passed_us) : -1;
    return true;
}

/* Reads what +mode+ asks for, at the time +now+ (ns). Gives false if none of it can be read: then only faults
 * tell of pressure. */
static inline bool
cow_pressure_files_read(struct cow_pressure_files *files, struct cow_pressure_sums *sums,
                        struct cow_pressure_reading *reading, enum cow_pressure_mode mode,
                        const char *watched, uint64_t now)
{
    bool read = false;

    if (mode == COW_PRESSURE_OFF || mode == COW_PRESSURE_RUSAGE) return false;
    cow_pressure_files_find(files);
    if (mode != COW_PRESSURE_OF_CGROUP) read = cow_pressure_stalls(files, sums, reading, watched, now);
    if (mode != COW_PRESSURE_PSI) {
        if (files->v2[0] != '\0') cow_pressure_cgroups(files, reading, files->v2, true);
        if (files->v1[0] != '\0') cow_pressure_cgroups(files, reading, files->v1, false);
        if (files->v2[0] != '\0') {
            cow_pressure_killed(files, sums, reading, files->v2, "memory.events", now);
        }
        else if (files->v1[0] != '\0') {
            cow_pressure_killed(files, sums, reading, files->v1, "memory.oom_control", now);
        }
        if (reading->allowed >= 0) read = true;
    }
    return read;
}

/* Gives the bytes of the memory of the process with this directory of /proc, shared pages included; -1: not
 * known. */
static inline double
cow_pressure_files_resident(struct cow_pressure_files *files, const char *directory)
{
    if (!cow_pressure_file(files, directory, "statm")) return -1;
    const char *resident = strchr(files->text, ' ');
    double pages = resident ? cow_pressure_number(resident + 1, "") : -1;

    return pages >= 0 ? pages * (double)cow_os->page_size() : -1;
}

/* Gives the bytes of the memory of this process that is no file's and not shared by mmap; -1: not known. */
static inline double
cow_pressure_files_anonymous(struct cow_pressure_files *files)
{
    const double resident = cow_pressure_files_resident(files, "/proc/self");

    if (resident < 0) return -1;
    const char *const shared = strchr(strchr(files->text, ' ') + 1, ' ');
    const double pages = shared ? cow_pressure_number(shared + 1, "") : -1;

    return pages >= 0 ? resident - pages * (double)cow_os->page_size() : -1;
}

/* Writes the directory of a process in /proc to .above; +pid+ 0 is the caller. */
static inline void
cow_pressure_process_directory(struct cow_pressure_files *files, int32_t pid)
{
    if (pid == 0) snprintf(files->above, sizeof(files->above), "/proc/self");
    else snprintf(files->above, sizeof(files->above), "/proc/%d", (int)pid);
}

/* Gives when a process was started, in ticks since the start of the machine, by which it differs from others
 * that have its number later (field 22 of /proc/PID/stat, proc(5)); 0: not known. +pid+ 0 is the caller. */
static inline uint64_t
cow_pressure_files_started(struct cow_pressure_files *files, int32_t pid)
{
    cow_pressure_process_directory(files, pid);
    if (!cow_pressure_file(files, files->above, "stat")) return 0;
    const char *field = strrchr(files->text, ')'); /* the end of field 2, which may hold anything */

    for (int i = 2; field && i < 22; i++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

/* Gives the bytes of a process's part of memory, shared pages in parts; 0: it has ended, and its parent has
 * not waited for it; -1: not known. +pid+ 0 is the caller. A process that has changed its user id may not be
 * asked for its part (proc_pid_smaps(5), ptrace(2)); statm would count all that it shares in full. */
static inline double
cow_pressure_files_taken(struct cow_pressure_files *files, int32_t pid)
{
    cow_pressure_process_directory(files, pid);
    if (cow_pressure_file(files, files->above, "smaps_rollup")) {
        double pss = cow_pressure_number(files->text, "Pss:");
        if (pss >= 0) return pss * 1024;
    }
    else if (pid != 0 && (errno == EACCES || errno == EPERM)) {
        return -1;
    }
    return cow_pressure_files_resident(files, files->above);
}

#endif /* COW_PRESSURE_FILES_H */

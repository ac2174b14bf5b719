/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pressure: the levels, the files of Linux (a double of the system serves them), and what processes share:
 * cc -I../../gc test_pressure.c -lcmocka -lm
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "os.c"
#include "pressure_files.h"
#include "pressure_tree.h"

#define SECOND UINT64_C(1000000000)
#define MB (1024.0 * 1024)

/* The files that the double has, ended by a path of NULL. */
static struct { const char *path, *text; } files[24]; /* without a text: it may not be read */

static ssize_t
double_read(const char *path, char *text, size_t size)
{
    for (int i = 0; files[i].path; i++) {
        if (strcmp(files[i].path, path) != 0) continue;
        if (files[i].text == NULL) {
            errno = EACCES;
            return -1;
        }
        const size_t length = strlen(files[i].text);
        memcpy(text, files[i].text, length < size ? length : size);
        return (ssize_t)(length < size ? length : size);
    }
    errno = ENOENT;
    return -1;
}

static struct cow_os_calls os_double;

/* Puts a file in place, or another text. */
static void
put(const char *path, const char *text)
{
    int i = 0;

    while (files[i].path && strcmp(files[i].path, path) != 0) i++;
    assert_true(i < 23);
    files[i].path = path;
    files[i].text = text;
}

static int
without_files(void **state)
{
    memset(files, 0, sizeof(files));
    os_double = cow_os_system;
    os_double.read = double_read;
    cow_os = &os_double;
    return 0;
}

static void
assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= fabs(expected) * 1e-6))
        fail_msg("expected %g, found %g", expected, found);
}

static struct cow_pressure_files texts;

static struct cow_pressure_reading
read_at(struct cow_pressure_sums *known, uint64_t now, enum cow_pressure_mode mode, bool *any)
{
    struct cow_pressure_reading reading = COW_PRESSURE_NO_READING;

    *any = cow_pressure_files_read(&texts, known, &reading, mode, NULL, now);
    return reading;
}

static void
test_no_files(void **state)
{
    struct cow_pressure_sums known = { 0 };
    enum cow_pressure_cause cause;
    bool any;
    struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);

    assert_false(any);
    assert_true(cow_pressure_of(&reading, &cause) == COW_PRESSURE_CALM && cause == COW_PRESSURE_NONE);
    assert_true(cow_pressure_files_taken(&texts, 0) == -1);
}

/* A share of the time between two readings, of the machine while it is short of memory. */
static void
test_stalls_of_the_machine(void **state)
{
    struct cow_pressure_sums known = { 0 };
    enum cow_pressure_cause cause;
    bool any;

    put("/proc/self/cgroup", "0::/\n");
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:        1 kB\nMemAvailable:    100 kB\n");
    put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n"
                                 "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n");
    struct cow_pressure_reading reading = read_at(&known, 10 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(any && reading.some == -1); /* nothing to compare with */

    put("/proc/pressure/memory", "some avg10=9.00 avg60=0.00 avg300=0.00 total=1300000\n"
                                 "full avg10=0.00 avg60=0.00 avg300=0.00 total=520000\n");
    reading = read_at(&known, 12 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_near(reading.some, 0.15);
    assert_near(reading.full, 0.01);
    assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_MODERATE);
    assert_int_equal(cause, COW_PRESSURE_STALLS);

    put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2300000\n"
                                 "full avg10=0.00 avg60=0.00 avg300=0.00 total=1520000\n");
    reading = read_at(&known, 14 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_CRITICAL);

    /* Others stall because of limits of their own. */
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    900 kB\n");
    put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=9300000\n");
    reading = read_at(&known, 16 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(reading.some == -1 && any);

    /* Other modes do not look at it, and the sums may begin anew. */
    reading = read_at(&known, 18 * SECOND, COW_PRESSURE_OF_CGROUP, &any);
    assert_false(any);
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    10 kB\n");
    put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
    reading = read_at(&known, 20 * SECOND, COW_PRESSURE_PSI, &any);
    assert_true(reading.some == -1 && reading.full == -1);
    put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000005\n");
    reading = read_at(&known, 19 * SECOND, COW_PRESSURE_PSI, &any);
    assert_true(reading.some == -1); /* the clock has gone back */
}

static void
test_stalls_of_the_cgroup(void **state)
{
    struct cow_pressure_sums known = { 0 };
    bool any;

    put("/proc/self/cgroup", "0::/app.slice/web\n");
    put("/sys/fs/cgroup/app.slice/web/memory.current", "5\n");
    put("/sys/fs/cgroup/app.slice/web/memory.pressure", "some avg10=0 avg60=0 avg300=0 total=0\n");
    read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    put("/sys/fs/cgroup/app.slice/web/memory.pressure", "some avg10=0 avg60=0 avg300=0 total=500000\n");
    struct cow_pressure_reading reading = read_at(&known, 2 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_near(reading.some, 0.5);
    assert_true(reading.full == -1);

    /* What MEMORY_PRESSURE_WATCH names is read in its place. */
    const char *watched = "/sys/fs/cgroup/app.slice/memory.pressure";
    put(watched, "some avg10=0 avg60=0 avg300=0 total=100000\n");
    for (int i = 3; i < 5; i++) {
        reading = (struct cow_pressure_reading)COW_PRESSURE_NO_READING;
        assert_true(cow_pressure_files_read(&texts, &known, &reading, COW_PRESSURE_AUTO, watched,
                                            i * SECOND));
        if (i == 3) assert_true(reading.some == -1); /* the sum was that of another file */
        put(watched, "some avg10=0 avg60=0 avg300=0 total=200000\n");
    }
    assert_near(reading.some, 0.1);

    /* Other files are not opened: a pipe would lose what is in it. systemd's /dev/null means not to watch. */
    put("/fifo", "some avg10=0 avg60=0 avg300=0 total=0\n");
    cow_pressure_files_read(&texts, &known, &reading, COW_PRESSURE_AUTO, "/fifo", 5 * SECOND);
    assert_true(known.source == cow_pressure_source("/sys/fs/cgroup/app.slice/web/memory.pressure"));
    assert_false(cow_pressure_files_read(&texts, &known, &reading, COW_PRESSURE_PSI, "/dev/null",
                                         6 * SECOND));
}

/* A share above 1 is none: the sums are of two files. */
static void
test_sums_that_do_not_go_together(void **state)
{
    assert_near(cow_pressure_stalled(10, 60, 100), 0.5);
    assert_true(cow_pressure_stalled(10, 600, 100) == -1);
    assert_true(cow_pressure_stalled(60, 10, 100) == -1);
    assert_true(cow_pressure_stalled(-1, 10, 100) == -1);
}

static void
test_limits_of_v2(void **state)
{
    struct cow_pressure_sums known = { 0 };
    enum cow_pressure_cause cause;
    bool any;

    put("/proc/self/cgroup", "0::/app.slice/web\n");
    put("/sys/fs/cgroup/app.slice/web/memory.current", "700000\n");
    put("/sys/fs/cgroup/app.slice/web/memory.max", "max\n");
    put("/sys/fs/cgroup/app.slice/web/memory.high", "max\n");
    struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(!any && reading.allowed == -1);

    /* One above it has a limit. */
    put("/sys/fs/cgroup/app.slice/memory.current", "900000\n");
    put("/sys/fs/cgroup/app.slice/memory.max", "1000000\n");
    put("/sys/fs/cgroup/app.slice/memory.stat",
        "anon 5\nfile 300000\ninactive_file 60000\nactive_file 40000\nslab_reclaimable 20000\n");
    reading = read_at(&known, 2 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(any);
    assert_near(reading.used, 780000);
    assert_near(reading.allowed, 1000000);
    assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_CALM);

    /* The nearer one counts, and of max and high the lower. */
    put("/sys/fs/cgroup/app.slice/web/memory.max", "900000\n");
    put("/sys/fs/cgroup/app.slice/web/memory.high", "750000\n");
    reading = read_at(&known, 3 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_near(reading.used, 700000);
    assert_near(reading.allowed, 750000);
    assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_MODERATE);
    assert_int_equal(cause, COW_PRESSURE_CGROUP);
    put("/sys/fs/cgroup/app.slice/web/memory.current", "740000\n");
    reading = read_at(&known, 4 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_CRITICAL);
}

/* Below a unit of systemd that delegates, or where a supervisor has made groups, the process's own group may
 * lack the controller, and has stalls only. */
static void
test_a_group_without_the_controller(void **state)
{
    struct cow_pressure_sums known = { 0 };
    bool any;

    put("/proc/self/cgroup", "0::/system.slice/web.service/app/worker\n");
    put("/sys/fs/cgroup/system.slice/web.service/memory.current", "980000\n");
    put("/sys/fs/cgroup/system.slice/web.service/memory.max", "1000000\n");
    put("/sys/fs/cgroup/system.slice/web.service/memory.events", "oom_kill 0\n");
    /* The path of another name space, or of this one? */
    struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    assert_string_equal(texts.v2, "");
    put("/sys/fs/cgroup/system.slice/web.service/app/worker/cgroup.controllers", "");
    reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(any);
    assert_string_equal(texts.v2, "/sys/fs/cgroup/system.slice/web.service");
    assert_near(reading.used, 980000);
    assert_near(reading.allowed, 1000000);
    put("/sys/fs/cgroup/system.slice/web.service/memory.events", "oom_kill 1\n");
    reading = read_at(&known, 2 * SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(reading.killed == 1);
}

static void
test_limits_of_v1(void **state)
{
    struct cow_pressure_sums known = { 0 };
    bool any;

    put("/proc/self/cgroup", "5:cpu,memory:/docker/0123\n4:memoryx:/no\n0::/\n");
    /* In a container the path is one of another name space. */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "980000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    assert_true(!any && reading.allowed == -1);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 70000\n"
                                                   "total_active_file 10000\n");
    reading = read_at(&known, 2 * SECOND, COW_PRESSURE_OF_CGROUP, &any);
    assert_near(reading.used, 900000);
    assert_near(reading.allowed, 1000000);
}

/* Nonsense is no reading, and no crash. */
static void
test_malformed_files(void **state)
{
    static const char *const nonsense[] = {
        "", "\n", "some", "some total=", "some total=x\nfull", "-5\n", "1e999\n", "max",
        "99999999999999999999999\n",
        "some avg10=0 total=-1\nfull total=nan\n", ":::::\n:::", "0:\n", "memory", "0::", "12:memory\n", " 12"
    };
    static const char *const paths[] = {
        "/proc/self/cgroup", "/proc/pressure/memory", "/proc/meminfo", "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory.pressure",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/proc/self/smaps_rollup", "/proc/self/statm"
    };
    enum { TEXTS = sizeof(nonsense) / sizeof(nonsense[0]), PATHS = sizeof(paths) / sizeof(paths[0]) };
    uint32_t random = 1;

    for (int round = 0; round < 3000; round++) {
        struct cow_pressure_sums known = { 0 };
        struct cow_pressure pressure = { 0 };
        enum cow_pressure_cause cause;
        bool any;

        put("/proc/self/cgroup", round % 2 ? "0::/\n3:memory:/\n" : "0::/a/b/c\n3:memory:x\n");
        for (int i = 0; i < 4; i++) {
            random = random * 1103515245 + 12345;
            put(paths[(random >> 16) % PATHS], nonsense[(random >> 8) % TEXTS]);
            struct cow_pressure_reading reading = read_at(&known, SECOND * (i + 1), COW_PRESSURE_AUTO, &any);
            enum cow_pressure_level level = cow_pressure_of(&reading, &cause);
            cow_pressure_note(&pressure, level, cause, SECOND * (i + 1));
            assert_true(cow_pressure_consistent(&pressure, stderr));
            cow_pressure_files_taken(&texts, 0);
        }
    }
}

/* A long path, and files longer than there is room for. */
static void
test_long_texts(void **state)
{
    static char line[2000], text[3 * COW_PRESSURE_TEXT];
    struct cow_pressure_sums known = { 0 };
    bool any;

    memset(line, 'x', sizeof(line) - 1);
    memcpy(line, "0::/", 4);
    memset(text, '7', sizeof(text) - 1);
    put("/proc/self/cgroup", line);
    put("/sys/fs/cgroup/memory.current", text);
    put("/sys/fs/cgroup/memory.max", text);
    put("/sys/fs/cgroup/memory.stat", text);
    struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
    assert_string_equal(texts.v2, "/sys/fs/cgroup");
    assert_true(reading.allowed == -1);
}

static void
test_memory_of_the_process(void **state)
{
    static char text[64];

    put("/proc/self/statm", "5000 300 20 1 0 10 0\n");
    assert_near(cow_pressure_files_taken(&texts, 0), 300.0 * cow_os->page_size());
    snprintf(text, sizeof(text), "first\nRss:   900 kB\nPss:   800 kB\n");
    put("/proc/self/smaps_rollup", text);
    assert_near(cow_pressure_files_taken(&texts, 0), 800.0 * 1024);

    put("/proc/7/statm", "5000 300 20 1 0 10 0\n");
    assert_near(cow_pressure_files_taken(&texts, 7), 300.0 * cow_os->page_size());
    put("/proc/7/smaps_rollup", NULL);
    assert_true(cow_pressure_files_taken(&texts, 7) == -1);
}

/* A level rises at once and falls by one after two windows without a reason. */
static void
test_levels_rise_and_fall(void **state)
{
    struct cow_pressure pressure = { 0 };
    uint64_t now = 100 * SECOND;

    assert_false(cow_pressure_note(&pressure, COW_PRESSURE_CALM, COW_PRESSURE_NONE, now));
    assert_true(cow_pressure_note(&pressure, COW_PRESSURE_CRITICAL, COW_PRESSURE_STALLS, now));
    assert_int_equal(pressure.level, COW_PRESSURE_CRITICAL);
    assert_false(cow_pressure_note(&pressure, COW_PRESSURE_CRITICAL, COW_PRESSURE_CGROUP, now += SECOND));
    assert_true(cow_pressure_note(&pressure, COW_PRESSURE_CRITICAL, COW_PRESSURE_CGROUP, now += SECOND));
    assert_false(cow_pressure_note(&pressure, COW_PRESSURE_MODERATE, COW_PRESSURE_CGROUP, now += SECOND));
    assert_false(cow_pressure_note(&pressure, COW_PRESSURE_MODERATE, COW_PRESSURE_CGROUP, now += 2 * SECOND));
    assert_int_equal(pressure.level, COW_PRESSURE_CRITICAL);
    cow_pressure_note(&pressure, COW_PRESSURE_MODERATE, COW_PRESSURE_CGROUP, now += SECOND);
    assert_int_equal(pressure.level, COW_PRESSURE_MODERATE);
    for (int i = 0; i < 3; i++) {
        cow_pressure_note(&pressure, COW_PRESSURE_CALM, COW_PRESSURE_NONE, now += SECOND);
        assert_int_equal(pressure.level, COW_PRESSURE_MODERATE);
        assert_true(cow_pressure_consistent(&pressure, stderr));
    }
    cow_pressure_note(&pressure, COW_PRESSURE_CALM, COW_PRESSURE_NONE, now += SECOND);
    assert_int_equal(pressure.level, COW_PRESSURE_CALM);
    assert_int_equal(pressure.cause, COW_PRESSURE_NONE);
}

static void
test_share(void **state)
{
    struct cow_pressure pressure = { 0 };

    assert_near(cow_pressure_share(&pressure, 0.05), 0.05);
    pressure.level = COW_PRESSURE_MODERATE;
    assert_near(cow_pressure_share(&pressure, 0.05), 0.2);
    pressure.level = COW_PRESSURE_CRITICAL;
    assert_near(cow_pressure_share(&pressure, 0.05), 0.5);
    assert_near(cow_pressure_share(&pressure, 0.01), 0.16);
    assert_near(cow_pressure_share(&pressure, 0.5), 0.5);
}

/* Full collections for pressure: one a window, and at most half of the time. */
static void
test_full_collections(void **state)
{
    struct cow_pressure pressure = { 0 };
    uint64_t now = 100 * SECOND;

    assert_false(cow_pressure_collects(&pressure, now, 0));
    cow_pressure_note(&pressure, COW_PRESSURE_CRITICAL, COW_PRESSURE_LIMIT, now);
    assert_true(cow_pressure_collects(&pressure, now, 1e9));
    cow_pressure_collected(&pressure, now, 1e9, 5e8, 100 * MB, 90 * MB);
    assert_false(cow_pressure_collects(&pressure, now + SECOND, 9e9));
    assert_false(cow_pressure_collects(&pressure, now + 60 * SECOND, 1.4e9));
    assert_true(cow_pressure_collects(&pressure, now + 2 * SECOND, 1.5e9));

    /* Where they gain nothing they become rare, at most 64 s apart; one that gains ends that. */
    for (uint64_t wait = 4; wait <= 256; wait *= 2) {
        cow_pressure_collected(&pressure, now, 0, 0, 100 * MB, 99 * MB);
        assert_false(cow_pressure_collects(&pressure, now + (wait < 64 ? wait : 64) * SECOND - 1, 1e9));
        assert_true(cow_pressure_collects(&pressure, now + (wait < 64 ? wait : 64) * SECOND, 1e9));
    }
    cow_pressure_collected(&pressure, now, 0, 0, 100 * MB, 50 * MB);
    assert_true(cow_pressure_collects(&pressure, now + 2 * SECOND, 1e9));
    cow_pressure_collected(&pressure, now, 0, 0, -1, -1);
    assert_true(cow_pressure_collects(&pressure, now + 2 * SECOND, 1e9));
}

static void
test_faults(void **state)
{
    struct cow_pressure pressure = { 0 };

    const uint64_t now = 100 * SECOND;

    assert_false(cow_pressure_fault(&pressure, 100, now)); /* those before are no news */
    assert_false(cow_pressure_fault(&pressure, 100, now));
    assert_true(cow_pressure_fault(&pressure, 101, now));
    assert_false(cow_pressure_fault(&pressure, 101, now + 9 * SECOND));
    for (int i = 0; i < 20; i++) assert_false(cow_pressure_fault(&pressure, 102 + i, now + SECOND));
    assert_true(cow_pressure_fault(&pressure, 200, now + 2 * SECOND));
    assert_false(cow_pressure_fault(&pressure, 3, now + 9 * SECOND)); /* as in a child */
}

static void
test_modes(void **state)
{
    enum cow_pressure_mode mode = COW_PRESSURE_PSI;

    assert_true(cow_pressure_mode_read("", &mode) && mode == COW_PRESSURE_PSI);
    assert_true(cow_pressure_mode_read("off", &mode) && mode == COW_PRESSURE_OFF);
    assert_false(cow_pressure_mode_read("of", &mode));
}

/* 13 has ended; 17 has not been waited for. */
static bool
alive(int32_t pid)
{
    return pid != 13;
}

/* One process of a tree reads for all. */
static void
test_tree_readings(void **state)
{
    static struct cow_pressure_tree tree;
    enum cow_pressure_cause cause;
    uint64_t now = 1000 * SECOND;
    bool any;

    assert_int_equal(cow_pressure_tree_level(&tree, &cause, &any, now), COW_PRESSURE_CALM);
    assert_true(cow_pressure_tree_due(&tree, now));
    assert_false(cow_pressure_tree_due(&tree, now + SECOND / 2));
    assert_false(cow_pressure_tree_due(&tree, now - 5)); /* who has looked at the clock before */
    cow_pressure_tree_publish(&tree, COW_PRESSURE_CRITICAL, COW_PRESSURE_CGROUP, true, now);
    assert_int_equal(cow_pressure_tree_level(&tree, &cause, &any, now + SECOND), COW_PRESSURE_CRITICAL);
    assert_int_equal(cause, COW_PRESSURE_TREE);
    assert_true(any);
    assert_true(cow_pressure_tree_due(&tree, now + SECOND));
    assert_int_equal(cow_pressure_tree_level(&tree, &cause, &any, now + 4 * SECOND), COW_PRESSURE_CALM);
    assert_int_equal(cause, COW_PRESSURE_NONE);
    cow_pressure_tree_publish(&tree, COW_PRESSURE_CALM, COW_PRESSURE_NONE, false, now + 4 * SECOND);
    cow_pressure_tree_level(&tree, &cause, &any, now + 4 * SECOND);
    assert_false(any);
    assert_true(cow_pressure_tree_due(&tree, now - 5 * SECOND)); /* the clock was set back */
}

/* Of twenty processes each reads once: the shares are those of a second all the same. */
static void
test_tree_of_processes_that_read_once(void **state)
{
    static struct cow_pressure_tree tree;
    static char pressure[100];
    bool any;

    put("/proc/self/cgroup", "0::/web\n");
    put("/sys/fs/cgroup/web/memory.current", "5\n");
    put("/sys/fs/cgroup/web/memory.pressure", pressure);
    for (int i = 0; i < 20; i++) {
        snprintf(pressure, sizeof(pressure), "some total=%d\nfull total=%d\n", i * 500000, i * 200000);
        struct cow_pressure_reading reading =
            read_at(&tree.sums, (100 + i) * SECOND, COW_PRESSURE_AUTO, &any);
        if (i == 0) continue;
        assert_near(reading.some, 0.5);
        assert_near(reading.full, 0.2);
    }
}

static void
test_tree_sum(void **state)
{
    static struct cow_pressure_tree tree;
    uint64_t now = 100 * SECOND;

    put("/proc/11/smaps_rollup", "Pss: 7168 kB\n");
    put("/proc/12/smaps_rollup", "Pss: 7168 kB\n");
    put("/proc/17/statm", "0 0 0 0 0 0 0\n");
    put("/proc/18/smaps_rollup", "Pss: 900000 kB\n");
    put("/proc/18/stat", "18 (a) b) S 1 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 777 21\n");
    assert_int_equal(cow_pressure_files_started(&texts, 18), 777);
    assert_int_equal(cow_pressure_files_started(&texts, 11), 0);
    cow_pressure_tree_account(&tree, 11, 0, 100 * MB, now);
    cow_pressure_tree_account(&tree, 13, 5, 50 * MB, now);
    cow_pressure_tree_account(&tree, 12, 0, 25 * MB, now);
    cow_pressure_tree_account(&tree, 17, 0, 1 * MB, now);
    cow_pressure_tree_account(&tree, 18, 776, 1 * MB, now);
    assert_near(cow_pressure_tree_sum(&tree, &texts, alive, now), 127 * MB);
    /* Stale notes are renewed: 11 has exec'd something smaller, 17 is gone, another process has 18. */
    now += COW_PRESSURE_NOTE_STALE_NS;
    assert_near(cow_pressure_tree_sum(&tree, &texts, alive, now), 14 * MB);
    assert_int_equal(tree.processes[3].pid, 0);
    assert_int_equal(tree.processes[4].pid, 0);
    cow_pressure_tree_account(&tree, 11, 0, 10 * MB, now);
    cow_pressure_tree_account(&tree, 14, 0, 1e18, now); /* takes the place of 13 */
    assert_int_equal(tree.processes[1].pid, 14);
    assert_true(cow_pressure_tree_sum(&tree, &texts, alive, now) > 4e12);
    for (int i = 0; i < COW_PRESSURE_PROCESSES + 50; i++) {
        cow_pressure_tree_account(&tree, 1000 + i, 0, MB, now);
    }
    assert_true(tree.processes[COW_PRESSURE_PROCESSES - 1].pid > 1000);
}

/* What a process has noted itself stays where nobody else may ask for it: 16 has changed its user id, all of
 * /proc is hidden for 15; 13 has ended. */
static void
test_tree_sum_of_processes_that_may_not_be_asked(void **state)
{
    static struct cow_pressure_tree tree;
    uint64_t now = 100 * SECOND;

    put("/proc/16/smaps_rollup", NULL);
    put("/proc/16/statm", "900000 900000 0 0 0 0 0\n");
    put("/proc/16/stat", "16 (a) S 1 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 777 21\n");
    cow_pressure_tree_account(&tree, 13, 2, 50 * MB, now);
    cow_pressure_tree_account(&tree, 15, 3, 3 * MB, now);
    cow_pressure_tree_account(&tree, 16, 777, 5 * MB, now);
    for (int i = 0; i < 3; i++) {
        now += COW_PRESSURE_NOTE_STALE_NS;
        assert_near(cow_pressure_tree_sum(&tree, &texts, alive, now), 8 * MB);
    }
    /* Another process has its number now; and the clock was set back. */
    put("/proc/16/stat", "16 (a) S 1 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 888 21\n");
    now -= COW_PRESSURE_NOTE_STALE_NS;
    assert_near(cow_pressure_tree_sum(&tree, &texts, alive, now), 3 * MB);
}

static void
test_tree_turns(void **state)
{
    static struct cow_pressure_tree tree;
    uint64_t now = 5000000 * SECOND;

    assert_true(cow_pressure_tree_turn(&tree, 11, alive, now));
    assert_false(cow_pressure_tree_turn(&tree, 12, alive, now + 5 * SECOND));
    cow_pressure_tree_done(&tree, 12); /* it is not his */
    assert_false(cow_pressure_tree_turn(&tree, 12, alive, now + 5 * SECOND));
    cow_pressure_tree_done(&tree, 11);
    assert_true(cow_pressure_tree_turn(&tree, 13, alive, now + 5 * SECOND));
    assert_true(cow_pressure_tree_turn(&tree, 12, alive, now + 6 * SECOND)); /* 13 has ended */
    assert_true(cow_pressure_tree_turn(&tree, 11, alive, now + 60 * SECOND)); /* 12 has hung */
}

static void
test_tree_with_several_turns(void **state)
{
    static struct cow_pressure_tree tree;
    uint64_t now = 5000000 * SECOND;

    cow_pressure_tree_begin(&tree, 2);
    assert_true(cow_pressure_tree_turn(&tree, 11, alive, now));
    assert_true(cow_pressure_tree_turn(&tree, 12, alive, now));
    assert_false(cow_pressure_tree_turn(&tree, 14, alive, now));
    assert_true(cow_pressure_tree_turn(&tree, 11, alive, now)); /* has one already */
    cow_pressure_tree_done(&tree, 11);
    assert_true(cow_pressure_tree_turn(&tree, 14, alive, now));
    assert_false(cow_pressure_tree_turn(&tree, 11, alive, now));
    cow_pressure_tree_begin(&tree, 1000);
    for (int i = 0; i < COW_PRESSURE_MOST_TURNS - 2; i++) {
        assert_true(cow_pressure_tree_turn(&tree, 100 + i, alive, now));
    }
    assert_false(cow_pressure_tree_turn(&tree, 11, alive, now));
    tree.turn_count = UINT32_MAX; /* nonsense */
    assert_false(cow_pressure_tree_turn(&tree, 11, alive, now));
}

/* A process that the kernel has ended between two readings of the same cgroup. */
static void
test_killed_processes(void **state)
{
    const struct { const char *cgroup, *use, *events, *before, *after; } cases[] = {
        { "0::/web\n", "/sys/fs/cgroup/web/memory.current", "/sys/fs/cgroup/web/memory.events",
          "low 0\nhigh 7\nmax 9\noom 2\noom_kill 1\n", "low 0\nhigh 99\nmax 99\noom 3\noom_kill 3\n" },
        { "4:memory:/web\n", "/sys/fs/cgroup/memory/web/memory.usage_in_bytes",
          "/sys/fs/cgroup/memory/web/memory.oom_control",
          "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n" },
    };

    for (int i = 0; i < 2; i++) {
        struct cow_pressure_sums known = { 0 };
        enum cow_pressure_cause cause;
        bool any;

        without_files(state);
        put("/proc/self/cgroup", cases[i].cgroup);
        put(cases[i].use, "5\n");
        put(cases[i].events, cases[i].before);
        struct cow_pressure_reading reading = read_at(&known, SECOND, COW_PRESSURE_AUTO, &any);
        assert_true(reading.killed == -1); /* that was before this process knew of it */
        put(cases[i].events, cases[i].after);
        reading = read_at(&known, 2 * SECOND, COW_PRESSURE_AUTO, &any);
        assert_near(reading.killed, 1);
        assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_CRITICAL);
        assert_int_equal(cause, COW_PRESSURE_CGROUP);
        /* Another process of the tree that reads a little later is told as well. */
        reading = read_at(&known, 5 * SECOND, COW_PRESSURE_AUTO, &any);
        assert_near(reading.killed, 1);
        reading = read_at(&known, 6 * SECOND, COW_PRESSURE_AUTO, &any);
        assert_true(reading.killed == -1);
        assert_int_equal(cow_pressure_of(&reading, &cause), COW_PRESSURE_CALM);

        /* When it was is not known of a process that has not looked for long. */
        put(cases[i].events, "oom_kill 7\n");
        reading = read_at(&known, 60 * SECOND, COW_PRESSURE_AUTO, &any);
        assert_true(reading.killed == -1);

        /* A kernel that does not count them, and nonsense. */
        put(cases[i].events, "oom 3\noom_kill many\n");
        read_at(&known, 61 * SECOND, COW_PRESSURE_AUTO, &any);
        put(cases[i].events, "oom_kill 9\n");
        reading = read_at(&known, 62 * SECOND, COW_PRESSURE_AUTO, &any);
        assert_true(reading.killed == -1);
    }
}

/* What holds of a limit of malloc. */
static void
test_part(void **state)
{
    struct cow_pressure pressure = { 0 };

    assert_int_equal(cow_pressure_part(&pressure, 16), 16);
    pressure.level = COW_PRESSURE_MODERATE;
    assert_int_equal(cow_pressure_part(&pressure, 16), 8);
    pressure.level = COW_PRESSURE_CRITICAL;
    assert_int_equal(cow_pressure_part(&pressure, 16), 4);
}

static void
test_consistency(void **state)
{
    struct cow_pressure pressure = { .level = COW_PRESSURE_MODERATE };
    char text[200] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    assert_false(cow_pressure_consistent(&pressure, out));
    fclose(out);
    assert_string_equal(text, "cow_pressure.cause: expected one for level moderate, found 0\n");
    pressure.level = (enum cow_pressure_level)7;
    assert_false(cow_pressure_consistent(&pressure, stderr));
}

static void
test_rest_between_questions(void **state)
{
    assert_int_equal(cow_pressure_rest(0), 0);
    assert_int_equal(cow_pressure_rest(1000 * 1000), 10 * 1000 * 1000);
    assert_int_equal(cow_pressure_rest(COW_PRESSURE_WINDOW_NS), COW_PRESSURE_LONGEST_REST_NS);
    assert_int_equal(cow_pressure_rest(UINT64_MAX), COW_PRESSURE_LONGEST_REST_NS);
}

/* The system's own calls, which the double leaves out. */
static void
test_the_system(void **state)
{
    const struct cow_os_span span = { 0, 1 << 16 };
    char text[8];

    cow_os = &cow_os_system;
    assert_true(cow_os->faults() >= 0);
    const int64_t now = cow_os->clock();
    assert_true(now > 0 && cow_os->clock() >= now);
    assert_true(cow_os_read("/proc/self/status", text, sizeof(text)));
    assert_memory_equal(text, "Name:\t", 6);
    assert_false(cow_os_read("/proc/self/no such file", text, sizeof(text)));
    assert_int_equal(errno, ENOENT);
    assert_false(cow_os_read("/proc/self", text, sizeof(text)));
    assert_int_equal(errno, EISDIR);
    assert_non_null(cow_os_reserve(&span, 1, 1 << 16));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_files, without_files),
        cmocka_unit_test_setup(test_stalls_of_the_machine, without_files),
        cmocka_unit_test_setup(test_stalls_of_the_cgroup, without_files),
        cmocka_unit_test_setup(test_limits_of_v2, without_files),
        cmocka_unit_test_setup(test_a_group_without_the_controller, without_files),
        cmocka_unit_test_setup(test_limits_of_v1, without_files),
        cmocka_unit_test_setup(test_malformed_files, without_files),
        cmocka_unit_test_setup(test_long_texts, without_files),
        cmocka_unit_test_setup(test_memory_of_the_process, without_files),
        cmocka_unit_test(test_killed_processes),
        cmocka_unit_test(test_levels_rise_and_fall),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_part),
        cmocka_unit_test(test_full_collections),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_sums_that_do_not_go_together),
        cmocka_unit_test(test_tree_readings),
        cmocka_unit_test_setup(test_tree_of_processes_that_read_once, without_files),
        cmocka_unit_test_setup(test_tree_sum, without_files),
        cmocka_unit_test_setup(test_tree_sum_of_processes_that_may_not_be_asked, without_files),
        cmocka_unit_test(test_tree_turns),
        cmocka_unit_test(test_tree_with_several_turns),
        cmocka_unit_test(test_rest_between_questions),
        cmocka_unit_test(test_the_system),
        cmocka_unit_test(test_consistency),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

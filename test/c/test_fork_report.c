/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The line before the first fork, and how it is written: cc -I../../gc test_fork_report.c -lcmocka
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>

#define COW_FORK_REPORT_WAIT 20

#include <fcntl.h>
#include <sys/time.h>
#include "fork_report.h"

#define MB ((size_t)1 << 20)

/* What the files of the double hold; NULL: reading gives .error. */
static struct { const char *rollup, *status; int error; } proc;

static ssize_t
double_read(const char *path, char *text, size_t size)
{
    const char *found = strcmp(path, "/proc/self/smaps_rollup") == 0 ? proc.rollup
                      : strcmp(path, "/proc/self/status") == 0 ? proc.status : NULL;

    if (found == NULL) {
        errno = proc.error;
        return -1;
    }
    const size_t length = strlen(found);
    memcpy(text, found, length < size ? length : size);
    return (ssize_t)(length < size ? length : size);
}

static const struct cow_os_calls os_double = { .read = double_read };

static int
without_files(void **state)
{
    cow_os = &os_double;
    proc.rollup = proc.status = NULL;
    proc.error = ENOENT;
    return 0;
}

static void
test_what_the_kernel_says(void **state)
{
    static const char rollup[] = "5500-7fff ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss: 5 kB\n"
                                 "Anonymous:          2048 kB\nLazyFree:    0 kB\n";
    static const char status[] = "Name:\tAnonymous: 7 kB\nVmRSS:\t    400 kB\nRssAnon:\t    1024 kB\n";
    static const struct { const char *rollup, *status; int error; double anonymous; int reason; } cases[] = {
        { rollup, NULL, ENOENT, 2048 * 1024, 0 },
        { rollup, status, ENOENT, 2048 * 1024, 0 },
        { NULL, status, ENOENT, 1024 * 1024, 0 },
        { NULL, NULL, EACCES, -1, EACCES },
        { "", NULL, ENOENT, -1, ENOENT },
        { "", "", ENOENT, -1, 0 },
        { "Anonymous: many kB\n", "RssAnon: -5 kB\n", ENOENT, -1, 0 },
        { "Anonymous:", "RssAnon:", ENOENT, -1, 0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cow_fork_report report = { 0 };
        proc.rollup = cases[i].rollup;
        proc.status = cases[i].status;
        proc.error = cases[i].error;
        cow_fork_report_read(&report);
        assert_true(report.anonymous == cases[i].anonymous);
        assert_int_equal(report.error, cases[i].reason);
    }
}

static void
test_a_file_that_is_too_long(void **state)
{
    char text[2 * COW_FORK_REPORT_FILE];
    struct cow_fork_report report = { 0 };

    memset(text, 'x', sizeof(text));
    memcpy(text + sizeof(text) - 20, "\nAnonymous: 5 kB\n", 18);
    proc.rollup = text;
    cow_fork_report_read(&report);
    assert_true(report.anonymous < 0);
}

static void
test_the_line(void **state)
{
    char line[COW_FORK_REPORT_LINE];
    struct cow_fork_report report = {
        .pid = 4711, .anonymous = 132.5 * MB, .heap_pages = 2893, .sealed_pages = 2880,
        .heap_bytes = 2893 * (size_t)16384, .malloc_bytes = 70 * MB, .vm_bytes = MB / 2, .yjit_bytes = MB
    };

    const int length = cow_fork_report_text(&report, line);
    assert_int_equal(length, strlen(line));
    assert_string_equal(line, "cowruby: process 4711 forks with 132.5 MB of memory that its children can "
                        "share: 45.2 MB in 2893 heap pages (2880 sealed), 70.0 MB of malloc, 0.5 MB of VM "
                        "words, 1.0 MB of YJIT data; to see what they do share: cowruby-memory 4711\n");

    /* Rounded, and without a part in a thousand too much. */
    report.anonymous = 0.96 * MB;
    report.heap_bytes = 10 * MB - 1;
    report.malloc_bytes = 1;
    cow_fork_report_text(&report, line);
    assert_non_null(strstr(line, " 1.0 MB of memory that its children can share: 10.0 MB in 2893 heap pages "
                           "(2880 sealed), 0.0 MB of malloc, "));

    report = (struct cow_fork_report){ .pid = 1, .anonymous = -1, .error = EACCES };
    cow_fork_report_text(&report, line);
    assert_string_equal(line, "cowruby: process 1 forks with memory of which /proc/self does not say how "
                        "much it is (Permission denied): 0.0 MB in 0 heap pages (0 sealed); to see what "
                        "they do share: cowruby-memory 1\n");
    report.error = 0;
    cow_fork_report_text(&report, line);
    assert_non_null(strstr(line, "(the kernel does not count it): "));
}

static void
test_the_longest_line(void **state)
{
    char line[COW_FORK_REPORT_LINE];
    struct cow_fork_report report = {
        .pid = INT32_MAX, .anonymous = 1e18, .heap_pages = SIZE_MAX, .sealed_pages = SIZE_MAX,
        .heap_bytes = SIZE_MAX, .malloc_bytes = SIZE_MAX, .vm_bytes = SIZE_MAX, .yjit_bytes = SIZE_MAX
    };

    for (int error = 0; error < 140; error++) {
        const int length = cow_fork_report_text(&report, line);
        assert_int_equal(length, strlen(line));
        assert_int_equal(line[length - 1], '\n');
        assert_ptr_equal(strchr(line, '\n'), line + length - 1);
        report.anonymous = -1;
        report.error = error;
    }
}

static void
test_standard_error_that_takes_it(void **state)
{
    int ends[2];
    char text[8] = "";

    assert_int_equal(pipe(ends), 0);
    assert_true(cow_fork_report_write(ends[1], "fine\n", 5));
    assert_int_equal(read(ends[0], text, sizeof(text)), 5);
    assert_string_equal(text, "fine\n");
    close(ends[0]);
    close(ends[1]);

    const int file = open("/dev/null", O_WRONLY);
    assert_true(cow_fork_report_write(file, "fine\n", 5));
    close(file);
}

/* A full pipe, a reader that has gone away (SIGPIPE would end this test), no file at all. */
static void
test_standard_error_that_does_not(void **state)
{
    int ends[2];
    char text[4096] = "";

    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], text, sizeof(text)) > 0) ;
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    assert_false(cow_fork_report_write(ends[1], "lost\n", 5));
    close(ends[0]);
    assert_false(cow_fork_report_write(ends[1], "lost\n", 5));
    close(ends[1]);
    assert_false(cow_fork_report_write(ends[1], "lost\n", 5));
    assert_false(cow_fork_report_write(-1, "lost\n", 5));

    const int file = open("/dev/null", O_RDONLY);
    assert_false(cow_fork_report_write(file, "lost\n", 5));
    close(file);
}

static volatile sig_atomic_t signals;

static void
count_signal(int signal)
{
    if (++signals == 2000) abort();
}

/* A profiler's timer may interrupt each wait. */
static void
test_standard_error_that_takes_nothing_while_signals_come(void **state)
{
    const struct itimerval often = { .it_interval.tv_usec = 2000, .it_value.tv_usec = 2000 }, never = { 0 };
    int ends[2];
    char text[4096] = "";

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], text, sizeof(text)) > 0) ;
    signals = 0;
    signal(SIGALRM, count_signal);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_false(cow_fork_report_write(ends[1], "lost\n", 5));
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    signal(SIGALRM, SIG_DFL);
    close(ends[0]);
    close(ends[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_what_the_kernel_says, without_files),
        cmocka_unit_test_setup(test_a_file_that_is_too_long, without_files),
        cmocka_unit_test(test_the_line),
        cmocka_unit_test(test_the_longest_line),
        cmocka_unit_test(test_standard_error_that_takes_it),
        cmocka_unit_test(test_standard_error_that_does_not),
        cmocka_unit_test(test_standard_error_that_takes_nothing_while_signals_come),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

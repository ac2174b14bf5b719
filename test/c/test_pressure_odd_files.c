/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files of the system that hold anything, at random: what is read of them is a number or nothing.
 * COW_FUZZ_SEED: which texts; COW_FUZZ_CASES: how many. A failure prints the seed.
 * cc -I../../gc test_pressure_odd_files.c -lcmocka -lm
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "os.c"
#include "pressure_files.h"
#include "pressure_tree.h"

static uint64_t state;

/* Gives a number below +limit+. */
static unsigned
at_random(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % limit;
}

/* What the files hold where nothing is wrong, and what a kernel has never said. */
static const char *const texts[] = {
    "0::/user.slice/app\n", "12:cpu,memory:/docker/1\n0::/\n", "5:memory:/\n", "0::/../../../..\n",
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    "max\n", "1073741824\n", "9223372036854771712\n", "-1\n", "0\n", "1e400\n", "nan\n", "inf\n", "0x10\n",
    "inactive_file 4096\nactive_file 8192\nslab_reclaimable 512\n", "oom 1\noom_kill 3\n", "low 0\nmax 7\n",
    "MemTotal:       1000 kB\nMemAvailable:    100 kB\n", "Rss: 100 kB\nPss: 50 kB\n", "100 50 20 1 0 30 0\n",
    "", "\n", ":", "::", "0::", "0::/", "memory", "total=", "some ", "some total=1\nfull",
    "\nfull total=18446744073709551616"
};

enum { TEXTS = sizeof(texts) / sizeof(texts[0]), LONGEST = 3 * COW_PRESSURE_TEXT };

/* Writes a text at random to +out+, without a zero at its end; gives its length. */
static size_t
odd_text(char *out)
{
    size_t length = 0;
    const unsigned parts = at_random(4);

    for (unsigned i = 0; i <= parts; i++) {
        const char *text = texts[at_random(TEXTS)];
        const size_t bytes = strlen(text);
        memcpy(out + length, text, bytes);
        length += bytes;
    }
    if (at_random(8) == 0) { /* longer than there is room for */
        const size_t most = at_random(LONGEST - 2048);
        const char fill = (char)at_random(256);
        while (length < most) out[length++] = at_random(16) ? fill : ':';
    }
    for (unsigned changes = at_random(5); changes > 0 && length > 0; changes--) {
        out[at_random((unsigned)length)] = (char)(at_random(3) ? at_random(128) : at_random(256));
    }
    return at_random(6) ? length : at_random((unsigned)length + 1);
}

/* Gives any file another text each time, or none. */
static ssize_t
odd_read(const char *path, char *text, size_t size)
{
    static char made[LONGEST];

    assert_true(strlen(path) < COW_PRESSURE_PATH + 64);
    if (at_random(7) == 0) {
        errno = ENOENT;
        return -1;
    }
    const size_t length = odd_text(made);
    memcpy(text, made, length < size ? length : size);
    return (ssize_t)(length < size ? length : size);
}

/* A share or a number of bytes; -1: none. */
static bool
is_reading(double number, double most)
{
    return number == -1 || (number >= 0 && number <= most);
}

static void
test_odd_files(void **unused)
{
    static struct cow_pressure_files files;
    static struct cow_os_calls os;
    const char *seed = getenv("COW_FUZZ_SEED"), *cases = getenv("COW_FUZZ_CASES");
    const char *const watched[] = { NULL, "", "/dev/null", "/sys/fs/cgroup/x/memory.pressure", "/etc/x" };
    struct cow_pressure_sums sums = { 0 };
    uint64_t now = 1;

    state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) * 2654435761u + (uint64_t)getpid();
    state |= 1;
    print_message("# COW_FUZZ_SEED=%llu\n", (unsigned long long)state);
    (void)cow_os_reserve;
    os = cow_os_system;
    os.read = odd_read;
    cow_os = &os;

    for (long left = cases ? atol(cases) : 100000; left > 0; left--) {
        struct cow_pressure_reading reading = COW_PRESSURE_NO_READING;
        enum cow_pressure_cause cause;
        const enum cow_pressure_mode mode = (enum cow_pressure_mode)at_random(COW_PRESSURE_OFF + 1);

        if (at_random(50) == 0) memset(&sums, 0, sizeof(sums));
        now += at_random(5) == 0 ? at_random(3) : UINT64_C(1000000) * at_random(4000);
        cow_pressure_files_read(&files, &sums, &reading, mode, watched[at_random(5)], now);
        assert_true(is_reading(reading.some, 1.1) && is_reading(reading.full, 1.1));
        assert_true(is_reading(reading.used, 1e30) && is_reading(reading.allowed, COW_PRESSURE_NO_LIMIT));
        assert_true(reading.killed == -1 || reading.killed == 1);
        assert_true(is_reading(cow_pressure_files_taken(&files, (int32_t)at_random(3)), 1e34));
        assert_true(is_reading(cow_pressure_files_resident(&files, "/proc/self"), 1e34));
        cow_pressure_of(&reading, &cause);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_odd_files) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

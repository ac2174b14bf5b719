/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes that compute and nothing else, to see how a scheduler divides CPUs.
 *
 * usage: spin MS PROCESS...
 *   PROCESS: THREADS[,nice=N][,cgroup=DIRECTORY][,cpu=N[-N]][,rest=MS/MS][,hand=MS][,hop=MS][,fifo][,yield]
 * nice: for all of its threads. cgroup: a directory with cgroup.procs. cpu: its threads may run on that one
 * alone, or from one to another. rest: runs so many ms of CPU time, then sleeps so many. hand: its threads
 * hand on to one another: one runs so many ms, then wakes the next and sleeps. hop: every so many ms each of
 * its threads is sent to other CPUs, whatever it does at the moment: to CPU 0, to CPU 1, to these two. fifo:
 * it is forked by a thread of SCHED_FIFO that has computed for half a second, and is of SCHED_OTHER itself.
 * yield: its threads call sched_yield again and again.
 * Prints one line of JSON: for each process the ms of CPU time that each thread had in MS ms, which begin
 * when all threads are there, its pid, and how often its threads were sent to other CPUs. Status 1 and a line
 * on standard error where the system refuses.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 64
#define THREADS 256
#define OPTIONS "[,nice=N][,cgroup=DIRECTORY][,cpu=N[-N]][,rest=MS/MS][,hand=MS][,hop=MS][,fifo][,yield]"

struct shared {
    double start, end; /* ms of the monotonic clock; 0: not yet known */
    int ready;
    pid_t pid[PROCESSES];
    int hops[PROCESSES];
    double used[PROCESSES][THREADS];
};

struct process {
    int threads, nice, cpu, cpu_to, yields, fifo;
    double runs, sleeps, hand, hop;
    char cgroup[200];
};

static struct shared *shared;
static struct process given[PROCESSES];
static int mine;
static sem_t turn[THREADS];

static void __attribute__((noreturn))
fail(const char *what)
{
    fprintf(stderr, "spin: error: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double
ms(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void
pause_ms(double time)
{
    struct timespec pause = { time / 1e3, (time - (long)(time / 1e3) * 1e3) * 1e6 };
    nanosleep(&pause, NULL);
}

/* What a thread had before the start counts from its last look at the clock before it: while it waits, its
 * CPU time stands still. */
static void *
spin(void *argument)
{
    struct process *process = &given[mine];
    double from = 0, to = 0, slept_at = 0;
    volatile double *start = &shared->start, *end = &shared->end;
    int number = (double *)argument - shared->used[mine];
    sem_t *next = &turn[(number + 1) % process->threads];

    __atomic_fetch_add(&shared->ready, 1, __ATOMIC_RELAXED);
    while (*start == 0) pause_ms(5);
    if (process->hand && number > 0) sem_wait(&turn[number]);
    for (;;) {
        for (volatile int i = 0; i < 20000; i++);
        if (process->yields) sched_yield();
        double used = ms(CLOCK_THREAD_CPUTIME_ID), now = ms(CLOCK_MONOTONIC);
        if (now >= *end) break;
        if (now < *start) from = used;
        to = used;
        if (process->sleeps && used - slept_at >= process->runs) {
            pause_ms(process->sleeps);
            slept_at = used;
        }
        if (process->hand && used - slept_at >= process->hand) {
            slept_at = used;
            sem_post(next);
            sem_wait(&turn[number]);
        }
    }
    sem_post(next);
    *(double *)argument = to - from;
    return NULL;
}

static void
hop(struct process *process, pthread_t *threads)
{
    volatile double *end = &shared->end;

    for (int turn = 0; *end == 0 || ms(CLOCK_MONOTONIC) < *end; turn++) {
        for (int i = 0; i < process->threads; i++) {
            int step = (turn + i) % 3;
            cpu_set_t cpus;
            CPU_ZERO(&cpus);
            if (step != 1) CPU_SET(0, &cpus);
            if (step != 0) CPU_SET(1, &cpus);
            errno = pthread_setaffinity_np(threads[i], sizeof cpus, &cpus);
            if (errno && errno != ESRCH) fail("hop"); /* ESRCH: it has ended */
            shared->hops[mine]++;
        }
        pause_ms(process->hop);
    }
}

static void
run(void)
{
    struct process *process = &given[mine];
    pthread_t threads[THREADS];
    cpu_set_t cpus;

    if (*process->cgroup) {
        char path[256], line[32];
        snprintf(path, sizeof path, "%s/cgroup.procs", process->cgroup);
        int file = open(path, O_WRONLY);
        int length = snprintf(line, sizeof line, "%d\n", getpid());
        if (file < 0 || write(file, line, length) != length) fail(path);
        close(file);
    }
    if (setpriority(PRIO_PROCESS, 0, process->nice)) fail("nice");
    CPU_ZERO(&cpus);
    if (process->cpu >= 0) {
        for (int cpu = process->cpu; cpu <= process->cpu_to; cpu++) CPU_SET(cpu, &cpus);
        if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("cpu");
    }
    for (int i = 0; i < process->threads; i++) {
        if ((errno = pthread_create(&threads[i], NULL, spin, &shared->used[mine][i]))) fail("thread");
    }
    if (process->hop) hop(process, threads);
    for (int i = 0; i < process->threads; i++) pthread_join(threads[i], NULL);
    exit(0);
}

/* fork, by a real-time thread whose children are not. */
static pid_t
fork_as_fifo(void)
{
    struct sched_param first = { .sched_priority = 1 }, none = { 0 };

    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first)) fail("fifo");
    double until = ms(CLOCK_THREAD_CPUTIME_ID) + 500;
    while (ms(CLOCK_THREAD_CPUTIME_ID) < until);
    pid_t child = fork();
    if (child > 0 && sched_setscheduler(0, SCHED_OTHER, &none)) fail("no longer fifo");
    return child;
}

static int
read_process(struct process *process, char *text)
{
    char *save, *word = strtok_r(text, ",", &save);
    process->cpu = -1;
    process->threads = word ? atoi(word) : 0;
    while ((word = strtok_r(NULL, ",", &save))) {
        if (sscanf(word, "nice=%d", &process->nice) == 1) continue;
        int found = sscanf(word, "cpu=%d-%d", &process->cpu, &process->cpu_to);
        if (found == 1) process->cpu_to = process->cpu;
        if (found >= 1) continue;
        if (sscanf(word, "hand=%lf", &process->hand) == 1) continue;
        if (sscanf(word, "hop=%lf", &process->hop) == 1) continue;
        if (!strcmp(word, "fifo") && (process->fifo = 1)) continue;
        if (!strcmp(word, "yield") && (process->yields = 1)) continue;
        if (sscanf(word, "cgroup=%199s", process->cgroup) == 1) continue;
        if (sscanf(word, "rest=%lf/%lf", &process->runs, &process->sleeps) == 2) continue;
        return 0;
    }
    return process->threads > 0 && process->threads <= THREADS;
}

int
main(int argc, char **argv)
{
    int count = argc - 2, threads = 0, status, failed = 0;
    double time = argc > 1 ? atof(argv[1]) : 0;

    if (count < 1 || count > PROCESSES || time <= 0) {
        fputs("usage: spin MS THREADS" OPTIONS "...\n", stderr);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("memory");
    for (mine = 0; mine < count; mine++) {
        if (!read_process(&given[mine], argv[mine + 2])) {
            fprintf(stderr, "spin: error: process %d is not THREADS" OPTIONS "\n", mine + 1);
            return 2;
        }
        threads += given[mine].threads;
    }
    for (mine = 0; mine < count; mine++) {
        pid_t child = given[mine].fifo ? fork_as_fifo() : fork();
        if (child < 0) fail("fork");
        if (child == 0) run();
        shared->pid[mine] = child;
    }
    while (__atomic_load_n(&shared->ready, __ATOMIC_RELAXED) < threads) {
        if (waitpid(-1, &status, WNOHANG) > 0) {
            fputs("spin: error: a process has ended before it was ready\n", stderr);
            return 1;
        }
        pause_ms(5);
    }
    double start = ms(CLOCK_MONOTONIC) + 200;
    shared->end = start + time;
    shared->start = start;
    while (wait(&status) > 0) failed |= status;
    printf("{\"ms\": %.0f, \"processes\": [", time);
    for (int i = 0; i < count; i++) {
        printf("%s{\"pid\": %d, \"nice\": %d, \"threads\": [", i ? ", " : "", shared->pid[i], given[i].nice);
        for (int j = 0; j < given[i].threads; j++) printf("%s%.3f", j ? ", " : "", shared->used[i][j]);
        printf("], \"hops\": %d}", shared->hops[i]);
    }
    printf("]}\n");
    return failed ? 1 : 0;
}

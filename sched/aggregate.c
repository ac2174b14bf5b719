/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads the scheduler of aggregate.bpf.c into the kernel and the observer of observe.bpf.c beside it, prints
 * what they count, and hands back to the kernel's own scheduler when it ends, however it ends: the kernel
 * unloads a scheduler when the process that holds it is gone.
 *
 * The two BPF objects stand inside this program (BPF_OBJECTS names their directory at build time).
 * Status: 0 ended as asked; 1 the kernel ended the scheduler, or something failed, with one line that says
 * what and what to do; 2 wrong arguments.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include "policy.h"

#define SHOWN 20 /* processes that are printed; all are in the JSON */

#define EMBED(name, file)                                              \
    __asm__(".pushsection .rodata\n.balign 8\n.global " #name "\n"      \
            #name ": .incbin \"" BPF_OBJECTS "/" file "\"\n"            \
            ".global " #name "_end\n" #name "_end:\n.popsection\n");    \
    extern const char name[], name##_end[]

EMBED(aggregate_object, "aggregate.bpf.o");
EMBED(observe_object, "observe.bpf.o");

static struct {
    double bonus, slice, credit, interval, seconds, watchdog; /* ms, ms, ms, s, s, s */
    bool rule, homes, verify, stall, schedule, statistics, verbose;
    const char *json;
    int cycles;
} options = { .bonus = 5, .slice = 5, .credit = 5, .watchdog = 10, .rule = true, .schedule = true,
              .statistics = true };

static volatile sig_atomic_t stop;
static char heard[4096]; /* libbpf's last warnings */

static void __attribute__((noreturn, format(printf, 1, 2)))
die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("aggregate: error: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static const char usage[] =
    "usage: aggregate [options]\n"
    "Schedules threads of one address space one after the other, until it is ended (Ctrl-C, kill).\n"
    "  --bonus MS      how far behind the head such a thread may be and still go first (5)\n"
    "  --slice MS      how long a thread runs before others get their turn (5)\n"
    "  --credit MS     how far behind the others a thread is at most that has slept (5)\n"
    "  --no-rule       virtual time alone, in one queue: what the rule is to be compared with\n"
    "  --homes         processor aggregation: a home CPU for each address space\n"
    "  --watchdog S    the kernel ends a scheduler that lets a thread wait so long (10; at most 30)\n"
    "  --observe       attaches no scheduler; counts what the present one does\n"
    "  --no-statistics counts nothing by process\n"
    "  --interval S    prints the counts every so many seconds, beside once at the end\n"
    "  --seconds S     ends by itself\n"
    "  --json FILE     writes the counts at the end to FILE as well\n"
    "  --verify        for tests, one CPU: compares each decision with the rule, slowly\n"
    "  --stall         for tests: dispatches nothing, until the watchdog ends it\n"
    "  --cycles N      for tests: attaches and is killed N times, then reports\n"
    "  --verbose       what libbpf says\n";

static double
number(const char *name, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) {
        fprintf(stderr, "aggregate: error: --%s takes a number from %g to %g, not '%s'\n", name, least, most,
                text);
        exit(2);
    }
    return value;
}

static void
read_arguments(int argc, char **argv)
{
    enum { BONUS = 1, SLICE, CREDIT, NO_RULE, HOMES, WATCHDOG, OBSERVE, NO_STATISTICS, INTERVAL, SECONDS,
           JSON, VERIFY, STALL, CYCLES, VERBOSE, HELP };
    static const struct option known[] = {
        { "bonus", 1, 0, BONUS }, { "slice", 1, 0, SLICE }, { "credit", 1, 0, CREDIT },
        { "no-rule", 0, 0, NO_RULE }, { "homes", 0, 0, HOMES }, { "watchdog", 1, 0, WATCHDOG },
        { "observe", 0, 0, OBSERVE }, { "no-statistics", 0, 0, NO_STATISTICS },
        { "interval", 1, 0, INTERVAL }, { "seconds", 1, 0, SECONDS }, { "json", 1, 0, JSON },
        { "verify", 0, 0, VERIFY }, { "stall", 0, 0, STALL }, { "cycles", 1, 0, CYCLES },
        { "verbose", 0, 0, VERBOSE },
        { "help", 0, 0, HELP }, { 0, 0, 0, 0 }
    };
    int option, index;

    while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
        const char *name = option == '?' ? NULL : known[index].name;
        switch (option) {
          case BONUS: options.bonus = number(name, optarg, 0, 10000); break;
          case SLICE: options.slice = number(name, optarg, 0.1, 1000); break;
          case CREDIT: options.credit = number(name, optarg, 0, 10000); break;
          case NO_RULE: options.rule = false; break;
          case HOMES: options.homes = true; break;
          case WATCHDOG: options.watchdog = number(name, optarg, 0.1, 30); break;
          case OBSERVE: options.schedule = false; break;
          case NO_STATISTICS: options.statistics = false; break;
          case INTERVAL: options.interval = number(name, optarg, 0.1, 86400); break;
          case SECONDS: options.seconds = number(name, optarg, 0.1, 1e9); break;
          case JSON: options.json = optarg; break;
          case VERIFY: options.verify = true; break;
          case STALL: options.stall = true; break;
          case CYCLES: options.cycles = number(name, optarg, 1, 1e6); break;
          case VERBOSE: options.verbose = true; break;
          case HELP: fputs(usage, stdout); exit(0);
          default: fputs("aggregate --help lists the options\n", stderr); exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "aggregate: error: unknown argument '%s'; see aggregate --help\n", argv[optind]);
        exit(2);
    }
    if (options.homes && !options.rule) {
        fputs("aggregate: error: --homes is a part of the rule; leave --no-rule out\n", stderr);
        exit(2);
    }
}

/* first_line(path, line, size): false, if there is no such file that can be read. */
static bool
first_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool read = fgets(line, size, file) != NULL;
    fclose(file);
    if (!read) *line = 0;
    line[strcspn(line, "\n")] = 0;
    return true;
}

/* Says what this machine lacks, before libbpf does in its own words. */
static void
check_kernel(void)
{
    struct utsname kernel;
    char line[256];

    uname(&kernel);
    if (options.schedule && access("/sys/kernel/sched_ext", F_OK))
        die("this kernel (%s) has no sched_ext; take one that was built with CONFIG_SCHED_CLASS_EXT (tried: "
            "7.2)", kernel.release);
    if (access("/sys/kernel/btf/vmlinux", F_OK))
        die("this kernel (%s) has no BTF in /sys/kernel/btf/vmlinux; take one that was built with "
            "CONFIG_DEBUG_INFO_BTF", kernel.release);
    if (options.schedule && first_line("/sys/kernel/sched_ext/state", line, sizeof line) &&
            strcmp(line, "disabled")) {
        char name[128] = "";
        first_line("/sys/kernel/sched_ext/root/ops", name, sizeof name);
        die("another scheduler (%s) is attached, and the kernel takes one at a time; end that one first",
            *name ? name : line);
    }
    if (sysconf(_SC_NPROCESSORS_CONF) > CPUS)
        die("this machine has %ld CPUs, and %d is the most; build with another CPUS in policy.h",
            sysconf(_SC_NPROCESSORS_CONF), CPUS);
}

static int
listen(enum libbpf_print_level level, const char *format, va_list arguments)
{
    char line[1024];
    size_t used = strlen(heard);

    if (options.verbose) return vfprintf(stderr, format, arguments);
    int length = vsnprintf(line, sizeof line, format, arguments);
    if (level != LIBBPF_WARN || length <= 0) return 0;
    if (used + length >= sizeof heard) used = 0;
    snprintf(heard + used, sizeof heard - used, "%s", line);
    return 0;
}

/* fail(what, error): error is a negative errno from libbpf. */
static void __attribute__((noreturn))
fail(const char *what, int error)
{
    if (error == -EPERM || error == -EACCES) {
        if (geteuid())
            die("%s: no right to; run it as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON", what);
        die("%s: the kernel forbids it (%s), in a container or locked down, perhaps; see --verbose", what,
            strerror(-error));
    }
    if (error == -EBUSY) die("%s: another scheduler is attached already; end that one first", what);
    if (!options.verbose && *heard) fputs(heard, stderr);
    die("%s: %s; this kernel may be too old or too new for it (tried: 7.2)", what, strerror(-error));
}

static struct bpf_object *
open_object(const char *start, const char *end, const char *name)
{
    LIBBPF_OPTS(bpf_object_open_opts, given, .object_name = name);
    struct bpf_object *object = bpf_object__open_mem(start, end - start, &given);
    if (!object) fail("opening the BPF object", -errno);
    return object;
}

static void *
section(struct bpf_object *object, const char *name, size_t size)
{
    struct bpf_map *map;
    size_t found = 0;

    bpf_object__for_each_map(map, object) {
        if (strcmp(bpf_map__name(map), name)) continue;
        void *data = bpf_map__initial_value(map, &found);
        if (data && found >= size) return data;
    }
    die("the BPF object has no %s of %zu bytes; build it anew", name, size);
}

static void
attach_map(struct bpf_object *object)
{
    if (!bpf_map__attach_struct_ops(bpf_object__find_map_by_name(object, "aggregate")))
        fail("attaching the scheduler", -errno);
}

static struct bpf_object *
load_scheduler(void)
{
    struct bpf_object *object = open_object(aggregate_object, aggregate_object_end, "aggregate");
    struct settings *settings = section(object, ".rodata.settings", sizeof *settings);
    struct bpf_map *map = bpf_object__find_map_by_name(object, "aggregate");
    size_t size;
    int error;

    *settings = (struct settings){
        .bonus = options.bonus * 1e6, .slice = options.slice * 1e6, .credit = options.credit * 1e6,
        .cpus = sysconf(_SC_NPROCESSORS_CONF), .rule = options.rule,
        .homes = options.homes && sysconf(_SC_NPROCESSORS_CONF) > 1, .verify = options.verify,
        .stall = options.stall,
    };
    if (!map) die("the BPF object has no scheduler; build it anew");
    /* Found by BTF, as its place in the struct is another one from release to release. */
    const struct btf *btf = bpf_object__btf(object);
    int id = btf__find_by_name_kind(btf, "sched_ext_ops", BTF_KIND_STRUCT);
    const struct btf_type *type = btf__type_by_id(btf, id);
    char *image = bpf_map__initial_value(map, &size);
    for (int i = 0; type && image && i < (int)BTF_INFO_VLEN(type->info); i++) {
        const struct btf_member *member = (const struct btf_member *)(type + 1) + i;
        if (strcmp(btf__name_by_offset(btf, member->name_off), "timeout_ms")) continue;
        *(unsigned *)(image + member->offset / 8) = options.watchdog * 1000;
    }
    if ((error = bpf_object__load(object))) fail("loading the scheduler", error);
    return object;
}

/* has_ended(object, ending): has the kernel ended it? */
static bool
has_ended(struct bpf_object *object, struct ending *ending)
{
    unsigned key = 0;
    struct bpf_map *map;

    bpf_object__for_each_map(map, object) {
        if (!strcmp(bpf_map__name(map), ".data.ending"))
            return !bpf_map__lookup_elem(map, &key, sizeof key, ending, sizeof *ending, 0) && ending->kind;
    }
    die("the BPF object has no .data.ending; build it anew");
}

static struct bpf_object *
attach_observer(void)
{
    struct bpf_object *object = open_object(observe_object, observe_object_end, "observe");
    struct bpf_program *program;
    int error = bpf_object__load(object);

    if (error) fail("loading the observer", error);
    bpf_object__for_each_program(program, object)
        if (!bpf_program__attach(program)) fail("attaching the observer", -errno);
    return object;
}

/* Counts */

struct row {
    unsigned pid;
    struct waits waits;
};

static struct row rows[PROCESSES];

static int
by_run(const void *a, const void *b)
{
    unsigned long long x = ((const struct row *)a)->waits.run, y = ((const struct row *)b)->waits.run;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int
read_rows(struct bpf_object *observer, struct waits *total)
{
    int map = bpf_object__find_map_fd_by_name(observer, "processes"), count = 0;
    unsigned key, *previous = NULL;

    memset(total, 0, sizeof *total);
    while (count < PROCESSES && !bpf_map_get_next_key(map, previous, &key)) {
        struct row *row = &rows[count];
        row->pid = key;
        previous = &row->pid;
        if (bpf_map_lookup_elem(map, &key, &row->waits)) continue;
        total->switches += row->waits.switches;
        total->space_switches += row->waits.space_switches;
        total->waits += row->waits.waits;
        total->wait_total += row->waits.wait_total;
        total->run += row->waits.run;
        if (row->waits.wait_longest > total->wait_longest) total->wait_longest = row->waits.wait_longest;
        count++;
    }
    qsort(rows, count, sizeof *rows, by_run);
    return count;
}

static void
read_decisions(struct bpf_object *scheduler, struct decisions *sum)
{
    int map = bpf_object__find_map_fd_by_name(scheduler, "decisions"), cpus = libbpf_num_possible_cpus();
    struct decisions *each = calloc(cpus, sizeof *each);
    unsigned key = 0;

    memset(sum, 0, sizeof *sum);
    if (each && !bpf_map_lookup_elem(map, &key, each)) {
        for (int cpu = 0; cpu < cpus; cpu++) {
            const unsigned long long *from = (const void *)&each[cpu];
            unsigned long long *to = (void *)sum;
            for (size_t i = 0; i < offsetof(struct decisions, lead) / sizeof *to; i++) to[i] += from[i];
            if (each[cpu].lead > sum->lead) sum->lead = each[cpu].lead;
        }
    }
    free(each);
}

static void
print_waits(const char *label, unsigned pid, const struct waits *w)
{
    printf("%7u %-16s %10llu %10llu %12.3f %12.3f %12.1f\n", pid, label, w->switches, w->space_switches,
           w->waits ? w->wait_total / 1e6 / w->waits : 0, w->wait_longest / 1e6, w->run / 1e6);
}

static void
print_counts(struct bpf_object *scheduler, struct bpf_object *observer)
{
    struct decisions d;
    struct waits total;

    if (scheduler) {
        read_decisions(scheduler, &d);
        printf("dispatched %llu: %llu by the rule, %llu because of its bound; went on %llu; address spaces "
               "taken %llu, threads taken %llu; without a slot %llu\n", d.dispatches, d.by_rule, d.by_bound,
               d.kept, d.taken, d.spilled, d.crowded);
        if (options.verify)
            printf("decisions compared with the rule %llu, wrong %llu, greatest lead %.3f ms\n", d.verified,
                   d.wrong, d.lead / 1e6);
    }
    if (observer) {
        int count = read_rows(observer, &total);
        printf("%7s %-16s %10s %10s %12s %12s %12s\n", "process", "", "switches", "of space", "mean wait ms",
               "longest ms", "ran ms");
        for (int i = 0; i < count && i < SHOWN; i++)
            print_waits(rows[i].waits.name, rows[i].pid, &rows[i].waits);
        print_waits("all", 0, &total);
    }
    fflush(stdout);
}

/* Control characters and quotes in a process's name would end the string. */
static void
write_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        unsigned char c = *text;
        if (c < 0x20 || c >= 0x7f) fprintf(file, "\\u%04x", c);
        else if (c == '"' || c == '\\') fprintf(file, "\\%c", c);
        else fputc(c, file);
    }
    fputc('"', file);
}

static void
write_count(FILE *file, const char *name, unsigned long long value)
{
    fprintf(file, "\"%s\": %llu, ", name, value);
}

static void
write_waits(FILE *file, const struct waits *w)
{
    write_count(file, "switches", w->switches);
    write_count(file, "address_space_switches", w->space_switches);
    write_count(file, "waits", w->waits);
    fprintf(file, "\"wait_total_ms\": %.3f, \"longest_wait_ms\": %.3f, \"ran_ms\": %.3f", w->wait_total / 1e6,
            w->wait_longest / 1e6, w->run / 1e6);
}

static void
write_decisions(FILE *file, const struct decisions *d)
{
    write_count(file, "dispatches", d->dispatches);
    write_count(file, "by_rule", d->by_rule);
    write_count(file, "by_bound", d->by_bound);
    write_count(file, "kept", d->kept);
    write_count(file, "taken", d->taken);
    write_count(file, "spilled", d->spilled);
    write_count(file, "crowded", d->crowded);
    write_count(file, "verified", d->verified);
    write_count(file, "wrong", d->wrong);
    fprintf(file, "\"lead_ms\": %.3f", d->lead / 1e6);
}

static void
write_json(struct bpf_object *scheduler, struct bpf_object *observer, const struct ending *ending)
{
    FILE *file = fopen(options.json, "w");
    struct decisions d;
    struct waits total;

    if (!file) die("%s cannot be written: %s", options.json, strerror(errno));
    fprintf(file, "{\"policy\": \"%s\", \"bonus_ms\": %g, \"slice_ms\": %g, \"credit_ms\": %g, \"homes\": %s",
            !scheduler ? "default" : options.rule ? "rule" : "scx", options.bonus, options.slice,
            options.credit, options.homes ? "true" : "false");
    if (scheduler) {
        read_decisions(scheduler, &d);
        fputs(",\n \"decisions\": {", file);
        write_decisions(file, &d);
        fputs("}", file);
        fprintf(file, ",\n \"ending\": {\"kind\": %d, \"reason\": ", ending->kind);
        write_string(file, ending->reason);
        fputs(", \"message\": ", file);
        write_string(file, ending->message);
        fputs("}", file);
    }
    if (observer) {
        int count = read_rows(observer, &total);
        fputs(",\n \"all\": {", file);
        write_waits(file, &total);
        fputs("},\n \"processes\": [", file);
        for (int i = 0; i < count; i++) {
            fprintf(file, "%s\n  {\"pid\": %u, \"name\": ", i ? "," : "", rows[i].pid);
            write_string(file, rows[i].waits.name);
            fputs(", ", file);
            write_waits(file, &rows[i].waits);
            fputs("}", file);
        }
        fputs("]", file);
    }
    fputs("}\n", file);
    if (ferror(file) | fclose(file)) die("%s cannot be written: %s", options.json, strerror(errno));
}

/* Attaches in a child, kills that at a random moment, waits until the kernel has its own scheduler back, and
 * so on. The BPF programs are loaded once. Prints how often the child was attached when it was killed. */
static void
cycle(struct bpf_object *scheduler)
{
    int attached = 0, waited = 0;
    char line[64];

    srand(1);
    for (int i = 0; i < options.cycles; i++) {
        int ready[2];
        char byte;
        if (pipe(ready)) die("pipe: %s", strerror(errno));
        pid_t child = fork();
        if (child < 0) die("fork: %s", strerror(errno));
        if (child == 0) {
            attach_map(scheduler);
            if (write(ready[1], "", 1) != 1) _exit(1);
            for (;;) pause();
        }
        close(ready[1]);
        /* Two of three are killed some time after they have attached, the third wherever they are. */
        if (i % 3 && read(ready[0], &byte, 1) != 1) {
            waitpid(child, NULL, 0);
            die("cycle %d: the scheduler could not be attached (see above)", i);
        }
        struct timespec pause = { 0, rand() % 40000000 };
        nanosleep(&pause, NULL);
        if (i % 3) attached++;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        for (int tries = 0; ; tries++) {
            bool known = first_line("/sys/kernel/sched_ext/state", line, sizeof line);
            if (known && !strcmp(line, "disabled")) break;
            if (tries > 3000) die("cycle %d: the kernel's scheduler is not back after 30 s (%s)", i, line);
            struct timespec moment = { 0, 10000000 };
            nanosleep(&moment, NULL);
            waited++;
        }
    }
    printf("cycles %d: killed while attached %d, waited for the kernel %d times\n", options.cycles, attached,
           waited);
}

static void
on_signal(int number)
{
    (void)number;
    stop = 1;
}

static double
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int
main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = on_signal };
    struct bpf_object *scheduler = NULL, *observer = NULL;
    static struct ending ending;

    read_arguments(argc, argv);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    libbpf_set_print(listen);
    check_kernel();
    if (options.statistics) observer = attach_observer();
    if (options.schedule) scheduler = load_scheduler();
    if (options.cycles && scheduler) {
        cycle(scheduler);
        return 0;
    }
    if (scheduler) attach_map(scheduler);
    puts(scheduler ? "attached" : "observing");
    fflush(stdout);

    double end = options.seconds ? now() + options.seconds : 0;
    double next = options.interval ? now() + options.interval : 0;
    while (!stop && !(scheduler && has_ended(scheduler, &ending))) {
        double rest = 0.1, at = now();
        if (end && at >= end) break;
        if (end && end - at < rest) rest = end - at;
        if (next && at >= next) {
            print_counts(scheduler, observer);
            next += options.interval;
        }
        struct timespec pause = { 0, rest * 1e9 };
        nanosleep(&pause, NULL);
    }

    print_counts(scheduler, observer);
    if (options.json) write_json(scheduler, observer, &ending);
    if (ending.kind)
        die("the kernel ended the scheduler and is back with its own: %s%s%s", ending.reason,
            *ending.message ? ": " : "", ending.message);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads the scheduler of aggregate.bpf.c into the kernel and the observer of observe.bpf.c beside it, prints
 * what they count, and hands back to the kernel's own scheduler when it ends, however it ends: the kernel
 * unloads a scheduler when the process that holds it is gone. When a CPU comes or goes, the kernel unloads it
 * too, and asks to have it again: then it is loaded anew.
 *
 * The two BPF objects stand inside this program (BPF_OBJECTS names their directory at build time).
 * Status: 0 ended as asked; 1 the kernel ended the scheduler, or something failed, with one line that says
 * what and what to do; 2 wrong arguments.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include "policy.h"

#define SHOWN 20    /* processes that are printed; all are in the JSON */
#define NAMES 256   /* names of processes that have ended and whose rows were removed */
#define FULL (PROCESSES / 2) /* rows, at which those of processes that have ended are removed */
#define TICK_MS 10  /* the longest time between two ticks of a kernel */
#define RESTART (1LL << 48) /* in ending.code: the kernel asks to have the scheduler again */

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
    const char *given[32]; /* names of the options that were given */
} options = { .bonus = 5, .slice = 5, .credit = 5, .watchdog = 10, .rule = true, .schedule = true,
              .statistics = true };

static volatile sig_atomic_t stop;
static int json = -1; /* the file that --json names */
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

static void __attribute__((format(printf, 1, 2)))
warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("aggregate: warning: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

static const char usage[] =
    "usage: aggregate [options]\n"
    "Schedules threads of one address space one after the other, until it is ended (Ctrl-C, kill).\n"
    "  --bonus MS      how far ahead of the head such a thread may be and still go first (5)\n"
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

static int
whole_number(const char *name, const char *text, int least, int most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most) {
        fprintf(stderr, "aggregate: error: --%s takes a whole number from %d to %d, not '%s'\n", name, least,
                most, text);
        exit(2);
    }
    return value;
}

/* given(name): was this option given? */
static bool
given(const char *name)
{
    for (int i = 0; options.given[i]; i++)
        if (!strcmp(options.given[i], name)) return true;
    return false;
}

/* An option that has no effect beside another one is a mistake. */
static void
refuse_idle_options(void)
{
    static const struct { const char *beside, *idle[12]; } pairs[] = {
        { "observe", { "bonus", "slice", "credit", "no-rule", "homes", "watchdog", "verify", "stall",
                       "cycles", "no-statistics" } },
        { "no-rule", { "bonus", "homes", "verify" } },
        { "cycles", { "interval", "seconds", "json", "stall", "verify" } },
        { "stall", { "bonus", "slice", "credit", "no-rule", "homes", "verify" } }, /* it decides nothing */
        { "verify", { "homes" } }, /* one CPU */
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!given(pairs[i].beside)) continue;
        for (const char *const *idle = pairs[i].idle; *idle; idle++) {
            if (!given(*idle)) continue;
            fprintf(stderr, "aggregate: error: --%s has no effect beside --%s; leave one of them out\n",
                    *idle, pairs[i].beside);
            exit(2);
        }
    }
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
    int option, index, count = 0;

    while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
        const char *name = option == '?' ? NULL : known[index].name;
        if (name && !given(name) && count < (int)(sizeof options.given / sizeof *options.given) - 1)
            options.given[count++] = name;
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
          case CYCLES: options.cycles = whole_number(name, optarg, 1, 1000000); break;
          case VERBOSE: options.verbose = true; break;
          case HELP: fputs(usage, stdout); exit(0);
          default: fputs("aggregate --help lists the options\n", stderr); exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "aggregate: error: unknown argument '%s'; see aggregate --help\n", argv[optind]);
        exit(2);
    }
    refuse_idle_options();
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

/* check_functions(release): has the kernel the newest of the functions that the scheduler calls? */
static void
check_functions(const char *release)
{
    static const char newest[] = "scx_bpf_dsq_peek";
    struct btf *kernel = btf__load_vmlinux_btf();

    if (!kernel) die("/sys/kernel/btf/vmlinux cannot be read: %s", strerror(errno));
    if (btf__find_by_name_kind(kernel, newest, BTF_KIND_FUNC) < 0)
        die("the sched_ext of this kernel (%s) is too old: it has no %s, which came with 6.19; take a newer "
            "one (tried: 7.2)", release, newest);
    btf__free(kernel);
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
    if (options.schedule) check_functions(kernel.release);
}

/* What is at work now. Numbers of CPUs may have gaps: CPUs that are off. */
static struct { int online, highest; } processors;

static void
count_processors(void)
{
    char line[4096], *at = line;

    processors.online = processors.highest = 0;
    if (!first_line("/sys/devices/system/cpu/online", line, sizeof line))
        die("/sys/devices/system/cpu/online cannot be read: %s", strerror(errno));
    while (*at) {
        int first = strtol(at, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;
        processors.online += last - first + 1;
        processors.highest = last;
        if (*at != ',') break;
        at++;
    }
    if (*at || processors.online < 1) die("/sys/devices/system/cpu/online has no list of CPUs: %s", line);
    if (processors.highest >= CPUS)
        die("this machine has a CPU with the number %d, and %d is the highest; build with another CPUS in "
            "policy.h", processors.highest, CPUS - 1);
    if (options.homes && processors.online == 1) warn("--homes has no effect on one CPU");
    if (options.verify && processors.highest > 0)
        die("--verify compares decisions on one CPU only, and this machine has more");
}

/* By how much the head is known: the bonus; no more than the credit, or 1 ms. */
static double
near_in_ms(void)
{
    double near = options.credit > 1 ? options.credit : 1;
    return near < options.bonus ? near : options.bonus;
}

/* In how many cgroups there is a cpu.max, which this scheduler does not know, and the first of them. */
static struct { int count; char first[256]; } limited;

static int
look_at_limit(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    char line[64];

    (void)status;
    if (type != FTW_F || strcmp(path + walk->base, "cpu.max")) return 0;
    if (!first_line(path, line, sizeof line) || !*line || !strncmp(line, "max ", 4)) return 0;
    if (!limited.count++) snprintf(limited.first, sizeof limited.first, "%s", path);
    return 0;
}

/* Says what will not be as the user may expect. */
static void
warn_of_limits(void)
{
    /* Of nice 0, as the README says. */
    double bonus = options.rule ? 2 * options.bonus + near_in_ms() : 0;
    double apart = bonus + options.credit + 2 * (options.slice + TICK_MS);

    if (apart > options.watchdog * 500)
        warn("with a bonus of %g ms a thread may wait %g ms for each other one (slice %g ms, credit %g ms), "
             "and the kernel ends the scheduler where one waits %g s; take less of these or a longer "
             "--watchdog",
             options.rule ? options.bonus : 0, apart, options.slice, options.credit, options.watchdog);
    nftw("/sys/fs/cgroup", look_at_limit, 16, FTW_PHYS | FTW_MOUNT);
    if (limited.count)
        warn("%s has no effect while this scheduler is attached: its processes may use more CPU time than it "
             "says%s", limited.first, limited.count > 1 ? " (and so in other cgroups)" : "");
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

static struct bpf_link *
attach_map(struct bpf_object *object)
{
    struct bpf_link *link = bpf_map__attach_struct_ops(bpf_object__find_map_by_name(object, "aggregate"));
    if (!link) fail("attaching the scheduler", -errno);
    return link;
}

/* set_policy(settings): what follows from the options. On one CPU nothing is lost by the carry: nobody is
 * ahead of the head by more than the bonus and a slice. With homes a CPU sees that another one is behind when
 * it is ahead of that by as much, and may be a slice and a bonus further. */
static void
set_policy(struct settings *settings)
{
    bool homes = options.homes && processors.highest > 0;
    double apart = options.bonus + options.slice, carry = homes ? 2 * apart : apart;
    double weight = 1024;

    *settings = (struct settings){
        .bonus = options.bonus * 1e6, .slice = options.slice * 1e6, .credit = options.credit * 1e6,
        .carry = (carry > options.credit ? carry : options.credit) * 1e6,
        .near = near_in_ms() * 1e6, .patience = options.watchdog / 2 * 1e9,
        .cpus = processors.highest + 1, .possible = sysconf(_SC_NPROCESSORS_CONF),
        .rule = options.rule, .homes = homes, .verify = options.verify, .stall = options.stall,
    };
    for (int nice = 0; nice > -20; nice--) weight *= 1.25;
    for (int step = 0; step < 40; step++, weight /= 1.25) settings->weights[step] = weight + 0.5;
}

static struct bpf_object *
load_scheduler(void)
{
    struct bpf_object *object = open_object(aggregate_object, aggregate_object_end, "aggregate");
    struct settings *settings = section(object, ".rodata.settings", sizeof *settings);
    struct bpf_map *map = bpf_object__find_map_by_name(object, "aggregate");
    char line[64] = "0";
    size_t size;
    int error;

    if (!map) die("the BPF object has no scheduler; build it anew");
    /* Found by BTF, as its place in the struct is another one from release to release. */
    const struct btf *btf = bpf_object__btf(object);
    int id = btf__find_by_name_kind(btf, "sched_ext_ops", BTF_KIND_STRUCT);
    const struct btf_type *type = btf__type_by_id(btf, id);
    char *image = bpf_map__initial_value(map, &size);
    /* The kernel does not attach it where a CPU has come or gone since this number was read. */
    first_line("/sys/kernel/sched_ext/hotplug_seq", line, sizeof line);
    count_processors();
    set_policy(settings);
    for (int i = 0; type && image && i < (int)BTF_INFO_VLEN(type->info); i++) {
        const struct btf_member *member = (const struct btf_member *)(type + 1) + i;
        const char *name = btf__name_by_offset(btf, member->name_off);
        if (!strcmp(name, "timeout_ms")) *(unsigned *)(image + member->offset / 8) = options.watchdog * 1000;
        if (!strcmp(name, "hotplug_seq"))
            *(unsigned long long *)(image + member->offset / 8) = strtoull(line, NULL, 10);
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

static struct bpf_link *open_waits;

static struct bpf_object *
attach_observer(void)
{
    struct bpf_object *object = open_object(observe_object, observe_object_end, "observe");
    struct bpf_program *program;
    int error = bpf_object__load(object);

    if (error) fail("loading the observer", error);
    bpf_object__for_each_program(program, object) {
        struct bpf_link *link = bpf_program__attach(program);
        if (!link) fail("attaching the observer", -errno);
        if (!strcmp(bpf_program__name(program), "open_waits")) open_waits = link;
    }
    return object;
}

/* Counts */

struct row {
    struct process process; /* pid 0: processes that have ended, or that found no row */
    unsigned processes;
    struct waits waits;
};

static struct row rows[PROCESSES + NAMES + 1];
static struct row removed[NAMES]; /* what processes that have ended had, by their names */
static struct process gone[PROCESSES];

static int
by_run(const void *a, const void *b)
{
    unsigned long long x = ((const struct row *)a)->waits.run, y = ((const struct row *)b)->waits.run;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void
add_waits(struct waits *to, const struct waits *from)
{
    to->switches += from->switches;
    to->space_switches += from->space_switches;
    to->waits += from->waits;
    to->wait_total += from->wait_total;
    to->run += from->run;
    if (from->wait_longest > to->wait_longest) to->wait_longest = from->wait_longest;
}

/* with_name(name): where to count a process that has ended; where names are too many, with the last one. */
static struct row *
with_name(const char *name)
{
    int i = 0;
    while (i < NAMES - 1 && removed[i].processes && strcmp(removed[i].waits.name, name)) i++;
    if (!removed[i].processes) memcpy(removed[i].waits.name, name, sizeof removed[i].waits.name);
    else if (strcmp(removed[i].waits.name, name)) strcpy(removed[i].waits.name, "others");
    return &removed[i];
}

/* Makes room: where there are many rows, takes out those of processes that have ended. */
static void
remove_ended(struct bpf_object *observer)
{
    static unsigned long long taken;
    int map = bpf_object__find_map_fd_by_name(observer, "processes"), count = 0;
    int counter = bpf_object__find_map_fd_by_name(observer, "made");
    struct process key, last, *previous = NULL;
    unsigned zero = 0;
    unsigned long long made = 0;
    struct waits waits;

    if (bpf_map_lookup_elem(counter, &zero, &made) || made - taken < FULL) return;
    while (count < PROCESSES && !bpf_map_get_next_key(map, previous, &key)) {
        if (!bpf_map_lookup_elem(map, &key, &waits) && waits.ended) gone[count++] = key;
        last = key;
        previous = &last;
    }
    for (int i = 0; i < count; i++) {
        if (bpf_map_lookup_elem(map, &gone[i], &waits) || bpf_map_delete_elem(map, &gone[i])) continue;
        struct row *row = with_name(waits.name);
        row->processes++;
        add_waits(&row->waits, &waits);
        taken++;
    }
}

static int
read_rows(struct bpf_object *observer, struct waits *total)
{
    int map = bpf_object__find_map_fd_by_name(observer, "processes"), count = 0;
    int others = bpf_object__find_map_fd_by_name(observer, "others");
    int iteration = bpf_iter_create(bpf_link__fd(open_waits));
    struct process key, *previous = NULL;
    char byte;
    unsigned zero = 0;

    if (iteration < 0) fail("looking at waits that have not ended", -errno);
    while (read(iteration, &byte, 1) > 0); /* nothing is written; it goes through all threads */
    close(iteration);
    memset(total, 0, sizeof *total);
    while (count < PROCESSES && !bpf_map_get_next_key(map, previous, &key)) {
        struct row *row = &rows[count];
        row->process = key;
        previous = &row->process;
        row->processes = 1;
        if (!bpf_map_lookup_elem(map, &key, &row->waits)) count++;
    }
    for (int i = 0; i < NAMES && removed[i].processes; i++) rows[count++] = removed[i];
    rows[count] = (struct row){ .processes = 1 };
    if (!bpf_map_lookup_elem(others, &zero, &rows[count].waits) && rows[count].waits.run) {
        strcpy(rows[count].waits.name, "others");
        count++;
    }
    for (int i = 0; i < count; i++) add_waits(total, &rows[i].waits);
    qsort(rows, count, sizeof *rows, by_run);
    return count;
}

static struct decisions before; /* what it decided before it was attached anew */
static int attachments;

static void
read_decisions(struct bpf_object *scheduler, struct decisions *sum)
{
    int map = bpf_object__find_map_fd_by_name(scheduler, "decisions"), cpus = libbpf_num_possible_cpus();
    struct decisions *each = calloc(cpus, sizeof *each);
    unsigned key = 0;

    *sum = before;
    if (each && !bpf_map_lookup_elem(map, &key, each)) {
        for (int cpu = 0; cpu < cpus; cpu++) {
            const unsigned long long *from = (const void *)&each[cpu];
            unsigned long long *to = (void *)sum;
            for (size_t i = 0; i < offsetof(struct decisions, lead) / sizeof *to; i++) to[i] += from[i];
            if (each[cpu].lead > sum->lead) sum->lead = each[cpu].lead;
            if (each[cpu].lag > sum->lag) sum->lag = each[cpu].lag;
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
            print_waits(rows[i].waits.name, rows[i].process.pid, &rows[i].waits);
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
    write_count(file, "hastened", d->hastened);
    fprintf(file, "\"lead_ms\": %.3f, \"lag_ms\": %.3f", d->lead / 1e6, d->lag / 1e6);
}

static void
write_json(struct bpf_object *scheduler, struct bpf_object *observer, const struct ending *ending)
{
    FILE *file = ftruncate(json, 0) && errno != EINVAL ? NULL : fdopen(json, "w"); /* EINVAL: a pipe */
    struct decisions d;
    struct waits total;

    if (!file) die("%s cannot be written: %s", options.json, strerror(errno));
    fprintf(file, "{\"policy\": \"%s\", \"bonus_ms\": %g, \"slice_ms\": %g, \"credit_ms\": %g, \"homes\": %s",
            !scheduler ? "default" : options.rule ? "rule" : "scx", options.bonus, options.slice,
            options.credit, options.homes && processors.highest > 0 ? "true" : "false");
    if (scheduler) {
        read_decisions(scheduler, &d);
        fputs(",\n \"decisions\": {", file);
        write_decisions(file, &d);
        fputs("}", file);
        fprintf(file, ",\n \"attachments\": %d", attachments);
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
            fprintf(file, "%s\n  {\"pid\": %u, \"processes\": %u, \"name\": ", i ? "," : "",
                    rows[i].process.pid, rows[i].processes);
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

static void
sleep_ms(double time)
{
    struct timespec pause = { time / 1e3, (time - (long)(time / 1e3) * 1e3) * 1e6 };
    nanosleep(&pause, NULL);
}

static bool
kernel_says(const char *wanted, char *line, int size)
{
    return first_line("/sys/kernel/sched_ext/state", line, size) && !strcmp(line, wanted);
}

/* Waits until the kernel has its own scheduler back. Gives the number of looks, or -1 after half a minute. */
static int
wait_for_kernel(char *line, int size)
{
    for (int looks = 0; looks < 3000; looks++) {
        if (kernel_says("disabled", line, size)) return looks;
        sleep_ms(10);
    }
    return -1;
}

/* The child of a cycle: it ends with its parent, however that ends. */
static void __attribute__((noreturn))
attach_until_killed(struct bpf_object *scheduler, pid_t parent, int ready)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    attach_map(scheduler);
    if (write(ready, "", 1) != 1) _exit(1);
    for (;;) pause();
}

/* Attaches in a child, kills that at a random moment, waits until the kernel has its own scheduler back, and
 * so on. The BPF programs are loaded once. Prints how often the kernel had it enabled just before the kill.
 */
static void
cycle(struct bpf_object *scheduler)
{
    int attached = 0, waited = 0, done = 0;
    pid_t parent = getpid();
    char line[64], at_end[64];

    srand(1);
    for (; done < options.cycles && !stop; done++) {
        int ready[2];
        char byte;
        if (pipe(ready)) die("pipe: %s", strerror(errno));
        pid_t child = fork();
        if (child < 0) die("fork: %s", strerror(errno));
        if (child == 0) attach_until_killed(scheduler, parent, ready[1]);
        close(ready[1]);
        /* Two of three are killed some time after they have attached, the third wherever they are. */
        bool told = done % 3 && read(ready[0], &byte, 1) == 1;
        if (done % 3 && !told && !stop) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            die("cycle %d: the scheduler could not be attached (see above)", done);
        }
        sleep_ms(rand() % 40);
        bool enabled = kernel_says("enabled", line, sizeof line);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        if (enabled) attached++;
        int looks = wait_for_kernel(at_end, sizeof at_end);
        if (looks < 0)
            die("cycle %d: the kernel's scheduler is not back after 30 s (%s)", done, at_end);
        waited += looks;
        if (told && !enabled)
            die("cycle %d: the kernel ended the scheduler by itself (%s), see its log", done, line);
    }
    printf("cycles %d: killed while attached %d, waited for the kernel %d times\n", done, attached, waited);
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

/* attach_anew(old): the scheduler, as the CPUs are now. What the old one decided is kept. */
static struct bpf_object *
attach_anew(struct bpf_object *old, struct bpf_link **link)
{
    char line[64];

    read_decisions(old, &before);
    bpf_link__destroy(*link);
    if (wait_for_kernel(line, sizeof line) < 0)
        die("a CPU came or went, and the kernel did not end the scheduler within 30 s (%s)", line);
    bpf_object__close(old);
    struct bpf_object *scheduler = load_scheduler();
    *link = attach_map(scheduler);
    attachments++;
    return scheduler;
}

int
main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = on_signal };
    struct bpf_object *scheduler = NULL, *observer = NULL;
    struct bpf_link *link = NULL;
    static struct ending ending;

    read_arguments(argc, argv);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    libbpf_set_print(listen);
    check_kernel();
    if (options.json && (json = open(options.json, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        die("%s cannot be written: %s", options.json, strerror(errno));
    /* What runs until the scheduler is loaded is not its doing, and not counted. */
    if (options.schedule) {
        scheduler = load_scheduler();
        warn_of_limits();
    }
    if (options.statistics) observer = attach_observer();
    if (options.cycles) {
        cycle(scheduler);
        return 0;
    }
    if (scheduler) {
        link = attach_map(scheduler);
        attachments = 1;
    }
    puts(scheduler ? "attached" : "observing");
    fflush(stdout);

    double end = options.seconds ? now() + options.seconds : 0;
    double next = options.interval ? now() + options.interval : 0;
    while (!stop) {
        double rest = 0.1, at = now();
        if (scheduler && has_ended(scheduler, &ending)) {
            if (!(ending.code & RESTART)) break;
            puts("a CPU came or went, and the kernel ended the scheduler; it is attached anew");
            fflush(stdout);
            scheduler = attach_anew(scheduler, &link);
            ending = (struct ending){ 0 };
            puts("attached anew");
            fflush(stdout);
        }
        if (end && at >= end) break;
        if (end && end - at < rest) rest = end - at;
        if (next && at >= next) {
            print_counts(scheduler, observer);
            next += options.interval;
        }
        if (observer) remove_ended(observer);
        sleep_ms(rest * 1e3);
    }

    /* Within the last moment, the kernel may have ended it as well. */
    if (scheduler && has_ended(scheduler, &ending) && (ending.code & RESTART)) ending = (struct ending){ 0 };
    print_counts(scheduler, observer);
    if (options.json) write_json(scheduler, observer, &ending);
    if (ending.kind)
        die("the kernel ended the scheduler and is back with its own: %s%s%s", ending.reason,
            *ending.message ? ": " : "", ending.message);
    return 0;
}

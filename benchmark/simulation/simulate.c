/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * simulate: plays recorded traces (record) for many workers that share the memory and the CPUs of one
 * machine, in virtual time, and says what the policies of gc/ make of it. cc -O2 -I../../gc simulate.c -lm
 *
 * Job: the policies themselves are the headers of gc/. Around them stand a machine, the heap of a worker and
 * its collector, each as simple as the question allows:
 *
 *     machine    CPUs give slices to the workers in turn. Memory that does not fit lies in a swap without an
 *                end; which pages those are is chance. A touched page that is not there stalls the worker,
 *                for its own latency or until the one swap device has come to it. Stalls are counted as the
 *                kernel does ("some" and "full"), over the CPUs that have work.
 *     program    a trace gives for each step its own time, what it allocates, and what of that dies when.
 *                What dies in the same step is garbage at once.
 *     heap       one heap with slots of the trace's mean size. Of the free slots a given part lies in empty
 *                pages. malloc gives back at once what is freed.
 *     collector  a minor one frees what dies before it has survived OLD collections, a full one all. Both
 *                stop the program: so much an object that is marked and so much a slot that is swept (the
 *                second seed's T = Wm * L + Ws * H). Upstream's rules for the limits of slots, of old objects
 *                and of malloc hold as in gc/default; those of gc/heap_growth.c and gc/pressure.c where the
 *                policy says so.
 *
 * The workers are processes of one tree (gc/pressure_tree.h) that each size their heap by
 * gc/growth_policy.h: forked workers, whose heaps gc/nursery_policy.h sizes, are not what is played here.
 *
 * Output: JSON. The same arguments give the same output.
 *
 * Times are in ns, memory is in bytes, where no other unit is named.
 */
#include "options.h"
#include "trace.h"
#include "worker.h"
#include "collector.h"
#include "report.h"

/* A CPU works for one worker for so long. */
#define SLICE 10e6

/* A worker has a CPU for a slice. */
static void
play(struct worker *worker, uint64_t now)
{
    double left = SLICE;

    while (left > 1) {
        const uint64_t at = now + (uint64_t)(SLICE - left);

        if (worker->debt > 0) {
            const double paid = fmin(worker->debt, left);

            worker->debt -= paid;
            worker->gc_ns += paid;
            left -= paid;
            if (worker->debt <= 0 && worker->collecting) end_pressed(worker, now + (uint64_t)(SLICE - left));
            continue;
        }
        if (worker->stall >= SLICE) return;

        const struct step *step = &worker->trace->steps[worker->step];
        const double room = worker->heap - occupied(worker) + fmax(worker->allowance, 0);
        const double malloc_room = worker->malloc_limit - worker->malloced;
        double part = fmin(1 - worker->part, left / step->cpu_ns);

        if (room < 1 || malloc_room < 1) {
            collect(worker, at);
            continue;
        }
        if (step->allocated.objects * part > room) part = room / step->allocated.objects;
        if (step->allocated.malloced * part > malloc_room) part = malloc_room / step->allocated.malloced;
        const double passed = step->cpu_ns * part;
        worker->expected += expected_share(&worker->growth) * passed;
        play_step(worker, part, at);
        left -= fmax(passed, 1);
    }
}

/* Each worker that does not wait has a CPU in turn. */
static void
tick(uint64_t now)
{
    static int next;
    const int count = (int)given.workers, cpus = (int)given.cpus;
    int ran = 0, waiting = 0, last = next;

    for (int i = 0; i < count; i++) {
        const int at = (next + i) % count;
        struct worker *worker = &workers[at];

        if (worker->starts_at > now) continue;
        if (worker->stall >= SLICE) {
            worker->stall -= SLICE;
            worker->stalled_ns += SLICE;
            waiting++;
        }
        else if (ran < cpus) {
            play(worker, now);
            ran++;
            last = at + 1;
        }
    }
    next = last % count;
    if (waiting == 0) return;
    const double busy = ran + waiting < cpus ? ran + waiting : cpus;
    machine.some_ns += SLICE * fmin(waiting, busy) / busy;
    machine.full_ns += SLICE * (busy - ran) / busy;
}

static void
begin(void)
{
    uint64_t state = (uint64_t)given.seed;

    chance(&state); /* small seeds give small first numbers */
    machine.memory = given.memory * MB;
    machine.scale = 1;
    cow_pressure_tree_begin(&machine.tree, (long)given.cpus);
    workers = calloc((size_t)given.workers, sizeof(*workers));
    if (workers == NULL) stop("there is no memory for the workers");
    for (int i = 0; i < (int)given.workers; i++) {
        struct worker *worker = &workers[i];

        worker->trace = &traces[i % trace_count];
        /* Where the trace is a circle the worker begins anywhere, so that not all of them do the same. */
        const double first = chance(&state) * worker->trace->count;
        worker->step = worker->trace->repeats == 0 ? (int)first : 0;
        worker->starts_at = SECOND + (uint64_t)(chance(&state) * given.spread * 1e9);
        worker->live[OLD] = worker->trace->base;
        /* Where in a step of its growth a heap stops is chance, and decides much. */
        worker->heap = worker->trace->base.objects * (1 + chance(&state));
        worker->allowance = 10000 * worker->trace->size;
        worker->malloc_base = worker->malloc_limit = 16 * MB;
        worker->old_malloc_base = worker->old_malloc_limit = 16 * MB;
        worker->old_limit = worker->trace->base.objects * 2;
    }
}

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage();
            return 0;
        }
        if (argv[i][0] == '-') {
            set(argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            i++;
            continue;
        }
        if (trace_count == MOST_TRACES) stop("there are more than %d traces", MOST_TRACES);
        read_trace(&traces[trace_count++], argv[i]);
    }
    if (trace_count == 0) stop("no trace is given");

    const int count = (int)given.seconds, ticks = (int)(SECOND / (uint64_t)SLICE);
    const size_t size = (size_t)given.workers * sizeof(*workers);
    struct look *looks = calloc((size_t)count, sizeof(*looks));
    struct worker *half = malloc(size);
    double stalled = 0, program = 0;

    if (looks == NULL || half == NULL) stop("there is no memory for %d seconds", count);
    begin();
    for (int second = 0; second < count; second++) {
        if (second == count / 2) {
            memcpy(half, workers, size);
            measured = true;
        }
        for (int i = 0; i < ticks; i++) tick(SECOND * (uint64_t)(second + 1) + (uint64_t)SLICE * (uint64_t)i);
        looks[second] = look(&stalled, &program);
    }
    report(looks, count, half);
    free(looks);
    free(half);
    return 0;
}

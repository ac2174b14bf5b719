/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts what any scheduler does: switches between threads, switches between address spaces, and how long
 * threads that could run did not; by process, whichever scheduler is at work. So the kernel's own and ours
 * are measured with the same means.
 *
 * Invariant: a row is made in `processes` for a process that has not ended, and `made` counts it; where there
 * is no room, the process counts in the one row of `others`. The loader alone removes rows, of processes that
 * have ended.
 *
 * Entry points: the kernel's trace points sched_switch, sched_wakeup, sched_wakeup_new, task_rename and
 * sched_process_exit; and open_waits, which the loader calls before it reads the rows.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "policy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PF_EXITING_BIT 0x00000004

struct watched_cpu {
    u64 mm;     /* the address space that ran last; kernel threads leave it */
    u64 since;  /* when the thread that runs began */
};

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, PROCESSES);
         __type(key, struct process); __type(value, struct waits); } processes SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1);
         __type(key, u32); __type(value, struct waits); } others SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1);
         __type(key, u32); __type(value, u64); } made SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1);
         __type(key, u32); __type(value, struct watched_cpu); } watched SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_TASK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC);
         __type(key, int); __type(value, u64); } runnable_since SEC(".maps");

static struct waits *
known_process(struct task_struct *p)
{
    struct process key = { .pid = p->tgid, .began = p->group_leader->start_time };
    return bpf_map_lookup_elem(&processes, &key);
}

/* process_of(p): where p's process counts. A thread that ends makes no row: it would be left over. */
static struct waits *
process_of(struct task_struct *p)
{
    struct process key = { .pid = p->tgid, .began = p->group_leader->start_time };
    struct waits *row = bpf_map_lookup_elem(&processes, &key);
    u32 zero = 0;

    if (row) return row;
    if (!(p->flags & PF_EXITING_BIT)) {
        struct waits fresh = {};
        bpf_probe_read_kernel_str(fresh.name, sizeof(fresh.name), p->group_leader->comm);
        if (!bpf_map_update_elem(&processes, &key, &fresh, BPF_NOEXIST)) {
            u64 *count = bpf_map_lookup_elem(&made, &zero);
            if (count) __sync_fetch_and_add(count, 1);
        }
        if ((row = bpf_map_lookup_elem(&processes, &key))) return row;
    }
    return bpf_map_lookup_elem(&others, &zero);
}

static void
longest(struct waits *row, u64 wait)
{
    for (int tries = 0; tries < 8; tries++) {
        u64 before = row->wait_longest;
        if (wait <= before) return;
        if (__sync_val_compare_and_swap(&row->wait_longest, before, wait) == before) return;
    }
}

static int
begins_to_wait(struct task_struct *p)
{
    u64 *since = bpf_task_storage_get(&runnable_since, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    if (since) *since = bpf_ktime_get_ns();
    return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(observe_wakeup, struct task_struct *p)
{
    return begins_to_wait(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(observe_wakeup_new, struct task_struct *p)
{
    return begins_to_wait(p);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(observe_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
             unsigned int prev_state)
{
    u32 key = 0;
    struct watched_cpu *cpu = bpf_map_lookup_elem(&watched, &key);
    u64 now = bpf_ktime_get_ns(), *since;
    struct waits *row;

    if (!cpu) return 0;
    if (prev->pid) {
        since = bpf_task_storage_get(&runnable_since, prev, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
        if (since) *since = preempt || prev_state == 0 ? now : 0;
        if (cpu->since && (row = process_of(prev))) __sync_fetch_and_add(&row->run, now - cpu->since);
    }
    cpu->since = now;
    if (!next->pid || !(row = process_of(next))) return 0;
    __sync_fetch_and_add(&row->switches, 1);
    u64 mm = (u64)next->mm;
    if (mm && mm != cpu->mm) {
        cpu->mm = mm;
        __sync_fetch_and_add(&row->space_switches, 1);
    }
    since = bpf_task_storage_get(&runnable_since, next, 0, 0);
    if (since && *since) {
        u64 wait = now > *since ? now - *since : 0;
        *since = 0;
        __sync_fetch_and_add(&row->waits, 1);
        __sync_fetch_and_add(&row->wait_total, wait);
        longest(row, wait);
    }
    return 0;
}

/* A process has the name of its first thread: as it calls itself, and after exec, as its program. */
SEC("tp_btf/task_rename")
int BPF_PROG(observe_rename, struct task_struct *p, const char *name)
{
    struct waits *row = p->pid == p->tgid ? known_process(p) : NULL;
    if (row) bpf_probe_read_kernel_str(row->name, sizeof(row->name), name);
    return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(observe_exit, struct task_struct *p, bool last)
{
    struct waits *row = last ? known_process(p) : NULL;
    if (row) row->ended = 1;
    return 0;
}

/* A wait that has not ended yet may be the longest one. A thread that was waked before it had gone to sleep
 * is noted as one that waits, but runs. */
SEC("iter/task")
int open_waits(struct bpf_iter__task *iteration)
{
    struct task_struct *p = iteration->task;
    u64 *since, now = bpf_ktime_get_ns();
    struct waits *row;

    if (!p || p->on_cpu || !(since = bpf_task_storage_get(&runnable_since, p, 0, 0))) return 0;
    u64 began = *since;
    if (began && now > began && (row = process_of(p))) longest(row, now - began);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts what any scheduler does: switches between threads, switches between address spaces, and how long
 * threads that could run did not; by process, whichever scheduler is at work. So the kernel's own and ours
 * are measured with the same means. Entry points: the kernel's trace points sched_switch, sched_wakeup and
 * sched_wakeup_new. The loader reads the map `processes`.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "policy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct watched_cpu {
    u64 mm;     /* the address space that ran last; kernel threads leave it */
    u64 since;  /* when the thread that runs began */
};

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, PROCESSES);
         __type(key, u32); __type(value, struct waits); } processes SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1);
         __type(key, u32); __type(value, struct watched_cpu); } watched SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_TASK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC);
         __type(key, int); __type(value, u64); } runnable_since SEC(".maps");

static struct waits *
process_of(struct task_struct *p)
{
    u32 key = p->tgid;
    struct waits *row = bpf_map_lookup_elem(&processes, &key);
    if (row) return row;
    struct waits fresh = {};
    bpf_probe_read_kernel_str(fresh.name, sizeof(fresh.name), p->group_leader->comm);
    bpf_map_update_elem(&processes, &key, &fresh, BPF_NOEXIST);
    return bpf_map_lookup_elem(&processes, &key);
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
        if (wait > row->wait_longest) row->wait_longest = wait;
    }
    return 0;
}

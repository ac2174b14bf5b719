/* SPDX-License-Identifier: BSD-2-Clause */
/* What the scheduler (aggregate.bpf.c), the observer (observe.bpf.c) and the loader (aggregate.c) share.
 *
 * Words. A thread is a task of the kernel. An address space is what threads share that have the same
 * mm_struct: a process, in most cases. Virtual time is CPU time divided by weight: a thread of nice 0 in the
 * root cgroup gains one ns of it for each ns on a CPU. The head is the waiting thread with the least virtual
 * time. A slot is a queue of the threads of one address space. The bonus is how far, in virtual time, a
 * thread of the address space that ran last may be ahead of the head and still go first.
 *
 * Fixed sizes only, so that BPF and the loader see the same bytes.
 */
#ifndef COW_SCHED_POLICY_H
#define COW_SCHED_POLICY_H

#ifndef SLOTS
#define SLOTS 1024        /* address spaces that can wait with a queue of their own; the rest share one */
#endif
#define SLOT_WORDS (SLOTS / 64)
#define CPUS 256          /* CPUs at most; the loader refuses more. CPUs + 8 < SLOTS */
#define GROUPS 1024       /* cgroups with a weight of their own; a further one counts as its parent */
#define PROCESSES 8192    /* processes in the statistics; further ones count together, as "others" */
#define DEPTH 16          /* levels of cgroups, the root included; a deeper one counts as its parent */

/* Slots that belong to no address space. */
#define SLOT_KERNEL 0     /* kernel threads, and threads that are about to end */
#define SLOT_CROWD 1      /* address spaces without a free slot; without the rule, all but pinned threads */
#define SLOT_PINNED 8     /* SLOT_PINNED + CPU: such threads that may run on that CPU only */
#define SLOT_FIRST (SLOT_PINNED + CPUS)

/* What the loader tells the scheduler before it is loaded. Times in ns. */
struct settings {
    unsigned long long bonus;
    unsigned long long slice;
    unsigned long long credit;  /* virtual time that a sleeper may be behind the others when it wakes */
    unsigned long long carry;   /* virtual time that others may be behind, without having slept */
    unsigned long long near;    /* heads are compared when Y is further ahead of the last known head */
    unsigned long long patience; /* a thread that has waited so long goes first */
    unsigned int weights[40];   /* of nice -20 to 19; 1024 is that of nice 0 */
    unsigned int cpus;          /* the greatest number of a CPU that is online, and 1 */
    unsigned int possible;      /* CPUs that this machine can have */
    unsigned char rule;         /* 0: virtual-time order alone, in one queue */
    unsigned char homes;        /* 1: processor aggregation */
    unsigned char verify;       /* 1: look at every waiting thread at each decision, and count wrong ones */
    unsigned char stall;        /* 1, for tests: dispatch nothing, until the kernel's watchdog ends it */
};

/* What the scheduler counts; a CPU each. */
struct decisions {
    unsigned long long dispatches;  /* threads taken from a queue */
    unsigned long long by_rule;     /* of them: not the head, but of the address space that ran last */
    unsigned long long by_bound;    /* of them: the head, because the last address space was too far ahead */
    unsigned long long kept;        /* times that a thread whose slice had ended went on */
    unsigned long long taken;       /* address spaces that a CPU took from another one */
    unsigned long long spilled;     /* single threads that a CPU took */
    unsigned long long crowded;     /* times that an address space found no free slot */
    unsigned long long hastened;    /* threads that went first because they had waited so long */
    unsigned long long verified;    /* decisions looked at (verify) */
    unsigned long long wrong;       /* of them: others than the rule's */
    unsigned long long lead;        /* greatest lead of a thread over the head that waited, in ns (verify) */
    unsigned long long lag;         /* by how much a thread was behind vnow at most when it began to run */
};

/* What the observer counts of all scheduling, whoever schedules. Times in ns. */
struct waits {
    unsigned long long switches;        /* to a thread of this process */
    unsigned long long space_switches;  /* of them: from another address space */
    unsigned long long waits;           /* times that a thread was runnable and did not run */
    unsigned long long wait_total;
    unsigned long long wait_longest;
    unsigned long long run;             /* time on a CPU */
    unsigned int ended;                 /* 1: the process has, and its row may go */
    char name[16];
};

/* A process in the statistics. Its number may be another's after its end; the time it began is not. */
struct process {
    unsigned int pid;
    unsigned int pad;
    unsigned long long began;
};

/* Why the scheduler has ended, as the kernel said it. */
struct ending {
    int kind;            /* 0: it has not */
    long long code;
    char reason[128];
    char message[256];
};

#endif

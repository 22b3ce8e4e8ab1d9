/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The accounts of VMs and their threads, and what follows from them: ranks. scx.bpf.c says why. */
#ifndef FRONTDESK_SCX_ACCOUNT_H
#define FRONTDESK_SCX_ACCOUNT_H

#include "sched_ext.h"

/* Shared with src/scx/abi.rs. */
#define MAX_VMS 1024
#define MAX_THREADS 8192
#define MAX_CPUS 1024
#define MAX_PORTS 65536
#define EMULATOR 0xffffffff

/* The account of threads that are SCHED_EXT but no VM's: all together are like one VM. */
#define STRANGERS 0
#define DEFAULT_WEIGHT 1024
/* Weight of a thread inside its VM. */
#define ORDINARY 1000

#define MS (1000 * 1000ULL)
/*
 * How long a thread runs before others of its class have their turn. The kernel looks at its ticks, 1 to 4 ms
 * apart.
 */
#define SLICE (3 * MS)
/* A VM that needs little can save no more run time than this, to use it all at once. */
#define SAVINGS (30 * MS)
/*
 * A VM that has run this much too early is not boosted: whatever user space asks for, a boost takes no more
 * from others.
 */
#define DEBT (60 * MS)
/*
 * How long a thread waits at most because others of its VM have more weight: what these run meanwhile. The VM
 * saves as much.
 */
#define HOLD (200 * MS)
/*
 * How long a VM waits at most, roughly, because it has run too early. The kernel's watchdog allows for
 * timeout_ms.
 */
#define LAP (1000 * MS)

/* The order in which threads go first. A boosted vCPU may spin for what its emulator threads deliver. */
enum rank {
	MEDIA_EMULATOR,
	MEDIA_VCPU,
	BOOSTED_EMULATOR,
	BOOSTED_VCPU,
	UNDER,
	OVER,
	NOT_OURS, /* of CPUs: idle, or a thread of another scheduling class */
};

enum { DSQ_BOOST = 1, DSQ_FAIR = 2 };

/* As the engine has them. */
enum level { NONE, IO, MULTIMEDIA };

struct thread {
	u32 vm;      /* its account */
	u32 vcpu;    /* or EMULATOR */
	u32 level;   /* vCPUs only */
	u32 weight;  /* inside its VM */
	u64 vtime;   /* ns at ORDINARY */
	u32 counted; /* the weight that the account's "wanting" has for it */
	/* vCPUs only: a level that the kernel gave by itself, and when that ends (CLOCK_MONOTONIC, ns). */
	u32 given;
	u64 given_until;
};

struct account {
	u64 consumed;     /* ns that its threads ran */
	u64 boosted;      /* of these, as BOOST */
	u64 runs;         /* times that a thread of it got a CPU */
	u64 boosted_runs; /* of these, as BOOST */
	u64 vtime;        /* ns at the default weight */
	u64 inner;        /* virtual time inside the VM: ns that it ran, divided by "wanting" */
	u64 wanting;      /* weight of its threads that want to run */
	u32 emulators;    /* enum level */
	u32 uneven;       /* some weight is or was not ORDINARY */
	u32 given;        /* as a thread has it, but of the emulator threads */
	u32 unused;
	u64 given_until;
	u64 gifts;        /* times that the kernel gave a boost by itself */
};

/* What runs on a CPU. */
struct cpu {
	u64 started; /* run time of the thread when it was charged last */
	u32 tid;
	u32 vm;
	u32 rank;
	u32 unused;
};

/* By thread id, from user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* From user space; 0 is the default. Apart from the accounts, which only the programs write. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} weights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct account);
} accounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* From user space: the weights of all VMs. */
u64 total_weight;

static u64 min_vtime;

static __always_inline u64 weight_of(u32 vm)
{
	u32 *weight = bpf_map_lookup_elem(&weights, &vm);

	return weight && *weight ? *weight : DEFAULT_WEIGHT;
}

/* Virtual times wrap, like the kernel's. */
static __always_inline bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static __always_inline u32 vm_of(struct task_struct *p, struct thread **thread)
{
	u32 tid = p->pid;

	*thread = bpf_map_lookup_elem(&threads, &tid);
	return *thread ? (*thread)->vm : STRANGERS;
}

/* The virtual time that passes in LAP if all VMs use all CPUs. */
static __always_inline u64 lap(void)
{
	return LAP * scx_bpf_nr_cpu_ids() * DEFAULT_WEIGHT / (total_weight + DEFAULT_WEIGHT);
}

/*
 * Where in the order of virtual time it is a thread's turn: where its VM is, or as much later as it is ahead
 * of its part.
 */
static __always_inline u64 turn(struct thread *thread, struct account *account, u64 weight)
{
	u64 vtime = account->vtime, wanting = account->wanting, later, most;
	s64 ahead;

	if (!thread || !account->uneven || !wanting)
		return vtime;
	/* The VM gets less than its part: it is not the time to hold back who wants it. */
	if (before(vtime + HOLD / 2 * DEFAULT_WEIGHT / weight, min_vtime))
		return vtime;
	ahead = thread->vtime - account->inner;
	if (ahead <= 0)
		return vtime;
	later = (u64)ahead * wanting / ORDINARY;
	if (later > HOLD)
		later = HOLD;
	later = vtime + later * DEFAULT_WEIGHT / weight;
	most = min_vtime + lap();
	if (before(most, later))
		return before(vtime, most) ? most : vtime;
	return later;
}

/* The higher of what user space set and what the kernel gave, unless that is over. */
static __always_inline u32 level_of(u32 set, u32 given, u64 until)
{
	return given > set && before(bpf_ktime_get_ns(), until) ? given : set;
}

static __always_inline u32 rank_of(struct thread *thread, struct account *account, u64 weight)
{
	u64 debt = DEBT * DEFAULT_WEIGHT / weight, vtime = account->vtime;

	/* Whoever is a lap beyond has the rest forgiven, and is to pay that much. */
	if (debt > lap() / 2)
		debt = lap() / 2;
	if (thread && !before(min_vtime + debt, vtime)) {
		if (thread->vcpu == EMULATOR) {
			u32 level = level_of(account->emulators, account->given, account->given_until);

			if (level)
				return level == MULTIMEDIA ? MEDIA_EMULATOR : BOOSTED_EMULATOR;
		} else {
			u32 level = level_of(thread->level, thread->given, thread->given_until);

			if (level)
				return level == MULTIMEDIA ? MEDIA_VCPU : BOOSTED_VCPU;
		}
	}
	return before(min_vtime, turn(thread, account, weight)) ? OVER : UNDER;
}

/*
 * What a VM did not use in time is lost beyond its savings. What it ran too early is forgiven beyond a lap: a
 * thread may run for long at once where ticks are late, and a single slice is much for a VM of little weight.
 */
static __always_inline u64 settle_to(struct account *account, u64 weight, u64 savings)
{
	u64 least = min_vtime - savings * DEFAULT_WEIGHT / weight, most = min_vtime + lap();
	u64 vtime = account->vtime, settled = vtime;

	if (before(vtime, least))
		settled = least;
	else if (before(most, vtime))
		settled = most;
	if (settled != vtime)
		__sync_val_compare_and_swap(&account->vtime, vtime, settled);
	return settled;
}

static __always_inline u64 settle(struct account *account, u64 weight)
{
	return settle_to(account, weight, account->uneven ? HOLD : SAVINGS);
}

/*
 * The same for a thread inside its VM: what it ran too early is forgiven beyond HOLD, and what its weight
 * would have given it beyond that is lost, as it may not have been there to get (one thread cannot use two
 * CPUs).
 */
static __always_inline void settle_thread(struct thread *thread, struct account *account)
{
	u64 wanting = account->wanting, inner = account->inner, vtime, most;

	if (!thread || !account->uneven || !wanting)
		return;
	vtime = thread->vtime;
	most = HOLD * ORDINARY / wanting;
	if (before(inner + most, vtime))
		thread->vtime = inner + most;
	else if (before(vtime, inner - most))
		thread->vtime = inner - most;
}

static __always_inline void advance(u64 vtime)
{
	u64 seen = min_vtime;

	/* If another CPU does the same now, it is as good. */
	if (before(seen, vtime))
		__sync_val_compare_and_swap(&min_vtime, seen, vtime);
}

/* Charges what the thread on the CPU has run since the last time, boosted or not. */
static __always_inline void charge(struct task_struct *p, struct cpu *cpu, struct thread *thread,
				   struct account *account, u64 weight)
{
	u64 wanting = account->wanting;
	u64 now = ((struct task_struct___scx *)p)->se.sum_exec_runtime;
	u64 ran = now - cpu->started;

	if (cpu->tid != p->pid)
		return;
	cpu->started = now;
	__sync_fetch_and_add(&account->consumed, ran);
	if (cpu->rank <= BOOSTED_VCPU)
		__sync_fetch_and_add(&account->boosted, ran);
	__sync_fetch_and_add(&account->vtime, ran * DEFAULT_WEIGHT / weight);
	/* Only this CPU runs the thread. */
	if (thread && thread->weight)
		thread->vtime += ran * ORDINARY / thread->weight;
	if (thread && wanting)
		__sync_fetch_and_add(&account->inner, ran * ORDINARY / wanting);
}

/* A thread wants to run from now on, or no more: "wanting" has so much for it. */
static __always_inline void count(struct thread *thread, struct account *account, u32 weight)
{
	u32 before = __sync_lock_test_and_set(&thread->counted, weight);

	__sync_fetch_and_add(&account->wanting, (u64)weight - before);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Boosts and weights of threads change, and CPUs are told. */
#ifndef FRONTDESK_SCX_BOOST_H
#define FRONTDESK_SCX_BOOST_H

#include "scx_account.h"

/*
 * Lets a CPU run a thread of this rank: an idle one, or else, if it preempts, the one that runs what matters
 * least.
 */
static __always_inline void find_cpu(struct task_struct *p, u32 rank, bool preempts)
{
	const struct cpumask *allowed = ((struct task_struct___scx *)p)->cpus_ptr;
	s32 own = scx_bpf_task_cpu(p);
	s32 found = scx_bpf_pick_idle_cpu(allowed, 0);
	u32 worst = rank;
	s32 i;

	if (found >= 0) {
		scx_bpf_kick_cpu(found, SCX_KICK_IDLE);
		return;
	}
	if (!preempts)
		return;
	bpf_for(i, 0, scx_bpf_nr_cpu_ids()) {
		u32 key = i;
		struct cpu *cpu = bpf_map_lookup_elem(&cpus, &key);

		if (!cpu || cpu->rank == NOT_OURS || cpu->rank < worst || (cpu->rank == worst && (worst == rank || i != own)))
			continue;
		if (bpf_cpumask_test_cpu(i, allowed)) {
			worst = cpu->rank;
			found = i;
		}
	}
	if (found >= 0)
		scx_bpf_kick_cpu(found, SCX_KICK_PREEMPT);
}

enum how {
	MOVE = 1, /* them to where they go first */
	CALL = 2, /* CPUs to run them */
};

#define ALL_VMS 0xffffffff

/* For the threads of a VM that wait in a queue and are now boosted, or boosted more. */
static __always_inline void promote(u32 vm, u64 dsq, enum how how)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	bpf_iter_scx_dsq_new(&it, dsq, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct thread *thread;
		u32 of = vm_of(p, &thread), rank;
		struct account *account = bpf_map_lookup_elem(&accounts, &of);

		if (!account || (vm != ALL_VMS && of != vm))
			continue;
		rank = rank_of(thread, account, weight_of(of));
		if (rank > BOOSTED_VCPU || (how & MOVE && !dsq_move_vtime(&it, p, DSQ_BOOST, rank)))
			continue;
		if (how & CALL)
			find_cpu(p, rank, true);
	}
	bpf_iter_scx_dsq_destroy(&it);
}

/* Tells those that run what they are now. One that is boosted less, or no more, goes where that says. */
static __always_inline void rerank(u32 vm, struct account *account)
{
	u64 weight = weight_of(vm);
	s32 i;

	bpf_for(i, 0, scx_bpf_nr_cpu_ids()) {
		u32 key = i, rank;
		struct cpu *cpu = bpf_map_lookup_elem(&cpus, &key);
		struct thread *thread;

		if (!cpu || cpu->rank == NOT_OURS || cpu->vm != vm)
			continue;
		key = cpu->tid;
		thread = bpf_map_lookup_elem(&threads, &key);
		rank = rank_of(thread, account, weight);
		if (cpu->rank <= BOOSTED_VCPU && rank > cpu->rank)
			scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
		else
			cpu->rank = rank;
	}
}

static __always_inline void set_weight(struct thread *thread, struct account *account, u32 weight)
{
	u32 counted = thread->counted;

	thread->weight = weight;
	/* What it had by another weight is settled. */
	thread->vtime = account->inner;
	account->uneven = 1;
	if (counted && __sync_val_compare_and_swap(&thread->counted, counted, weight) == counted)
		__sync_fetch_and_add(&account->wanting, (u64)weight - counted);
}

/* Shared with src/scx/abi.rs. */
#define MAX_MANDATED 8

/*
 * What the engine has the kernel do for a VM by itself: boost these vCPUs, and the emulator threads, once.
 * Further packets gain nothing before user space has heard of the first one.
 */
struct mandate {
	u64 used_at; /* when the kernel did so last; 0: user space has taken over, or it has not */
	u64 lasts;   /* ns, unless user space says something before */
	u64 took;    /* ns, from the packet until all of them went first */
	u32 ready;   /* 1: it may be used */
	u32 level;
	u32 vcpus[MAX_MANDATED]; /* thread ids; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct mandate);
} mandates SEC(".maps");

/* Set if a thread waits in the other queue that the kernel boosted by itself. */
static u32 misplaced;

/* Gives or takes back, with level 0, what the kernel may give by itself. */
static __always_inline void give(u32 vm, struct account *account, struct mandate *mandate, u32 level, u64 until)
{
	s32 i;

	bpf_for(i, 0, MAX_MANDATED) {
		u32 tid = mandate->vcpus[i & (MAX_MANDATED - 1)];
		struct thread *thread = bpf_map_lookup_elem(&threads, &tid);

		/* The list may be changing, and a number be that of another thread meanwhile. */
		if (!thread || thread->vm != vm || thread->vcpu == EMULATOR)
			continue;
		thread->given_until = until;
		thread->given = level;
	}
	account->given_until = until;
	account->given = level;
	rerank(vm, account);
}

#endif

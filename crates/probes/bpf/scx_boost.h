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

/*
 * Moves the threads of a VM that wait in a queue and are now boosted, or boosted more, to where they go
 * first.
 */
static __always_inline void promote(u32 vm, struct account *account, u64 dsq)
{
	u64 weight = weight_of(vm);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	bpf_iter_scx_dsq_new(&it, dsq, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct thread *thread;
		u32 rank;

		if (vm_of(p, &thread) != vm)
			continue;
		rank = rank_of(thread, account, weight);
		if (rank <= BOOSTED_VCPU && dsq_move_vtime(&it, p, DSQ_BOOST, rank))
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

#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A sched_ext scheduler for the threads of VMs: a credit scheduler (TAVS 3.2, 4.2) whose boosts are charged like all
 * other run time. It is partial: it has the threads whose policy is SCHED_EXT, and no others.
 *
 * Each VM has a weight and one account for all its threads. Run time advances the account's virtual time by
 * time / weight. The frontier is the virtual time of the VM that is the furthest behind among those that wait, and a refill
 * every 30 ms puts the level as far beyond the frontier as the CPUs can carry all active VMs until the next. What
 * a VM is below the level is its credit: so each refill hands out 30 ms of every CPU by weight.
 *
 *   BOOST  a boosted vCPU, and before it the emulator threads of its VM; preempts the others
 *   UNDER  a VM that has credit
 *   OVER   one that has none
 *
 * BOOST has a queue of its own. UNDER and OVER are one queue in the order of virtual time: UNDER first, and within each
 * the VM first that is the furthest behind, so that the weights hold there too. All queues are shared by all CPUs.
 */
#include "sched_ext.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Shared with src/scx/abi.rs. */
#define MAX_VMS 1024
#define MAX_THREADS 8192
#define MAX_CPUS 1024
#define EMULATOR 0xffffffff

/* The account of threads that are SCHED_EXT but no VM's: all together are like one VM. */
#define STRANGERS 0
#define DEFAULT_WEIGHT 1024

/* How long a thread runs before others of its class have their turn. The kernel looks at its ticks, 1 to 4 ms apart. */
#define SLICE (3 * 1000 * 1000ULL)
#define REFILL (30 * 1000 * 1000ULL)
/* A VM that needs little can save no more than this, to run it all at once. */
#define SAVINGS (30 * 1000 * 1000ULL)
/* A VM that is this much below zero is not boosted: whatever user space asks for, a boost takes no more from others. */
#define DEBT (30 * 1000 * 1000ULL)

/* The order in which threads go first. A boosted vCPU may spin for what its emulator threads deliver. */
enum rank {
	BOOSTED_EMULATOR,
	BOOSTED_VCPU,
	UNDER,
	OVER,
	NOT_OURS, /* of CPUs: idle, or a thread of another scheduling class */
};

enum { DSQ_BOOST = 1, DSQ_CREDIT = 2 };

struct thread {
	u32 vm;      /* its account */
	u32 vcpu;    /* or EMULATOR */
	u32 boosted; /* vCPUs only */
};

struct account {
	u64 consumed;     /* ns that its threads ran */
	u64 boosted;      /* of these, as BOOST */
	u64 runs;         /* times that a thread of it got a CPU */
	u64 boosted_runs; /* of these, as BOOST */
	u64 vtime;        /* ns at the default weight */
	u64 at_refill;    /* consumed at the last refill */
	u32 boosts;       /* boosted vCPUs */
	u32 unused;
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

/* Why the kernel has ejected the scheduler. */
struct ejection {
	u32 kind; /* 0: it has not */
	char reason[64];
	char message[128];
};

/* Read by user space. */
struct ejection ejection;
u64 level;

static u64 frontier;
static u64 refilled;
static u64 active_weight; /* during a refill: in memory, where the verifier does not follow every value it may take */

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

static __always_inline s64 credit_of(struct account *account, u64 weight)
{
	return (s64)(level - account->vtime) * (s64)weight / DEFAULT_WEIGHT;
}

static __always_inline u32 vm_of(struct task_struct *p, struct thread **thread)
{
	u32 tid = p->pid;

	*thread = bpf_map_lookup_elem(&threads, &tid);
	return *thread ? (*thread)->vm : STRANGERS;
}

static __always_inline u32 rank_of(struct thread *thread, struct account *account, u64 weight)
{
	s64 credit = credit_of(account, weight);

	if (thread && credit > -(s64)DEBT) {
		if (thread->vcpu == EMULATOR && account->boosts)
			return BOOSTED_EMULATOR;
		if (thread->boosted)
			return BOOSTED_VCPU;
	}
	return credit >= 0 ? UNDER : OVER;
}

/* What a VM did not use in time is lost beyond its savings. */
static __always_inline void forfeit(struct account *account, u64 weight)
{
	u64 least = frontier - SAVINGS * DEFAULT_WEIGHT / weight;
	u64 vtime = account->vtime;

	if (before(vtime, least))
		__sync_val_compare_and_swap(&account->vtime, vtime, least);
}

/* Nobody who waits is further behind than this. */
static __always_inline void advance(u64 vtime)
{
	if (before(frontier, vtime))
		frontier = vtime;
}

/* Charges what the thread on the CPU has run since the last time, boosted or not. */
static __always_inline void charge(struct task_struct *p, struct cpu *cpu, struct account *account, u64 weight)
{
	u64 now = ((struct task_struct___scx *)p)->se.sum_exec_runtime;
	u64 ran = now - cpu->started;

	if (cpu->tid != p->pid)
		return;
	cpu->started = now;
	__sync_fetch_and_add(&account->consumed, ran);
	if (cpu->rank <= BOOSTED_VCPU)
		__sync_fetch_and_add(&account->boosted, ran);
	__sync_fetch_and_add(&account->vtime, ran * DEFAULT_WEIGHT / weight);
}

/* Lets a CPU run a thread of this rank: an idle one, or else the one that runs what matters least. */
static __always_inline void find_cpu(struct task_struct *p, u32 rank)
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

static __always_inline void refill(void)
{
	u64 now = bpf_ktime_get_ns(), last = refilled;
	u32 vm;

	if (now - last < REFILL || __sync_val_compare_and_swap(&refilled, last, now) != last)
		return;
	active_weight = 0;
	bpf_for(vm, 0, MAX_VMS) {
		u32 key = vm;
		struct account *account = bpf_map_lookup_elem(&accounts, &key);

		if (!account || account->consumed == account->at_refill)
			continue;
		account->at_refill = account->consumed;
		active_weight += weight_of(vm);
	}
	level = frontier + REFILL * scx_bpf_nr_cpu_ids() * DEFAULT_WEIGHT / (active_weight ?: DEFAULT_WEIGHT);
}

SEC("struct_ops/frontdesk_select_cpu")
s32 BPF_PROG(frontdesk_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		dsq_insert(p, SCX_DSQ_LOCAL, SLICE, 0);
	return cpu;
}

SEC("struct_ops/frontdesk_enqueue")
void BPF_PROG(frontdesk_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	u64 weight = weight_of(vm);
	u32 rank;

	if (!account)
		return;
	forfeit(account, weight);
	rank = rank_of(thread, account, weight);
	if (rank <= BOOSTED_VCPU)
		dsq_insert_vtime(p, DSQ_BOOST, SLICE, rank, enq_flags);
	else
		dsq_insert_vtime(p, DSQ_CREDIT, SLICE, account->vtime, enq_flags);
	/* Who has had his slice waits for his turn. */
	if (rank <= BOOSTED_VCPU || enq_flags & SCX_ENQ_WAKEUP)
		find_cpu(p, rank);
}

/* Whether the thread that has had its slice is still the one to run. */
static __always_inline bool stays(struct task_struct *prev)
{
	struct bpf_iter_scx_dsq it;
	struct thread *thread;
	struct account *account;
	struct task_struct *head;
	bool first = true;
	u64 vtime;
	u32 vm;

	if (!prev || !(((struct task_struct___scx *)prev)->scx.flags & SCX_TASK_QUEUED))
		return false;
	vm = vm_of(prev, &thread);
	account = bpf_map_lookup_elem(&accounts, &vm);
	if (!account)
		return false;
	vtime = account->vtime;
	bpf_iter_scx_dsq_new(&it, DSQ_CREDIT, 0);
	head = bpf_iter_scx_dsq_next(&it);
	if (head)
		first = !before(((struct task_struct___scx *)head)->scx.dsq_vtime, vtime);
	bpf_iter_scx_dsq_destroy(&it);
	if (first)
		advance(vtime);
	return first;
}

SEC("struct_ops/frontdesk_dispatch")
void BPF_PROG(frontdesk_dispatch, s32 cpu, struct task_struct *prev)
{
	refill();
	if (dsq_move_to_local(DSQ_BOOST))
		return;
	/* The queue is by virtual time, and the one who leaves the CPU is not in it yet. */
	if (stays(prev))
		set_slice(prev, SLICE);
	else
		dsq_move_to_local(DSQ_CREDIT);
}

SEC("struct_ops/frontdesk_running")
void BPF_PROG(frontdesk_running, struct task_struct *p)
{
	u32 number = scx_bpf_task_cpu(p);
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	u64 weight = weight_of(vm);

	if (!cpu || !account)
		return;
	forfeit(account, weight);
	cpu->started = ((struct task_struct___scx *)p)->se.sum_exec_runtime;
	cpu->tid = p->pid;
	cpu->vm = vm;
	cpu->rank = rank_of(thread, account, weight);
	__sync_fetch_and_add(&account->runs, 1);
	if (cpu->rank <= BOOSTED_VCPU)
		__sync_fetch_and_add(&account->boosted_runs, 1);
	else
		/* As it was when the thread began to wait: its VM may have run on, elsewhere. */
		advance(((struct task_struct___scx *)p)->scx.dsq_vtime);
}

SEC("struct_ops/frontdesk_tick")
void BPF_PROG(frontdesk_tick, struct task_struct *p)
{
	u32 number = scx_bpf_task_cpu(p);
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	u64 weight = weight_of(vm);

	if (!cpu || !account)
		return;
	charge(p, cpu, account, weight);
	cpu->rank = rank_of(thread, account, weight);
}

SEC("struct_ops/frontdesk_stopping")
void BPF_PROG(frontdesk_stopping, struct task_struct *p, bool runnable)
{
	u32 number = scx_bpf_task_cpu(p);
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);

	if (!cpu || !account)
		return;
	charge(p, cpu, account, weight_of(vm));
	cpu->tid = 0;
	cpu->rank = NOT_OURS;
}

/* An ordinary thread has taken the CPU: those that wait for this one may go to another. */
SEC("struct_ops/frontdesk_cpu_release")
void BPF_PROG(frontdesk_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local();
}

SEC("struct_ops.s/frontdesk_init")
s32 BPF_PROG(frontdesk_init)
{
	s32 i, error = scx_bpf_create_dsq(DSQ_BOOST, -1);

	if (!error)
		error = scx_bpf_create_dsq(DSQ_CREDIT, -1);
	bpf_for(i, 0, MAX_CPUS) {
		u32 key = i;
		struct cpu *cpu = bpf_map_lookup_elem(&cpus, &key);

		if (cpu)
			cpu->rank = NOT_OURS;
	}
	return error;
}

SEC("struct_ops/frontdesk_exit")
void BPF_PROG(frontdesk_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(ejection.reason, sizeof(ejection.reason), info->reason);
	bpf_probe_read_kernel_str(ejection.message, sizeof(ejection.message), info->msg);
	ejection.kind = info->kind;
}

/* A boost begins or ends: called by user space. */
struct boost {
	u32 tid; /* of the vCPU */
	u32 on;
};

/* Moves the threads of a VM that wait by their credit and are now boosted to where they go first. */
static __always_inline void promote(u32 vm, struct account *account)
{
	u64 weight = weight_of(vm);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	bpf_iter_scx_dsq_new(&it, DSQ_CREDIT, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct thread *thread;
		u32 rank;

		if (vm_of(p, &thread) != vm)
			continue;
		rank = rank_of(thread, account, weight);
		if (rank <= BOOSTED_VCPU && dsq_move_vtime(&it, p, DSQ_BOOST, rank))
			find_cpu(p, rank);
	}
	bpf_iter_scx_dsq_destroy(&it);
}

/* Tells those that run what they are now. One that is no longer boosted is put where its credit says. */
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
		if (cpu->rank <= BOOSTED_VCPU && rank > BOOSTED_VCPU)
			scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
		else
			cpu->rank = rank;
	}
}

SEC("syscall")
int set_boost(struct boost *boost)
{
	u32 tid = boost->tid, on = boost->on != 0;
	struct thread *thread = bpf_map_lookup_elem(&threads, &tid);
	struct account *account;
	u32 vm;

	if (!thread || thread->vcpu == EMULATOR)
		return -1;
	vm = thread->vm;
	account = bpf_map_lookup_elem(&accounts, &vm);
	if (!account)
		return -1;
	if (thread->boosted == on)
		return 0;
	thread->boosted = on;
	__sync_fetch_and_add(&account->boosts, on ? 1 : -1);
	bpf_rcu_read_lock();
	rerank(vm, account);
	if (on)
		promote(vm, account);
	bpf_rcu_read_unlock();
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops frontdesk = {
	.select_cpu = (void *)frontdesk_select_cpu,
	.enqueue = (void *)frontdesk_enqueue,
	.dispatch = (void *)frontdesk_dispatch,
	.tick = (void *)frontdesk_tick,
	.running = (void *)frontdesk_running,
	.stopping = (void *)frontdesk_stopping,
	.cpu_release = (void *)frontdesk_cpu_release,
	.init = (void *)frontdesk_init,
	.exit = (void *)frontdesk_exit,
	.flags = SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 5000,
	.name = "frontdesk",
};

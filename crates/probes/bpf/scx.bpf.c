// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A sched_ext scheduler for the threads of VMs: a credit scheduler (TAVS 3.2, 4.2) whose boosts are charged
 * like all other run time. It is partial: it has the threads whose policy is SCHED_EXT, and no others.
 *
 * Each VM has a weight and one account for all its threads. Run time advances the account's virtual time by
 * time / weight, and the VM goes first that is the furthest behind.
 *
 *   BOOST  boosted emulator threads and vCPUs, in this order, and those for multimedia before those for I/O;
 *          preempts the others, and a higher boost a lower one
 *   UNDER  a VM that is no further than those that wait; preempts those that are when it wakes
 *   OVER   one that is further: it has used more than its part
 *
 * BOOST has a queue of its own. UNDER and OVER are one queue in the order of virtual time, so that the
 * weights hold in both. The queues are shared by all CPUs.
 *
 * Inside a VM each thread has a weight and a virtual time of its own, and there is the one that all its
 * threads would have that want to run if they shared exactly by weight. A thread that is beyond that has had
 * more than its part of what its VM got, and waits in the queue as if its VM were so much further (see turn):
 * that is how long the others take to get theirs. It is held back by no more than HOLD, and not at all while
 * its VM is behind. So the weights say who of a VM goes first, and nothing about what the VM gets.
 *
 * Why nobody starves: min_vtime is the greatest virtual time of all that left the queue for a CPU. A thread
 * that begins to wait is at most a lap beyond it (see settle), and keeps its place. Whoever overtakes it has
 * less virtual time and is charged for what he runs, so each VM overtakes it until it has come as far, and
 * then at most once more with each of its threads that wait since an earlier time. A lap is what all CPUs
 * together hand out to all VMs in LAP, even if all compute, and nobody begins with more than SAVINGS. Boosted
 * threads overtake it as well, but while only these run, min_vtime stays where it is, and a VM that is DEBT
 * beyond it is not boosted.
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
	u32 unused;
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

static __always_inline u32 rank_of(struct thread *thread, struct account *account, u64 weight)
{
	u64 debt = DEBT * DEFAULT_WEIGHT / weight, vtime = account->vtime;

	/* Whoever is a lap beyond has the rest forgiven, and is to pay that much. */
	if (debt > lap() / 2)
		debt = lap() / 2;
	if (thread && !before(min_vtime + debt, vtime)) {
		if (thread->vcpu == EMULATOR && account->emulators)
			return account->emulators == MULTIMEDIA ? MEDIA_EMULATOR : BOOSTED_EMULATOR;
		if (thread->level)
			return thread->level == MULTIMEDIA ? MEDIA_VCPU : BOOSTED_VCPU;
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

SEC("struct_ops/frontdesk_runnable")
void BPF_PROG(frontdesk_runnable, struct task_struct *p, u64 enq_flags)
{
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	u64 inner;

	if (!account || !thread)
		return;
	/* Nobody of the VM was held back while all of it slept. */
	if (!account->wanting)
		settle_to(account, weight_of(vm), SAVINGS);
	/* Who slept has no claim to what he did not want. */
	inner = account->inner;
	if (before(thread->vtime, inner))
		thread->vtime = inner;
	count(thread, account, thread->weight);
}

SEC("struct_ops/frontdesk_quiescent")
void BPF_PROG(frontdesk_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct thread *thread;
	u32 vm = vm_of(p, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);

	if (account && thread)
		count(thread, account, 0);
}

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
	u64 weight = weight_of(vm), vtime;
	u32 rank;

	if (!account)
		return;
	settle(account, weight);
	settle_thread(thread, account);
	vtime = turn(thread, account, weight);
	rank = rank_of(thread, account, weight);
	if (rank <= BOOSTED_VCPU)
		dsq_insert_vtime(p, DSQ_BOOST, SLICE, rank, enq_flags);
	else
		dsq_insert_vtime(p, DSQ_FAIR, SLICE, vtime, enq_flags);
	/* Who has had his slice waits for his turn. */
	find_cpu(p, rank, rank <= BOOSTED_VCPU || enq_flags & SCX_ENQ_WAKEUP);
}

/* Whether the first that waits in a queue is to go before a place in its order, or at that place. */
static __always_inline bool waits_before(u64 dsq, u64 place, bool at)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *head;
	bool waits = false;
	u64 first;

	bpf_iter_scx_dsq_new(&it, dsq, 0);
	head = bpf_iter_scx_dsq_next(&it);
	if (head) {
		first = ((struct task_struct___scx *)head)->scx.dsq_vtime;
		waits = before(first, place) || (at && first == place);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return waits;
}

/* Whether the thread that has had its slice is still the one to run: the queues do not have it yet. */
static __always_inline bool stays(struct task_struct *prev)
{
	u32 number = scx_bpf_task_cpu(prev);
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	struct thread *thread;
	u32 vm = vm_of(prev, &thread);
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	u64 weight = weight_of(vm);

	if (!cpu || !account)
		return false;
	charge(prev, cpu, thread, account, weight);
	cpu->rank = rank_of(thread, account, weight);
	/* Those of one rank take turns. */
	if (waits_before(DSQ_BOOST, cpu->rank, true))
		return false;
	if (cpu->rank <= BOOSTED_VCPU)
		return true;
	settle_thread(thread, account);
	if (waits_before(DSQ_FAIR, turn(thread, account, weight), false))
		return false;
	advance(account->vtime);
	return true;
}

SEC("struct_ops/frontdesk_dispatch")
void BPF_PROG(frontdesk_dispatch, s32 cpu, struct task_struct *prev)
{
	if (prev && ((struct task_struct___scx *)prev)->scx.flags & SCX_TASK_QUEUED && stays(prev))
		set_slice(prev, SLICE);
	else if (!dsq_move_to_local(DSQ_BOOST))
		dsq_move_to_local(DSQ_FAIR);
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
	settle(account, weight);
	cpu->started = ((struct task_struct___scx *)p)->se.sum_exec_runtime;
	cpu->tid = p->pid;
	cpu->vm = vm;
	cpu->rank = rank_of(thread, account, weight);
	__sync_fetch_and_add(&account->runs, 1);
	if (cpu->rank <= BOOSTED_VCPU) {
		__sync_fetch_and_add(&account->boosted_runs, 1);
	} else {
		/*
		 * As it was when the thread began to wait: its VM may have run on, elsewhere. Or it was held
		 * back.
		 */
		u64 vtime = ((struct task_struct___scx *)p)->scx.dsq_vtime;

		advance(before(vtime, account->vtime) ? vtime : account->vtime);
	}
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
	charge(p, cpu, thread, account, weight);
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
	charge(p, cpu, thread, account, weight_of(vm));
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
		error = scx_bpf_create_dsq(DSQ_FAIR, -1);
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

/* What user space wants from now on. */
struct order {
	u32 what; /* enum wish */
	u32 of;   /* a vCPU's thread id, or an account */
	u32 value;
};

enum wish {
	BOOST,		 /* of a vCPU: enum level */
	BOOST_EMULATORS, /* of an account: enum level */
	WEIGHT,		 /* of a vCPU */
};

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

SEC("syscall")
int obey(struct order *order)
{
	u32 what = order->what, vm = order->of, tid = order->of, value = order->value;
	struct thread *thread = NULL;
	struct account *account;
	bool raised;

	if (what != BOOST_EMULATORS) {
		thread = bpf_map_lookup_elem(&threads, &tid);
		if (!thread || thread->vcpu == EMULATOR)
			return -1;
		vm = thread->vm;
	}
	account = bpf_map_lookup_elem(&accounts, &vm);
	if (!account)
		return -1;
	if (what == WEIGHT && thread) {
		if (value)
			set_weight(thread, account, value);
		return 0;
	}
	raised = value > (thread ? thread->level : account->emulators);
	if (thread)
		thread->level = value;
	else
		account->emulators = value;
	bpf_rcu_read_lock();
	rerank(vm, account);
	if (raised) {
		promote(vm, account, DSQ_FAIR);
		promote(vm, account, DSQ_BOOST);
	}
	bpf_rcu_read_unlock();
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops frontdesk = {
	.select_cpu = (void *)frontdesk_select_cpu,
	.enqueue = (void *)frontdesk_enqueue,
	.dispatch = (void *)frontdesk_dispatch,
	.runnable = (void *)frontdesk_runnable,
	.quiescent = (void *)frontdesk_quiescent,
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

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
#include "scx_boost.h"
#include "packet.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

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
	/* CPUs have been called for them, this one perhaps. */
	if (misplaced && __sync_lock_test_and_set(&misplaced, 0))
		promote(ALL_VMS, DSQ_FAIR, MOVE);
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

/* Why the kernel has ejected the scheduler. */
struct ejection {
	u32 kind; /* 0: it has not */
	char reason[64];
	char message[128];
};

/* Read by user space. */
struct ejection ejection;

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
		promote(vm, DSQ_FAIR, MOVE | CALL);
		promote(vm, DSQ_BOOST, MOVE | CALL);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* What the kernel may do by itself for a VM from now on; level 0: nothing. */
struct mandate_order {
	u64 handled; /* user space has handled the packets up to then (CLOCK_MONOTONIC, ns) */
	u64 lasts;
	u32 account;
	u32 level;
	u32 vcpus[MAX_MANDATED];
};

/*
 * Takes back what the kernel gave for a packet that user space has handled: what that wants of the threads it
 * has ordered. Returns 1, with no mandate, if the kernel gave something for a later one.
 */
SEC("syscall")
int mandate(struct mandate_order *order)
{
	u32 vm = order->account;
	struct account *account = bpf_map_lookup_elem(&accounts, &vm);
	struct mandate *mandate = bpf_map_lookup_elem(&mandates, &vm);
	s32 i;

	if (!account || !mandate)
		return -1;
	/* It is not used while it changes. */
	__sync_lock_test_and_set(&mandate->ready, 0);
	if (mandate->used_at > order->handled)
		return 1;
	if (mandate->used_at) {
		mandate->used_at = 0;
		bpf_rcu_read_lock();
		give(vm, account, mandate, NONE, 0);
		bpf_rcu_read_unlock();
	}
	mandate->lasts = order->lasts;
	mandate->level = order->level;
	for (i = 0; i < MAX_MANDATED; i++)
		mandate->vcpus[i] = order->vcpus[i];
	if (order->level)
		__sync_lock_test_and_set(&mandate->ready, 1);
	return 0;
}

/* A VM and its account. */
struct receiver {
	u32 vm;
	u32 account;
};

/* From user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VMS);
	__type(key, struct tap_key);
	__type(value, struct receiver);
} taps SEC(".maps");

struct port {
	u32 vm;
	u16 number;
	u8 protocol;
	u8 unused;
};

/* Where an I/O-bound task waits for packets, as far as the engine has learnt. From user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, struct port);
	__type(value, u8);
} ports SEC(".maps");

/*
 * A packet is about to be queued towards a VM. User space hears of it, too, and after this program: it is
 * told when.
 */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_transmit, const struct sk_buff *skb, const struct net_device *dev)
{
	struct frame frame = { .data = skb->data, .linear = skb->len - skb->data_len, .length = skb->len };
	struct tap_key key = {};
	struct packet packet = {};
	struct port port = {};
	struct receiver *receiver;
	struct account *account;
	struct mandate *mandate;
	u64 came, now;
	u32 vm;

	if (ejection.kind)
		return 0;
	key_of(dev, &key);
	receiver = bpf_map_lookup_elem(&taps, &key);
	if (!receiver)
		return 0;
	came = bpf_ktime_get_ns();
	if (parse(&frame, &packet) != WAITED_FOR)
		return 0;
	port.vm = receiver->vm;
	port.number = packet.to;
	port.protocol = packet.protocol;
	vm = receiver->account;
	account = bpf_map_lookup_elem(&accounts, &vm);
	mandate = bpf_map_lookup_elem(&mandates, &vm);
	if (!account || !mandate || !bpf_map_lookup_elem(&ports, &port) ||
	    __sync_val_compare_and_swap(&mandate->ready, 1, 0) != 1)
		return 0;
	now = bpf_ktime_get_ns();
	mandate->used_at = now;
	__sync_fetch_and_add(&account->gifts, 1);
	give(vm, account, mandate, mandate->level, now + mandate->lasts);
	/* Only the scheduler's own programs may move threads. */
	misplaced = 1;
	promote(vm, DSQ_FAIR, CALL);
	mandate->took = bpf_ktime_get_ns() - came;
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

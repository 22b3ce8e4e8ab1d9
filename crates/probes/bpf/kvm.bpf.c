// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Which guest task the vCPUs of followed VMs under KVM run: the address space (CR3) that the guest has
 * loaded, looked up at moments when KVM knows it. And which interrupts they take and send each other. Only
 * what changes is reported, and only so often, so that no guest can flood the daemon. src/kvm.rs chooses the
 * programs that this host's processor and KVM call for.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Where KVM's modules keep what is read here, in bytes. Their types are described beside them, where libbpf
 * may look with CAP_SYS_ADMIN only, and everybody else can read: so src/kvm/layout.rs does, and writes it
 * here. For the same reason their tracepoints are taken raw.
 */
const volatile struct layout {
	u32 vmcb;     /* pointer to the control block, in struct vcpu_svm, which begins with struct kvm_vcpu */
	u32 id;       /* in struct kvm_vcpu, as those that follow */
	u32 cr3;
	u32 mp_state;
	u32 notifier; /* in the list of the thread's */
} layout;

static __always_inline u64 word_at(const void *base, u32 offset)
{
	u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), base + offset);
	return word;
}

static __always_inline u32 half_at(const void *base, u32 offset)
{
	u32 half = 0;

	bpf_probe_read_kernel(&half, sizeof(half), base + offset);
	return half;
}

/* Shared with src/kvm/abi.rs. */
enum kind {
	KIND_SWITCH = 1,
	KIND_HALT = 2,
	KIND_RESUME = 3,
	KIND_SEEN = 4,
	KIND_INTERRUPT = 5,
	KIND_IPI = 6,
	KIND_IPI_TAKEN = 7,
};

struct record {
	u64 at;    /* CLOCK_MONOTONIC, ns */
	u64 value; /* switch and seen: the address space; IPI: a bit for each vCPU that it goes to */
	u32 vm;
	u16 index; /* of the vCPU */
	u8 kind;
	u8 vector; /* interrupt and IPI */
};

/* See admit(). */
struct guard {
	u64 window;
	u64 admitted;
};

/* A bit for each interrupt vector. */
struct vectors {
	u64 words[4];
};

/* Changed only by the vCPU's own thread, or on its CPU while that switches to or from it. */
struct vcpu {
	u32 vm;
	u16 index;
	u8 interrupts; /* whether they are wanted */
	u8 halted;     /* as last reported */
	u64 task;      /* likewise; 0: none yet */
	u64 reported;  /* when, ns */
	u64 loaded;    /* CR3, where every load of it is known */
	struct guard tasks_guard;
	struct guard interrupts_guard;
	struct vectors sent; /* by other vCPUs, which add to it, and not taken yet */
	struct vectors own;  /* raised by its own controller and not taken yet: the clock's */
	u64 sending_since;
	u64 to;        /* who has accepted the interrupt that it is sending: a bit for each index below 64 */
	u16 sending;   /* SENDING and its vector, or 0 */
	u8 to_one;     /* whether it is for one vCPU */
	u8 identified; /* whether `by_id` has it */
	u8 shows;      /* whether what it runs is shown in `askers` */
	u8 unused[3];
	u64 shown;     /* the task that is shown there as the current one */
};

enum counter {
	COUNT_PUSHED,     /* records pushed to the daemon */
	COUNT_SUPPRESSED, /* beyond the flood guard */
	COUNT_LOST,       /* records that found the ring full */
	COUNTERS,
};

#include "channel.h"

/* By thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

/* KVM's number of a vCPU, which is that of its interrupt controller, and not its index in every topology. */
struct id {
	u32 vm;
	u32 id;
};

/* Threads by it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct id);
	__type(value, u32);
} by_id SEC(".maps");

/*
 * Who asks for what the disks of a VM are to do: memory for each VM that has such disks, which their back
 * ends map, so that they need not wait for the daemon. src/kvm/task_memory.rs makes it.
 */
#define MAX_ASKERS 512

struct asker {
	u64 current;       /* the task that the vCPU was last seen to run; 0: none yet */
	u64 notified;      /* the task that it ran when it last notified a disk */
	u64 notifications; /* how often it did, counted after `notified`, and before the disk hears of it */
	u64 unused[5];     /* a cache line for each vCPU */
};

/* By index of the vCPU. */
struct asker_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ASKERS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct asker)); /* the compiler describes the type itself only in part here */
};

/* By VM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 1024);
	__type(key, u32);
	__array(values, struct asker_array);
} askers SEC(".maps");

/* An eventfd by which a VM notifies a disk, by the kernel's number. */
struct notifier {
	u32 vm;
	u32 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct notifier);
	__type(value, u8);
} notifiers SEC(".maps");

/* Threads whose next record of a kind that is of interest is to wake the daemon, once. Interests are bits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u8);
} armed SEC(".maps");

#define NO_INTEREST 0
#define INTEREST_TASKS 1
#define INTEREST_INTERRUPTS 2

/*
 * Flood guard. A window of 1 ms admits 16 records of a vCPU about tasks, and as many about interrupts. What
 * it does not admit is not taken for reported either: the next window begins with what is so then.
 */
#define WINDOW_NS 1000000
#define WINDOW_RECORDS 16

static __always_inline bool admit(struct guard *guard, u64 now)
{
	u64 window = now / WINDOW_NS;

	if (guard->window != window) {
		guard->window = window;
		guard->admitted = 0;
	}
	if (guard->admitted >= WINDOW_RECORDS) {
		count(COUNT_SUPPRESSED);
		return false;
	}
	guard->admitted++;
	return true;
}

/* Records wake nobody, but one that was asked to, and those that get the ring half full. */
static __always_inline u64 wake(u32 tid, u8 interest)
{
	u8 *asked = interest ? bpf_map_lookup_elem(&armed, &tid) : NULL;

	if (asked && *asked & interest) {
		bpf_map_delete_elem(&armed, &tid);
		return BPF_RB_FORCE_WAKEUP;
	}
	return wake_if_filling();
}

static __always_inline void submit(struct vcpu *v, u32 tid, u64 at, u8 kind, u8 vector, u64 value, u8 interest)
{
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost(v->vm);
		return;
	}
	r->at = at;
	r->value = value;
	r->vm = v->vm;
	r->index = v->index;
	r->kind = kind;
	r->vector = vector;
	bpf_ringbuf_submit(r, wake(tid, interest));
	count(COUNT_PUSHED);
}

/* Whether it is reported, or lost, which the daemon hears of as well. */
static __always_inline bool push(struct vcpu *v, u32 tid, u8 kind, u64 task, bool news)
{
	u64 now = bpf_ktime_get_ns();

	if (!admit(&v->tasks_guard, now))
		return false;
	submit(v, tid, now, kind, 0, task, news ? INTEREST_TASKS : NO_INTEREST);
	v->reported = now;
	return true;
}

static __always_inline void push_interrupt(struct vcpu *v, u32 tid, u64 at, u8 kind, u8 vector, u64 to)
{
	if (admit(&v->interrupts_guard, at))
		submit(v, tid, at, kind, vector, to, INTEREST_INTERRUPTS);
}

/*
 * The task that a CR3 value names, as the TCG plugin has it: the page table's address without the flag and
 * PCID bits (0 to 11), the bit in which the two halves of an isolated page table differ (12), and the bits
 * above the address.
 */
#define TASK_MASK 0x000fffffffffe000ull

static __always_inline struct asker *asker_of(struct vcpu *v)
{
	u32 vm = v->vm, index = v->index;
	void *of_vm = bpf_map_lookup_elem(&askers, &vm);

	return of_vm ? bpf_map_lookup_elem(of_vm, &index) : NULL;
}

/* Back ends of disks are shown every task, also those that the flood guard keeps from the daemon. */
static __always_inline void show(struct vcpu *v, u64 task)
{
	struct asker *asker;

	if (!v->shows || task == v->shown)
		return;
	asker = asker_of(v);
	if (!asker)
		return;
	asker->current = task;
	v->shown = task;
}

/* Reports what the guest has loaded, if that is news. Encrypted guests show 0. */
static __always_inline void switched_to(struct vcpu *v, u32 tid)
{
	u64 task = v->loaded & TASK_MASK;

	if (!task)
		return;
	show(v, task);
	if (task != v->task && push(v, tid, KIND_SWITCH, task, true))
		v->task = task;
}

#define AGAIN_NS 100000

/*
 * Reports what the guest is seen to have loaded. That it is the same as before counts as well, but not every
 * time.
 */
static __always_inline void seen(struct vcpu *v, u32 tid, u64 cr3)
{
	u64 task = cr3 & TASK_MASK;

	if (!task)
		return;
	show(v, task);
	if (task == v->task && bpf_ktime_get_ns() - v->reported < AGAIN_NS)
		return;
	if (push(v, tid, KIND_SEEN, task, task != v->task))
		v->task = task;
}

static __always_inline void halted(struct vcpu *v, u32 tid)
{
	if (!v->halted && push(v, tid, KIND_HALT, 0, true))
		v->halted = 1;
}

static __always_inline void resumed(struct vcpu *v, u32 tid)
{
	if (v->halted && push(v, tid, KIND_RESUME, 0, true))
		v->halted = 0;
}

#define KVM_ISA_SVM 2
#define SVM_EXIT_HLT 0x78
/* Where the processor has them in the control block (AMD's manual, volume 2, appendix B). */
#define VMCB_EXIT_CODE 0x70
#define VMCB_CR3 0x550

/*
 * On AMD processors with nested paging, the guest's CR3 is in the control block (VMCB) whenever the guest
 * does not run. While the guest runs a guest of its own, `vmcb01` holds what it had loaded before.
 */
SEC("raw_tp/kvm_exit")
int BPF_PROG(on_exit, struct kvm_vcpu *vcpu, u32 isa)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);
	const void *vmcb;

	if (!v || !vcpu || isa != KVM_ISA_SVM)
		return 0;
	vmcb = (const void *)word_at(vcpu, layout.vmcb);
	seen(v, tid, word_at(vmcb, VMCB_CR3));
	if (half_at(vmcb, VMCB_EXIT_CODE) == SVM_EXIT_HLT)
		halted(v, tid);
	return 0;
}

/* The vCPU has sent its interrupt, which is told if there was anybody to accept it. */
static __always_inline void sent(struct vcpu *v, u32 tid)
{
	if (v->sending && v->to)
		push_interrupt(v, tid, v->sending_since, KIND_IPI, v->sending, v->to);
	v->sending = 0;
}

static __always_inline void identify(struct vcpu *v, u32 tid, struct kvm_vcpu *vcpu)
{
	struct id key = { .vm = v->vm, .id = half_at(vcpu, layout.id) };

	/* It fails if there is no room, and then nothing is told of its interrupts. */
	if (!bpf_map_update_elem(&by_id, &key, &tid, BPF_ANY))
		v->identified = 1;
}

/* The vCPU is about to run guest code. */
SEC("raw_tp/kvm_entry")
int BPF_PROG(on_entry, struct kvm_vcpu *vcpu)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);

	if (!v || !vcpu)
		return 0;
	resumed(v, tid);
	if (v->interrupts) {
		sent(v, tid);
		if (!v->identified)
			identify(v, tid, vcpu);
	}
	return 0;
}

/*
 * Interrupts. KVM tells when it injects one into a guest: then the vCPU enters the handler. Whose it is, it
 * does not tell, but it told before, when the vCPU's controller accepted it, in the thread that it came from:
 * one that comes from a vCPU while that sends this vector is its, one that a vCPU's own thread raises for
 * itself is its own controller's (the clock's, mostly), and what is left is a device's. So no destination has
 * to be decoded.
 */
#define SENDING 0x100
/* Delivery modes of interrupts that have a vector: fixed, and lowest priority. */
#define ORDINARY(mode) ((mode) <= 1)

/*
 * The vCPU's own thread carries out its command to send an interrupt. To one, it is told as soon as that has
 * accepted it.
 */
static __always_inline void sends(struct vcpu *v, u32 tid, u32 command, bool to_one)
{
	sent(v, tid);
	if (!ORDINARY(command >> 8 & 7))
		return;
	v->sending = SENDING | (command & 0xff);
	v->sending_since = bpf_ktime_get_ns();
	v->to = 0;
	v->to_one = to_one;
}

static __always_inline struct vcpu *telling(u32 tid)
{
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);

	return v && v->interrupts ? v : NULL;
}

static __always_inline bool is_one_bit(u64 bits)
{
	return bits && !(bits & (bits - 1));
}

/* The guest has written its controller's interrupt command register (ICR). */
SEC("raw_tp/kvm_apic_ipi")
int BPF_PROG(on_ipi, u32 command, u32 destination)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = telling(tid);
	bool shorthand = command >> 18 & 3, logical = command >> 11 & 1;

	/* That of x2APIC's logical mode has a bit for each vCPU in its lower half. */
	if (v)
		sends(v, tid, command,
		      !shorthand && (logical ? is_one_bit(destination & 0xffff) : destination < 0xff));
	return 0;
}

#define KVM_HC_SEND_IPI 10

/* Linux has a hypercall for interrupts to many: bits, and the command. */
SEC("raw_tp/kvm_hypercall")
int BPF_PROG(on_hypercall, unsigned long number, unsigned long low, unsigned long high, unsigned long first,
	     unsigned long command)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = number == KVM_HC_SEND_IPI ? telling(tid) : NULL;

	if (v)
		sends(v, tid, command, false);
	return 0;
}

static __always_inline void add(struct vectors *to, u8 vector)
{
	__sync_fetch_and_or(&to->words[vector >> 6], 1ull << (vector & 63));
}

/* Whether it was among them. */
static __always_inline bool take(struct vectors *from, u8 vector)
{
	u64 bit = 1ull << (vector & 63);

	return __sync_fetch_and_and(&from->words[vector >> 6], ~bit) & bit;
}

static __always_inline struct vcpu *with_id(u32 vm, u32 id)
{
	struct id key = { .vm = vm, .id = id };
	u32 *tid = bpf_map_lookup_elem(&by_id, &key);

	return tid ? bpf_map_lookup_elem(&vcpus, tid) : NULL;
}

/* The controller of a vCPU accepts an interrupt. The thread that it comes from is the current one. */
SEC("raw_tp/kvm_apic_accept_irq")
int BPF_PROG(on_accept, u32 id, u16 mode, u16 is_level, u8 vector)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = telling(tid), *to;

	if (!v || !ORDINARY(mode >> 8))
		return 0;
	to = with_id(v->vm, id);
	if (!to || to->vm != v->vm)
		return 0;
	if (v->sending != (SENDING | vector)) {
		if (to->index == v->index)
			add(&v->own, vector);
		return 0;
	}
	add(&to->sent, vector);
	if (to->index < 64)
		v->to |= 1ull << to->index;
	if (v->to_one)
		sent(v, tid);
	return 0;
}

/*
 * KVM injects an interrupt into the guest: the vCPU takes it. `again`: an exit came between that and the
 * handler.
 */
SEC("raw_tp/kvm_inj_virq")
int BPF_PROG(on_interrupt, u32 vector, bool soft, bool again)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = telling(tid);
	u64 now;

	/* What is sent to one that is not identified cannot be told from a device's. */
	if (!v || !v->identified || soft || again)
		return 0;
	now = bpf_ktime_get_ns();
	if (take(&v->sent, vector))
		push_interrupt(v, tid, now, KIND_IPI_TAKEN, 0, 0);
	else if (!take(&v->own, vector))
		push_interrupt(v, tid, now, KIND_INTERRUPT, vector, 0);
	return 0;
}

/*
 * The guest loads CR3, and KVM has done it. (The tracepoint kvm_cr is silent where KVM emulates the
 * instruction, as it does on AMD processors without decode assists.)
 */
SEC("fexit/kvm_set_cr3")
int BPF_PROG(on_load, struct kvm_vcpu *vcpu, unsigned long cr3, int refused)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);

	if (!v || refused)
		return 0;
	v->loaded = cr3;
	switched_to(v, tid);
	return 0;
}

#define KVM_MP_STATE_HALTED 3

/* While a thread is in KVM_RUN, KVM wants to hear when it is switched: its notifier is part of the vCPU. */
static __always_inline struct kvm_vcpu *entered(struct task_struct *task)
{
	void *notifier = task->preempt_notifiers.first;

	if (!notifier)
		return NULL;
	return notifier - layout.notifier;
}

static __always_inline void switched(struct task_struct *prev, struct task_struct *next, bool sample)
{
	u32 from = prev->pid, to = next->pid;
	struct vcpu *v = from ? bpf_map_lookup_elem(&vcpus, &from) : NULL;
	struct kvm_vcpu *vcpu = v ? entered(prev) : NULL;

	if (v && vcpu) {
		if (sample)
			seen(v, from, word_at(vcpu, layout.cr3));
		else
			switched_to(v, from);
		if (half_at(vcpu, layout.mp_state) == KVM_MP_STATE_HALTED)
			halted(v, from);
	}
	v = to ? bpf_map_lookup_elem(&vcpus, &to) : NULL;
	if (v)
		resumed(v, to);
}

/*
 * A vCPU's thread stops or goes on. If it stops because the guest has halted, KVM has taken a note of that.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switched(prev, next, false);
	return 0;
}

/*
 * The same, with KVM's copy of CR3. It is right, unless the processor keeps CR3 to itself, as Intel's do with
 * EPT.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch_sample, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switched(prev, next, true);
	return 0;
}

/*
 * A vCPU notifies a device: in its thread, KVM carries out the guest's write by signalling an eventfd. By
 * then KVM has a copy of CR3, but on processors that keep CR3 to themselves. Interrupts that come to this
 * thread signal eventfds, too, but none that a guest notifies a disk by.
 */
static __always_inline void signals(struct eventfd_ctx *eventfd)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);
	struct kvm_vcpu *vcpu = v && v->shows ? entered(bpf_get_current_task_btf()) : NULL;
	struct notifier key = {};
	struct asker *asker;

	if (!v || !vcpu)
		return;
	key.vm = v->vm;
	key.id = eventfd->id;
	asker = bpf_map_lookup_elem(&notifiers, &key) ? asker_of(v) : NULL;
	if (!asker)
		return;
	asker->notified = word_at(vcpu, layout.cr3) & TASK_MASK;
	barrier();
	/* Only its own thread counts. */
	asker->notifications++;
}

/* Until Linux 6.7. */
SEC("fentry/eventfd_signal")
int BPF_PROG(on_signal, struct eventfd_ctx *eventfd)
{
	signals(eventfd);
	return 0;
}

/* Since Linux 6.8. */
SEC("fentry/eventfd_signal_mask")
int BPF_PROG(on_signal_mask, struct eventfd_ctx *eventfd)
{
	signals(eventfd);
	return 0;
}

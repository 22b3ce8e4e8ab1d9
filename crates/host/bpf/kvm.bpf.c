// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Which guest task the vCPUs of followed VMs under KVM run: the address space (CR3) that the guest has loaded, looked
 * up at moments when KVM knows it. Only what changes is reported, and only so often, so that no guest can flood the
 * daemon. src/kvm.rs chooses the programs that this host's processor and KVM call for.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Shared with src/kvm/abi.rs. */
enum kind {
	KIND_SWITCH = 1,
	KIND_HALT = 2,
	KIND_RESUME = 3,
	KIND_SEEN = 4,
};

struct record {
	u64 at;    /* CLOCK_MONOTONIC, ns */
	u64 task;  /* switch and seen: the address space */
	u32 vm;
	u16 index; /* of the vCPU */
	u16 kind;
};

/* Changed only by the vCPU's own thread, or on its CPU while that switches to or from it. */
struct vcpu {
	u32 vm;
	u16 index;
	u16 halted;   /* as last reported */
	u64 task;     /* likewise; 0: none yet */
	u64 reported; /* when, ns */
	u64 loaded;   /* CR3, where every load of it is known */
	u64 window;   /* see admit() */
	u64 admitted;
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
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

/* Threads whose next record is to wake the daemon, once. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u8);
} armed SEC(".maps");

/*
 * Flood guard. A window of 1 ms admits 16 records of a vCPU. What it does not admit is not taken for reported either: the
 * next window begins with what is so then.
 */
#define WINDOW_NS 1000000
#define WINDOW_RECORDS 16

static __always_inline bool admit(struct vcpu *v, u64 now)
{
	u64 window = now / WINDOW_NS;

	if (v->window != window) {
		v->window = window;
		v->admitted = 0;
	}
	if (v->admitted >= WINDOW_RECORDS) {
		count(COUNT_SUPPRESSED);
		return false;
	}
	v->admitted++;
	return true;
}

/* Records wake nobody, but one that was asked to, and those that get the ring half full. */
static __always_inline u64 wake(u32 tid, bool news)
{
	if (news && bpf_map_lookup_elem(&armed, &tid)) {
		bpf_map_delete_elem(&armed, &tid);
		return BPF_RB_FORCE_WAKEUP;
	}
	return wake_if_filling();
}

/* Whether it is reported, or lost, which the daemon hears of as well. */
static __always_inline bool push(struct vcpu *v, u32 tid, u16 kind, u64 task, bool news)
{
	u64 now = bpf_ktime_get_ns();
	struct record *r;

	if (!admit(v, now))
		return false;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_lost(v->vm);
		return true;
	}
	r->at = now;
	r->task = task;
	r->vm = v->vm;
	r->index = v->index;
	r->kind = kind;
	bpf_ringbuf_submit(r, wake(tid, news));
	count(COUNT_PUSHED);
	v->reported = now;
	return true;
}

/*
 * The task that a CR3 value names, as the TCG plugin has it: the page table's address without the flag and PCID bits
 * (0 to 11), the bit in which the two halves of an isolated page table differ (12), and the bits above the address.
 */
#define TASK_MASK 0x000fffffffffe000ull

/* Reports what the guest has loaded, if that is news. Encrypted guests show 0. */
static __always_inline void switched_to(struct vcpu *v, u32 tid)
{
	u64 task = v->loaded & TASK_MASK;

	if (task && task != v->task && push(v, tid, KIND_SWITCH, task, true))
		v->task = task;
}

#define AGAIN_NS 100000

/* Reports what the guest is seen to have loaded. That it is the same as before counts as well, but not every time. */
static __always_inline void seen(struct vcpu *v, u32 tid, u64 cr3)
{
	u64 task = cr3 & TASK_MASK;

	if (!task || (task == v->task && bpf_ktime_get_ns() - v->reported < AGAIN_NS))
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

/*
 * On AMD processors with nested paging, the guest's CR3 is in the control block (VMCB) whenever the guest does not run. While
 * the guest runs a guest of its own, `vmcb01` holds what it had loaded before.
 */
SEC("tp_btf/kvm_exit")
int BPF_PROG(on_exit, struct kvm_vcpu *vcpu, u32 isa)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);
	struct vcpu_svm *svm;
	struct vmcb *vmcb;

	if (!v || !vcpu || isa != KVM_ISA_SVM)
		return 0;
	svm = (void *)vcpu - bpf_core_field_offset(struct vcpu_svm, vcpu);
	vmcb = BPF_CORE_READ(svm, vmcb01.ptr);
	seen(v, tid, BPF_CORE_READ(vmcb, save.cr3));
	if (BPF_CORE_READ(vmcb, control.exit_code) == SVM_EXIT_HLT)
		halted(v, tid);
	return 0;
}

/* The vCPU is about to run guest code. */
SEC("tp_btf/kvm_entry")
int on_entry(void *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &tid);

	if (v)
		resumed(v, tid);
	return 0;
}

/*
 * The guest loads CR3, and KVM has done it. (The tracepoint kvm_cr is silent where KVM emulates the instruction, as it does
 * on AMD processors without decode assists.)
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
	notifier -= bpf_core_field_offset(struct preempt_notifier, link);
	return notifier - bpf_core_field_offset(struct kvm_vcpu, preempt_notifier);
}

static __always_inline void switched(struct task_struct *prev, struct task_struct *next, bool sample)
{
	u32 from = prev->pid, to = next->pid;
	struct vcpu *v = from ? bpf_map_lookup_elem(&vcpus, &from) : NULL;
	struct kvm_vcpu *vcpu = v ? entered(prev) : NULL;

	if (v && vcpu) {
		if (sample)
			seen(v, from, BPF_CORE_READ(vcpu, arch.cr3));
		else
			switched_to(v, from);
		if (BPF_CORE_READ(vcpu, arch.mp_state) == KVM_MP_STATE_HALTED)
			halted(v, from);
	}
	v = to ? bpf_map_lookup_elem(&vcpus, &to) : NULL;
	if (v)
		resumed(v, to);
}

/* A vCPU's thread stops or goes on. If it stops because the guest has halted, KVM has taken a note of that. */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switched(prev, next, false);
	return 0;
}

/* The same, with KVM's copy of CR3. It is right, unless the processor keeps CR3 to itself, as Intel's do with EPT. */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch_sample, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switched(prev, next, true);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The CPU time of what has a reservation, exact while it runs: another process's CPU clock is only as fresh
 * as the last tick. Each member of a target has a slot in memory shared with frontdesk, which reads it
 * without a system call. Threads of a member are all on one CPU, so that at most one runs at a time. New
 * threads and, where the target is a group of processes, new processes are members from their first instant.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Shared with src/reserve/meter.rs. */
#define SLOTS 1024
#define CPUS 1024

struct slot {
	u64 ran;    /* CPU time so far, ns, without that since `since` */
	u64 since;  /* when it began to run, CLOCK_MONOTONIC ns; 0 if it does not */
	u64 woken;  /* when it last woke up */
	u64 ready;  /* it runs or wants to */
	u64 ends;   /* its slice ends when it `ran` so long; 0 if it has none */
	u64 late;   /* a wake-up after this time changes who comes first; 0 if none does */
	u64 family; /* new processes belong to it, too */
	u64 cpu;    /* whose dispatcher decides about it */
};

struct slot slots[SLOTS] __attribute__((aligned(64)));

/* When the dispatcher of each CPU will decide next. 0 if it has been told to do so at once. */
u64 armed[CPUS];

/* A thread that came into being. */
struct birth {
	u32 pid;
	u32 tid;
	u32 slot;
	u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} members SEC(".maps");

/* Wakes a dispatcher; what is in it does not matter. */
struct kick_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* One for each CPU that has a dispatcher. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, CPUS);
	__type(key, u32);
	__array(values, struct kick_ring);
} kicks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} births SEC(".maps");

static __always_inline struct slot *slot_of(u32 tid)
{
	u32 *index = tid ? bpf_map_lookup_elem(&members, &tid) : NULL;

	return index && *index < SLOTS ? &slots[*index] : NULL;
}

static __always_inline u64 armed_for(struct slot *s)
{
	return s->cpu < CPUS ? armed[s->cpu & (CPUS - 1)] : 0;
}

/* The dispatcher of a member has to decide before it meant to. */
static __always_inline void kick(struct slot *s)
{
	u32 cpu = s->cpu & (CPUS - 1);
	void *ring;
	u64 one = 1;

	armed[cpu] = 0;
	ring = bpf_map_lookup_elem(&kicks, &cpu);
	if (ring)
		bpf_ringbuf_output(ring, &one, sizeof(one), BPF_RB_FORCE_WAKEUP);
}

static __always_inline void stop(struct slot *s, u64 now, bool ready)
{
	if (s->since && now > s->since)
		s->ran += now - s->since;
	s->since = 0;
	s->ready = ready;
}

static __always_inline void begin(struct slot *s, u64 now)
{
	s->since = now;
	if (!s->ready)
		s->woken = now;
	s->ready = 1;
	if (s->ends > s->ran && now + (s->ends - s->ran) < armed_for(s))
		kick(s);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	struct slot *from = slot_of(prev->pid), *to = slot_of(next->pid);
	u64 now;

	if (!from && !to)
		return 0;
	now = bpf_ktime_get_ns();
	if (from)
		stop(from, now, preempt || prev_state == 0);
	if (to)
		begin(to, now);
	return 0;
}

/*
 * After a switch, in the thread that runs now. On one kernel (6.18, of a sandbox) neither this program's
 * sister above nor perf heard of switches away from threads of process 1; why is not known. A member that
 * takes the CPU from such a thread is seen here. Not all kernels have this place.
 */
SEC("tp_btf/sched_exit_tp")
int BPF_PROG(on_switched)
{
	struct slot *s = slot_of(bpf_get_current_pid_tgid());

	if (s && !s->since)
		begin(s, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct slot *s = slot_of(task->pid);
	u64 now;

	if (!s || s->ready)
		return 0;
	now = bpf_ktime_get_ns();
	s->woken = now;
	s->ready = 1;
	if (s->late && now > s->late && armed_for(s))
		kick(s);
	return 0;
}

#define CLONE_THREAD 0x00010000

SEC("tp_btf/task_newtask")
int BPF_PROG(on_birth, struct task_struct *task, u64 clone_flags)
{
	u32 parent = bpf_get_current_pid_tgid(), tid = task->pid, index;
	u32 *known = bpf_map_lookup_elem(&members, &parent);
	struct birth birth = {};

	if (!known)
		return 0;
	index = *known;
	if (index >= SLOTS || !((clone_flags & CLONE_THREAD) || slots[index].family))
		return 0;
	bpf_map_update_elem(&members, &tid, &index, BPF_ANY);
	birth.pid = task->tgid;
	birth.tid = tid;
	birth.slot = index;
	bpf_ringbuf_output(&births, &birth, sizeof(birth), BPF_RB_FORCE_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u32 tid = task->pid;
	struct slot *s = slot_of(tid);

	if (!s)
		return 0;
	stop(s, bpf_ktime_get_ns(), false);
	bpf_map_delete_elem(&members, &tid);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What frontdesk hears from the host kernel: when threads of followed VMs get and lose a CPU or wake up,
 * which packets are queued towards a VM and which of them it replies to, which reads of its disks begin and
 * end, what changes on its display, and what a person does at its keyboard and mouse. Everything is filtered
 * here, so that unrelated threads and devices cost next to nothing and no guest can flood the daemon.
 */
#include "packet.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Shared with src/bpf/abi.rs. */
enum kind {
	KIND_RUN = 1,
	KIND_STOP = 2,
	KIND_WAKE = 3,
	KIND_PACKET = 4,
	KIND_READ = 5,
	KIND_READ_PENDING = 6,
	KIND_READ_DONE = 7,
	KIND_REPLY = 8,
	KIND_DISPLAY = 9,
	KIND_GPU = 10,
	KIND_INPUT = 11,
};

struct record {
	u64 at;     /* CLOCK_MONOTONIC, ns */
	u32 vm;
	u8 kind;
	u8 detail;  /* stop: still runnable; packet, reply: IP protocol number;
		       input: INPUT_ENTER and so on */
	u16 role;   /* of the thread; display: left edge */
	u16 index;  /* of the thread among those of its role; packet: destination port; reply: source port;
		       display: upper edge */
	u16 cpu;
	u32 request; /* read: which; wake: index of the VM's own vCPU that woke it plus 1, or 0;
			display: width in the upper half, height in the lower */
};

/* Roles of threads. */
#define ROLE_VCPU 0
#define ROLE_EMULATOR 1

struct thread {
	u32 vm;
	u16 role;
	u16 index;
	u32 waker;  /* index of the VM's own vCPU that is waking it plus 1, or 0 */
};

struct tap {
	u32 vm;
	u32 asked;   /* see asked_at(): the last packet that was pushed, until there is a reply to it, or 0 */
	u64 window;  /* see admit() */
	u32 replied; /* sequence number of the last reply by TCP, */
	u16 to;      /* and the port that it went to */
	u16 unused;
};

/* The QEMU process of a VM. */
struct process {
	u32 vm;
	s32 in_flight;  /* reads of all its disks */
	u64 requests;   /* windows, see admit() */
	u64 wakeups;
	u64 completions;
	u64 updates;    /* of its display */
	u64 gpu;
	u64 inputs;
};

enum counter {
	COUNT_PACKETS,     /* transmitted on a followed tap */
	COUNT_PUSHED,      /* packets pushed to the daemon */
	COUNT_WOKEN,       /* of these, with a wake-up */
	COUNT_NO_PAYLOAD,  /* TCP segments that no task waits for and that do not count */
	COUNT_OTHER,       /* neither TCP nor UDP, a later fragment, or headers out of reach */
	COUNT_SUPPRESSED,  /* beyond the flood guard */
	COUNT_LOST,        /* records of any kind that found the ring full, or their VM's budget used up */
	COUNT_READS,       /* reads of followed VMs that ended */
	COUNT_UPDATES,     /* of displays of followed VMs */
	COUNTERS,
};

#include "channel.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* a VM has 577 at most: some with so many leave room for the others */
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct tap_key);
	__type(value, struct tap);
} taps SEC(".maps");

/* By process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct process);
} processes SEC(".maps");

/*
 * What a VM's QEMU runs in threads that are not followed one by one. It may start and end as many as it likes
 * at any time: none of them has to be known, and none has anything told of it. By process, and on each CPU by
 * itself, where one of them runs at a time. Shared with src/bpf/abi.rs.
 */
struct others {
	u64 ran;    /* ns, without that since `since` */
	u64 since;  /* when one began to run here, CLOCK_MONOTONIC ns; 0 if none does */
	u64 waited; /* ns runnable before they ran here, those that have stopped */
	u64 delay;  /* what the one that runs had waited in all before it waited to run here, ns */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct others);
} others SEC(".maps");

/* The process whose clock runs on this CPU, or 0: at most switches none does, and nothing is looked up. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} clocked SEC(".maps");

/* How long a task has been runnable without running, up to when it ran last: the kernel adds to it after the
 * tracepoint of the switch. 0 of kernels that do not count. */
static __always_inline u64 delay_of(struct task_struct *task)
{
	return bpf_core_field_exists(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
}

/* The first thread of a QEMU is always followed, and of other processes most have no second. */
static __always_inline void others_begin(struct task_struct *task)
{
	u32 id = task->tgid, first = 0, *running;
	struct others *o = id != (u32)task->pid ? bpf_map_lookup_elem(&others, &id) : NULL;

	running = o ? bpf_map_lookup_elem(&clocked, &first) : NULL;
	if (!running)
		return;
	*running = id;
	o->delay = delay_of(task);
	*(volatile u64 *)&o->since = bpf_ktime_get_ns();
}

/*
 * Whoever stops now: one that is followed by now may have begun to run when it was not, and one that has
 * called execve() since has the number of the first thread.
 */
static __always_inline void others_end(struct task_struct *task)
{
	u32 first = 0, *running = bpf_map_lookup_elem(&clocked, &first), id = running ? *running : 0;
	struct others *o = id ? bpf_map_lookup_elem(&others, &id) : NULL;
	u64 since = o ? o->since : 0;

	if (!id)
		return;
	*running = 0;
	if (!since)
		return;
	/* In this order: who reads both in between, `ran` first, finds too little and not too much. */
	*(volatile u64 *)&o->since = 0;
	*(volatile u64 *)&o->ran += bpf_ktime_get_ns() - since;
	/* Who began here is who stops here. */
	*(volatile u64 *)&o->waited += delay_of(task) - o->delay;
}

static __always_inline void push(u32 vm, u8 kind, u8 detail, u16 role, u16 index, u32 request, u64 at, u64 wake)
{
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_lost(vm);
		return;
	}
	r->at = at;
	r->vm = vm;
	r->kind = kind;
	r->detail = detail;
	r->role = role;
	r->index = index;
	r->cpu = bpf_get_smp_processor_id();
	r->request = request;
	bpf_ringbuf_submit(r, wake);
}

/*
 * The ring is everybody's. A VM whose threads switch as fast as they can would push out what others have to
 * say, so each has a budget: so many records about threads in a window of 1 ms, of which the ring holds a
 * hundred. Those of 64 vCPUs that each sleep and wake once in a millisecond fit in. What is beyond is lost
 * for that VM, which the daemon hears of.
 */
#define BUDGET_NS 1000000
#define BUDGET_RECORDS 256

/* By VM: the window's number (upper 48 bits) and its count (lower 16). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} budgets SEC(".maps");

static __always_inline bool affords(u32 vm, u64 now)
{
	u64 *budget = bpf_map_lookup_elem(&budgets, &vm), number = now / BUDGET_NS, seen;

	if (!budget)
		return true;
	seen = *(volatile u64 *)budget;
	/* Of several CPUs that begin a window at once, one does. An earlier, late one counts to it. */
	if (seen >> 16 < number && __sync_val_compare_and_swap(budget, seen, number << 16 | 1) == seen)
		return true;
	/* CPUs that count at once exceed it by one each, far from the upper bits. */
	if ((*(volatile u64 *)budget & 0xffff) >= BUDGET_RECORDS)
		return false;
	__sync_fetch_and_add(budget, 1);
	return true;
}

static __always_inline void push_thread(const struct thread *t, u8 kind, u8 detail, u32 waker)
{
	u64 now = bpf_ktime_get_ns();

	if (affords(t->vm, now))
		push(t->vm, kind, detail, t->role, t->index, waker, now, wake_if_filling());
	else
		count_lost(t->vm);
}

/* The idle task (pid 0) is one side of most switches and never followed. */
static __always_inline struct thread *followed(struct task_struct *task)
{
	u32 tid = task->pid;

	return tid ? bpf_map_lookup_elem(&threads, &tid) : NULL;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	struct thread *t = followed(prev);

	if (t)
		push_thread(t, KIND_STOP, preempt || prev_state == 0, 0);
	others_end(prev);
	t = followed(next);
	if (t)
		push_thread(t, KIND_RUN, 0, 0);
	else
		others_begin(next);
	return 0;
}

/*
 * Flood guard. A window of 1 ms admits 16 events of a kind of a tap or VM (TAVS 3.3.2 records at most 16),
 * the first 4 of them with a wake-up, which costs more than ten microseconds. It is the window's number
 * (upper 48 bits) and its count (lower 16), changed as one, so that CPUs at it at once cannot exceed the
 * limits.
 */
#define WINDOW_NS 1000000
#define WINDOW_EVENTS 16
#define WINDOW_WAKEUPS 4
#define CAS_ATTEMPTS 4

enum verdict { SUPPRESS, ADMIT, ADMIT_AND_WAKE };

static __always_inline enum verdict admit(u64 *window, u64 now)
{
	u64 number = now / WINDOW_NS, seen = *(volatile u64 *)window, found;
	int i;

	for (i = 0; i < CAS_ATTEMPTS; i++) {
		u64 used = seen >> 16 == number ? seen & 0xffff : 0;

		if (used >= WINDOW_EVENTS)
			return SUPPRESS;
		found = __sync_val_compare_and_swap(window, seen, number << 16 | (used + 1));
		if (found == seen)
			return used < WINDOW_WAKEUPS ? ADMIT_AND_WAKE : ADMIT;
		seen = found;
	}
	return SUPPRESS;
}

/*
 * A thread of the I/O path that is woken while reads are in flight is about to complete one: the earliest
 * sign of it, whatever the disk is stored in. Not if the VM itself woke it, for that is a new request.
 */
static __always_inline void read_pending(const struct thread *t, struct task_struct *task)
{
	u32 id = task->tgid;
	struct process *p = bpf_map_lookup_elem(&processes, &id);
	u64 now;

	if (!p || p->in_flight <= 0)
		return;
	now = bpf_ktime_get_ns();
	if (admit(&p->wakeups, now) == ADMIT_AND_WAKE)
		push(t->vm, KIND_READ_PENDING, 0, 0, 0, 0, now, BPF_RB_FORCE_WAKEUP);
}

/*
 * Somebody is about to wake a task. Who it is has to be seen now: the wake-up itself is left to the CPU that
 * the task sleeps on if that is idle or far away, and whoever that runs is no waker. From here to there
 * nobody else wakes it.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct thread *t = followed(task), *by;
	u32 current = bpf_get_current_pid_tgid();

	if (!t)
		return 0;
	by = current ? bpf_map_lookup_elem(&threads, &current) : NULL;
	t->waker = by && by->vm == t->vm && by->role == ROLE_VCPU ? by->index + 1 : 0;
	return 0;
}

/* A vCPU that wakes a thread of its VM's I/O path, be that QEMU's or a vhost worker, rings a doorbell. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct thread *t = followed(task);
	bool rings = t && t->role == ROLE_EMULATOR && t->waker;

	/* A task woken before it got round to sleeping is still on its CPU: nothing changed for it. */
	if (!t || (task->on_cpu && !rings))
		return 0;
	push_thread(t, KIND_WAKE, 0, t->waker);
	if (t->role == ROLE_EMULATOR && !rings)
		read_pending(t, task);
	return 0;
}

/* Whether TCP segments without payload count as packets, too: tavs.acknowledgements. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} acknowledgements SEC(".maps");

static __always_inline bool acknowledgements_count(void)
{
	u32 first = 0, *counts = bpf_map_lookup_elem(&acknowledgements, &first);

	return counts && *counts;
}

/* The tap of a followed VM. */
static __always_inline struct tap *tap_of(const struct net_device *dev)
{
	struct tap_key key = {};

	key_of(dev, &key);
	return bpf_map_lookup_elem(&taps, &key);
}

/* Protocol and port; and for a packet that was pushed with a wake-up, its reply is pushed with one. */
#define ASKED_WOKEN 0x1000000

static __always_inline u32 asked_at(u8 protocol, u16 port)
{
	return protocol << 16 | port;
}

/* What the host transmits on a tap, the guest receives. */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_transmit, const struct sk_buff *skb, const struct net_device *dev)
{
	struct frame frame = { .data = skb->data, .linear = skb->len - skb->data_len, .length = skb->len };
	struct tap *tap = tap_of(dev);
	struct packet packet = {};
	enum verdict verdict;
	u64 now;

	if (!tap)
		return 0;
	count(COUNT_PACKETS);
	switch (parse(&frame, &packet)) {
	case NO_PORT:
		count(COUNT_OTHER);
		return 0;
	case NO_PAYLOAD:
		if (!acknowledgements_count()) {
			count(COUNT_NO_PAYLOAD);
			return 0;
		}
		break;
	case WAITED_FOR:
		break;
	}
	now = bpf_ktime_get_ns();
	verdict = admit(&tap->window, now);
	if (verdict == SUPPRESS) {
		count(COUNT_SUPPRESSED);
		return 0;
	}
	count(COUNT_PUSHED);
	if (verdict == ADMIT_AND_WAKE)
		count(COUNT_WOKEN);
	*(volatile u32 *)&tap->asked =
		asked_at(packet.protocol, packet.to) | (verdict == ADMIT_AND_WAKE ? ASKED_WOKEN : 0);
	/* The ring's adaptive wake-up does not fire while unread no-wake-up records lie before this one. */
	push(tap->vm, KIND_PACKET, packet.protocol, 0, packet.to, 0, now,
	     verdict == ADMIT_AND_WAKE ? BPF_RB_FORCE_WAKEUP : wake_if_filling());
	return 0;
}

/*
 * A guest that was kept from running sends its last answer again: its timer comes before the acknowledgement.
 */
static __always_inline bool is_repeated(struct tap *tap, const struct packet *packet)
{
	if (packet->protocol != PROTO_TCP)
		return false;
	if (packet->to == tap->to && (s32)(packet->sequence - tap->replied) <= 0)
		return true;
	tap->to = packet->to;
	tap->replied = packet->sequence;
	return false;
}

/*
 * What the guest sends, the host receives on the tap. The first that carries anything new from the port that
 * was asked last is the reply: there are no more of them than packets, so they need no guard of their own.
 */
SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_receive, const struct sk_buff *skb)
{
	struct tap *tap = tap_of(skb->dev);
	struct packet packet = {};
	struct frame frame;
	u32 asked;

	if (!tap)
		return 0;
	asked = *(volatile u32 *)&tap->asked;
	if (!asked)
		return 0;
	/* The Ethernet header has been taken off its length already. */
	frame.data = skb->head + skb->mac_header;
	frame.linear = skb->len - skb->data_len + ETH_HEADER;
	frame.length = skb->len + ETH_HEADER;
	if (parse(&frame, &packet) != WAITED_FOR ||
	    asked_at(packet.protocol, packet.from) != (asked & ~ASKED_WOKEN) || is_repeated(tap, &packet))
		return 0;
	if (__sync_val_compare_and_swap(&tap->asked, asked, 0) == asked)
		push(tap->vm, KIND_REPLY, packet.protocol, 0, packet.from, 0, bpf_ktime_get_ns(),
		     asked & ASKED_WOKEN ? BPF_RB_FORCE_WAKEUP : wake_if_filling());
	return 0;
}

/*
 * QEMU's own accounting of disk requests, which all its disk devices do: block_acct_start(stats, cookie,
 * bytes, type) when it takes a request from the guest, and block_acct_done or block_acct_failed(stats,
 * cookie) just after it has told the guest. The cookie is part of the request, hence says which one it is.
 */
#define BLOCK_ACCT_READ 1

static __always_inline struct process *current_process(void)
{
	u32 id = bpf_get_current_pid_tgid() >> 32;

	return bpf_map_lookup_elem(&processes, &id);
}

/* Addresses of things alive at once in one process do not agree in these bits. */
static __always_inline u32 request_of(struct pt_regs *ctx)
{
	return PT_REGS_PARM2(ctx) >> 4;
}

SEC("uprobe.multi")
int on_read(struct pt_regs *ctx)
{
	struct process *p = current_process();
	u64 now;

	if (!p || (int)PT_REGS_PARM4(ctx) != BLOCK_ACCT_READ)
		return 0;
	__sync_fetch_and_add(&p->in_flight, 1);
	now = bpf_ktime_get_ns();
	if (admit(&p->requests, now) != SUPPRESS)
		push(p->vm, KIND_READ, 0, 0, 0, request_of(ctx), now, wake_if_filling());
	return 0;
}

SEC("uprobe.multi")
int on_read_done(struct pt_regs *ctx)
{
	/* struct BlockAcctCookie: int64_t bytes, start_time_ns; enum type. */
	struct { s64 bytes, start; u32 type; } cookie;
	struct process *p = current_process();
	enum verdict verdict;
	u64 now;

	if (!p || bpf_probe_read_user(&cookie, sizeof(cookie), (const void *)PT_REGS_PARM2(ctx)) ||
	    cookie.type != BLOCK_ACCT_READ)
		return 0;
	/* One that was in flight when the VM was adopted was not counted. */
	if (p->in_flight > 0)
		__sync_fetch_and_add(&p->in_flight, -1);
	count(COUNT_READS);
	now = bpf_ktime_get_ns();
	verdict = admit(&p->completions, now);
	if (verdict != SUPPRESS)
		push(p->vm, KIND_READ_DONE, 0, 0, 0, request_of(ctx), now,
		     verdict == ADMIT_AND_WAKE ? BPF_RB_FORCE_WAKEUP : wake_if_filling());
	return 0;
}

static __always_inline u16 clamp(int pixels)
{
	return pixels < 0 ? 0 : pixels > 0xffff ? 0xffff : pixels;
}

/* void dpy_gfx_update(QemuConsole *con, int x, int y, int w, int h): what a device has drawn. */
SEC("uprobe.multi")
int on_display(struct pt_regs *ctx)
{
	struct process *p = current_process();
	enum verdict verdict;
	u64 now;

	if (!p)
		return 0;
	count(COUNT_UPDATES);
	now = bpf_ktime_get_ns();
	verdict = admit(&p->updates, now);
	if (verdict == SUPPRESS) {
		count(COUNT_SUPPRESSED);
		return 0;
	}
	push(p->vm, KIND_DISPLAY, 0, clamp(PT_REGS_PARM2(ctx)), clamp(PT_REGS_PARM3(ctx)),
	     (u32)clamp(PT_REGS_PARM4(ctx)) << 16 | clamp(PT_REGS_PARM5(ctx)), now,
	     verdict == ADMIT_AND_WAKE ? BPF_RB_FORCE_WAKEUP : wake_if_filling());
	return 0;
}

/* virtio_gpu_ctrl_response(): the graphics processor has carried out a command. */
SEC("uprobe.multi")
int on_gpu(struct pt_regs *ctx)
{
	struct process *p = current_process();
	u64 now;

	if (!p)
		return 0;
	now = bpf_ktime_get_ns();
	if (admit(&p->gpu, now) == SUPPRESS) {
		count(COUNT_SUPPRESSED);
		return 0;
	}
	push(p->vm, KIND_GPU, 0, 0, 0, 0, now, wake_if_filling());
	return 0;
}

/*
 * void qemu_input_event_send_impl(QemuConsole *src, InputEvent *evt): QEMU gives a guest's device what a
 * person, or QMP, does. By the interface's description, qapi/ui.json, the same from 7.2 to 10.0:
 *
 * InputEvent: a type (key, button, motions), and at 8 a pointer to what it is about.
 * Key: at 0 a pointer to its value, which has a type (QEMU makes all of them codes) and at 8 a code; at 8
 * whether it is pressed.
 * Button: at 0 which, at 4 whether it is pressed. The wheel is four of them.
 */
#define EVENT_KEY 0
#define EVENT_BUTTON 1
#define VALUE_QCODE 1
#define QCODE_RET 35
#define QCODE_KP_ENTER 78
#define BUTTON_WHEEL_UP 3
#define BUTTON_WHEEL_DOWN 4
#define BUTTON_WHEEL_LEFT 7
#define BUTTON_WHEEL_RIGHT 8

#define INPUT_NONE 0
#define INPUT_ENTER 1
#define INPUT_KEY 2
#define INPUT_BUTTON 3

static __always_inline u8 input_of_key(u64 at)
{
	struct { u64 value; u8 down; } key;
	struct { u32 type, unused; u32 code; } value;

	if (bpf_probe_read_user(&key, sizeof(key), (const void *)at) || !key.down ||
	    bpf_probe_read_user(&value, sizeof(value), (const void *)key.value))
		return INPUT_NONE;
	return value.type == VALUE_QCODE && (value.code == QCODE_RET || value.code == QCODE_KP_ENTER) ?
		INPUT_ENTER : INPUT_KEY;
}

static __always_inline u8 input_of_button(u64 at)
{
	struct { u32 which; u8 down; } button;

	if (bpf_probe_read_user(&button, sizeof(button), (const void *)at))
		return INPUT_NONE;
	switch (button.which) {
	case BUTTON_WHEEL_UP:
	case BUTTON_WHEEL_DOWN:
	case BUTTON_WHEEL_LEFT:
	case BUTTON_WHEEL_RIGHT:
		return button.down ? INPUT_KEY : INPUT_NONE;
	}
	return button.down ? INPUT_NONE : INPUT_BUTTON;
}

SEC("uprobe.multi")
int on_input(struct pt_regs *ctx)
{
	struct { u32 type, unused; u64 data; } event;
	struct process *p = current_process();
	u8 input = INPUT_NONE;
	enum verdict verdict;
	u64 now;

	if (!p || bpf_probe_read_user(&event, sizeof(event), (const void *)PT_REGS_PARM2(ctx)))
		return 0;
	if (event.type == EVENT_KEY)
		input = input_of_key(event.data);
	else if (event.type == EVENT_BUTTON)
		input = input_of_button(event.data);
	if (input == INPUT_NONE)
		return 0;
	now = bpf_ktime_get_ns();
	verdict = admit(&p->inputs, now);
	if (verdict == SUPPRESS) {
		count(COUNT_SUPPRESSED);
		return 0;
	}
	push(p->vm, KIND_INPUT, input, 0, 0, 0, now,
	     verdict == ADMIT_AND_WAKE ? BPF_RB_FORCE_WAKEUP : wake_if_filling());
	return 0;
}

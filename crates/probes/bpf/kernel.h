/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types the programs read, written by hand. CO-RE relocates every field to the running
 * kernel's layout, so that neither a generated vmlinux.h nor bpftool is needed to build.
 */
#ifndef FRONTDESK_KERNEL_H
#define FRONTDESK_KERNEL_H

/* For bpf_tracing.h: registers have the kernel's names. */
#define __VMLINUX_H__

typedef unsigned char u8, __u8;
typedef signed char __s8;
typedef unsigned short u16, __u16, __be16, __sum16;
typedef short __s16;
typedef unsigned int u32, __u32, __be32, __wsum;
typedef int s32, __s32;
typedef unsigned long long u64, __u64, __be64;
typedef long long s64, __s64;
typedef _Bool bool;
enum { false = 0, true = 1 };

/* User-space ABI numbers that bpf_helpers.h expects vmlinux.h to define. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
enum { BPF_RB_AVAIL_DATA = 0 };
enum { BPF_ANY = 0 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1 << 10 };

#define __core __attribute__((preserve_access_index))

struct hlist_node {
	struct hlist_node *next;
} __core;

struct hlist_head {
	struct hlist_node *first;
} __core;

struct sched_info {
	unsigned long long run_delay;
} __core;

struct task_struct {
	int pid;
	int tgid;
	struct sched_info sched_info;
	/*
	 * A signed int before 7.3, a byte since: the size of a load is adapted only if it is unsigned here.
	 */
	u32 on_cpu;
	struct hlist_head preempt_notifiers;
} __core;

struct eventfd_ctx {
	int id;
} __core;

struct kvm_vcpu;

/* The registers of a user-space thread, by the ABI of x86-64. */
struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long cx;
	unsigned long r8;
} __core;

struct ns_common {
	unsigned int inum;
} __core;

struct net {
	struct ns_common ns;
} __core;

typedef struct {
	struct net *net;
} __core possible_net_t;

struct net_device {
	char name[16];
	possible_net_t nd_net;
} __core;

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	unsigned char *data;
	u16 mac_header; /* from the head */
	unsigned int len;
	unsigned int data_len;
} __core;

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What frontdesk's programs and the daemon have between them: a ring of records, and counters, also of what
 * was lost. src/channel.rs is the other end. Whoever includes it has an `enum counter` with COUNT_LOST and,
 * last, COUNTERS.
 */
#ifndef FRONTDESK_CHANNEL_H
#define FRONTDESK_CHANNEL_H

#define RING_BYTES (1 << 20)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} ring SEC(".maps");

/* Records lost per VM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline void count(u32 which)
{
	u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline void count_lost(u32 vm)
{
	u64 *value = bpf_map_lookup_elem(&lost, &vm);

	if (value)
		__sync_fetch_and_add(value, 1);
	count(COUNT_LOST);
}

/*
 * Most records wake nobody: the daemon reads them when another one, the ring of the TCG plugin or its own
 * timer wakes it. Only a ring that gets half full is worth a wake-up, and only while it does: waking for
 * every record beyond would cost more than ten times the record. The width of that zone makes sure that one
 * of several CPUs pushing at once finds itself in it.
 */
#define ZONE_BYTES 4096

static __always_inline u64 wake_if_filling(void)
{
	u64 over = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) - RING_BYTES / 2;

	/* Below half, the unsigned difference is huge. */
	return over < ZONE_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Taps, and what the packets on them are for. */
#ifndef FRONTDESK_PACKET_H
#define FRONTDESK_PACKET_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct tap_key {
	u32 netns;
	char name[16];
};

#define ETH_HEADER 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define PROTO_TCP 6
#define PROTO_UDP 17
#define TCP_FIN 0x01
#define TCP_RST 0x04

enum parsed { NO_PORT, NO_PAYLOAD, WAITED_FOR };

struct packet {
	u32 sequence; /* TCP */
	u16 from;
	u16 to;
	u8 protocol;
};

/* An Ethernet frame, of which the first `linear` of `length` bytes are in one piece. */
struct frame {
	const unsigned char *data;
	u32 linear;
	u32 length;
};

static __always_inline bool load(const struct frame *frame, u32 offset, void *to, u32 size)
{
	if (offset + size > frame->linear)
		return false;
	return bpf_probe_read_kernel(to, size, frame->data + offset) == 0;
}

static __always_inline enum parsed parse(const struct frame *frame, struct packet *packet)
{
	u32 at = ETH_HEADER, end;
	bool payload = true;
	u8 h[20];
	u16 type;

	if (!load(frame, 12, &type, 2))
		return NO_PORT;
	if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD)) {
		if (!load(frame, 16, &type, 2))
			return NO_PORT;
		at += 4;
	}
	/*
	 * The IP header says where the packet ends: a short Ethernet frame is padded, and padding is no
	 * payload. A length of 0 is a segmentation-offload packet of more than 64 KiB.
	 */
	if (type == bpf_htons(ETH_P_IP)) {
		u16 length;

		if (!load(frame, at, h, 20))
			return NO_PORT;
		if ((h[6] & 0x1f) | h[7]) /* a later fragment has no ports */
			return NO_PORT;
		length = h[2] << 8 | h[3];
		end = length ? at + length : frame->length;
		packet->protocol = h[9];
		at += (h[0] & 0xf) * 4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		u16 length;

		if (!load(frame, at, h, 8))
			return NO_PORT;
		length = h[4] << 8 | h[5];
		at += 40;
		end = length ? at + length : frame->length;
		packet->protocol = h[6];
	} else {
		return NO_PORT;
	}
	if (packet->protocol == PROTO_UDP) {
		if (!load(frame, at, h, 8))
			return NO_PORT;
	} else if (packet->protocol == PROTO_TCP) {
		if (!load(frame, at, h, 20))
			return NO_PORT;
		packet->sequence = (u32)h[4] << 24 | h[5] << 16 | h[6] << 8 | h[7];
		payload = at + (h[12] >> 4) * 4 < end || h[13] & (TCP_FIN | TCP_RST);
	} else {
		return NO_PORT;
	}
	packet->from = h[0] << 8 | h[1];
	packet->to = h[2] << 8 | h[3];
	return payload ? WAITED_FOR : NO_PAYLOAD;
}

static __always_inline void key_of(const struct net_device *dev, struct tap_key *key)
{
	key->netns = dev->nd_net.net->ns.inum;
	bpf_probe_read_kernel_str(key->name, sizeof(key->name), dev->name);
}

#endif

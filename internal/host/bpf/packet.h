/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a packet is on the wire. */
#ifndef METE_PACKET_H
#define METE_PACKET_H

#include "kernel.h"

/* What an Ethernet interface counts of a packet beyond the IP header and up. */
#define ETH_HLEN 14

#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_SCTP 132

/*
 * Bytes and packets, as the group's counts have them and as an Ethernet interface
 * counts them: one in memory counts a large packet, which is divided later, once.
 */
struct packet_size {
	__u64 wire;
	__u64 interface;
	__u64 packets;
	__u64 interface_packets;
};

/* The length of the headers that each segment of a large packet repeats. */
static __always_inline __u32 header_size(struct __sk_buff *skb)
{
	__u8 b = 0, proto = 0;
	__u32 ip;

	if (bpf_skb_load_bytes(skb, 0, &b, 1))
		return 0;
	if (b >> 4 == 4) {
		ip = (b & 15) * 4;
		if (bpf_skb_load_bytes(skb, 9, &proto, 1))
			return 0;
	} else {
		ip = 40;
		if (bpf_skb_load_bytes(skb, 6, &proto, 1))
			return 0;
	}
	if (proto == PROTO_UDP)
		return ip + 8;
	if (proto != PROTO_TCP || bpf_skb_load_bytes(skb, ip + 12, &b, 1))
		return ip;
	return ip + (b >> 4) * 4;
}

static __always_inline void packet(struct __sk_buff *skb, struct packet_size *n)
{
	__u32 len = skb->len, segs = skb->gso_segs, size = skb->gso_size;

	n->wire = len;
	n->interface = len + ETH_HLEN;
	n->packets = 1;
	n->interface_packets = 1;
	if (size && len > size) {
		__u32 header = header_size(skb);

		if (!segs && len > header)
			segs = (len - header + size - 1) / size;
		if (segs > 1) {
			n->wire += (__u64)header * (segs - 1);
			n->packets = segs;
		}
	}
}

#endif

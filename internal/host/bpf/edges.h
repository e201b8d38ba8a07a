/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Traffic by connection: by peer and listener's port. Each edge has the class of
 * its traffic, so that one lookup a packet gives both.
 */
#ifndef METE_EDGES_H
#define METE_EDGES_H

#include "classes.h"

/* How many edges the sockets of a key may have at a time. */
#define EDGES_OF_KEY 2048

#define EDGE_SIX 1     /* the peer's address is of IPv6 */
#define EDGE_LISTENS 2 /* the port is of this end */

/* All connections with a peer to one port, in one direction of opening. */
struct edge_key {
	__u64 group;
	__u32 netns;
	__u16 port; /* of the end that listens, in network byte order; 0 if there are none */
	__u8 protocol;
	__u8 flags;
	__u32 peer[4];
};
const struct edge_key *unused_edge_key __attribute__((unused));

struct edge_counts {
	struct packet_size received;
	struct packet_size sent;
	__u64 class; /* 0 if there is none */
};
const struct edge_counts *unused_edge_counts __attribute__((unused));

/* The edges with traffic since they were read last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct edge_key);
	__type(value, struct edge_counts);
} edges SEC(".maps");

/* How many of them each key has. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct class_key);
	__type(value, __u64);
} edges_of SEC(".maps");

static __always_inline void add_size(struct packet_size *to, const struct packet_size *n)
{
	__sync_fetch_and_add(&to->wire, n->wire);
	__sync_fetch_and_add(&to->interface, n->interface);
	__sync_fetch_and_add(&to->packets, n->packets);
	__sync_fetch_and_add(&to->interface_packets, n->interface_packets);
}

/* Adds what was sent, or received, to an edge that may be new. Without room for it, it counts for the class alone. */
static __noinline void add_edge(const struct edge_key *k, __u32 class, bool sent, const struct packet_size *n)
{
	struct edge_counts *c = bpf_map_lookup_elem(&edges, k), first = {.class = class};
	struct class_key of = {k->group, k->netns};
	__u64 one = 1, *have;

	if (!c) {
		have = bpf_map_lookup_elem(&edges_of, &of);
		if (!have)
			bpf_map_update_elem(&edges_of, &of, &one, BPF_NOEXIST);
		if ((!have || *have < EDGES_OF_KEY) && !bpf_map_update_elem(&edges, k, &first, BPF_NOEXIST) && have)
			__sync_fetch_and_add(have, 1);
		c = bpf_map_lookup_elem(&edges, k);
	}
	if (c)
		add_size(sent ? &c->sent : &c->received, n);
	else
		add_class(&of, class, sent, n);
}

/* The class of the address of an edge. The stacks of a program and of what it calls have 512 bytes together. */
static __noinline __u32 class_of_peer(const struct edge_key *k)
{
	struct prefix6 p = {};

	__builtin_memcpy(p.address, k->peer, 16);
	return class_at(&p, k->flags & EDGE_SIX);
}

/*
 * Whether this end listens. A socket that was accepted has the backlog of the
 * one that listens, which no socket that connects has. Datagrams have no such
 * order: the end that is connected is none that listens, and between two others
 * the lower port is.
 */
static __always_inline bool listens(void *sk, __u8 protocol, __u16 connected, __u16 here, __u16 there)
{
	struct sock *tcp;

	if (protocol == PROTO_TCP) {
		tcp = (struct sock *)bpf_skc_to_tcp_sock(sk);
		if (tcp)
			return tcp->sk_max_ack_backlog;
	} else if (protocol == PROTO_UDP && connected) {
		return false;
	}
	return bpf_ntohs(here) < bpf_ntohs(there);
}

/* The edge of a packet, and the port of the other end. */
struct edge_end {
	struct edge_key edge;
	__u16 port;
};

/*
 * The edge of a packet, with the address that the packet has; false if it is of
 * no Internet protocol. The kernel has put the headers into the linear part of
 * the packet, which can be read without a helper.
 */
static __always_inline bool edge_of(struct __sk_buff *skb, bool sent, struct edge_end *other)
{
	__u32 net_at = bpf_core_field_offset(struct sock_common, skc_net);
	__u32 port_at = bpf_core_field_offset(struct sock_common, skc_dport);
	__u8 *b = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	char copy[64] __attribute__((aligned(8)));
	struct edge_key *k = &other->edge;
	void *sk = (void *)skb->sk;
	__u16 *ports;
	struct net *net;
	bool whole = true;

	if (!sk || net_at > sizeof(copy) - sizeof(net) || port_at > sizeof(copy) - 2 || bpf_probe_read_kernel(copy, sizeof(copy), sk))
		return false;
	net = *(struct net **)(copy + net_at);
	k->netns = BPF_CORE_READ(net, ns.inum);
	if (skb->protocol == ETH_P_IPV6) {
		if (b + 40 > end)
			return false;
		k->flags = EDGE_SIX;
		k->protocol = b[6];
		__builtin_memcpy(k->peer, b + (sent ? 24 : 8), 16);
		b += 40;
	} else if (skb->protocol == ETH_P_IP) {
		if (b + 20 > end)
			return false;
		k->protocol = b[9];
		k->peer[0] = *(__u32 *)(b + (sent ? 16 : 12));
		whole = !(b[6] & 0x1f || b[7]); /* the rest of a datagram has no ports */
		b += (b[0] & 15) * 4;
	} else {
		return false;
	}
	if (!whole || (k->protocol != PROTO_TCP && k->protocol != PROTO_UDP && k->protocol != PROTO_SCTP) || b + 4 > end)
		return true;
	ports = (__u16 *)b;
	other->port = ports[sent];
	if (listens(sk, k->protocol, *(__u16 *)(copy + port_at), ports[!sent], ports[sent])) {
		k->flags |= EDGE_LISTENS;
		k->port = ports[!sent];
	} else {
		k->port = ports[sent];
	}
	return true;
}

#endif

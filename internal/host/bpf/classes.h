/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Traffic by class: by where the address of the other end is. */
#ifndef METE_CLASSES_H
#define METE_CLASSES_H

#include "packet.h"

/* Classes are numbered from 1. */
#define CLASSES 6
#define CLASS_NODE 1

/* From include/uapi/linux/if_ether.h, in network byte order. */
#define ETH_P_IP 0x0008
#define ETH_P_IPV6 0xdd86

struct prefix4 {
	__u32 length;
	__u8 address[4];
};

struct prefix6 {
	__u32 length;
	__u8 address[16];
};

/* The classes of prefixes; the longest one that has the address decides. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct prefix4);
	__type(value, __u32);
} classes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct prefix6);
	__type(value, __u32);
} classes6 SEC(".maps");

/* The class of an address, as it was looked up by this CPU. */
struct class_cache {
	__u32 address[4];
	__u32 rules; /* the version of the rules that gave it, and the address family */
	__u32 class;
};

#define CACHED 512
#define CHANGING 0xffffffff

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CACHED);
	__type(key, __u32);
	__type(value, struct class_cache);
} class_cache SEC(".maps");

/* The version of the rules; each change makes it larger by 2. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} class_rules SEC(".maps");

/* The sockets of a group in a network namespace. */
struct class_key {
	__u64 group;
	__u64 netns; /* its number in /proc/PID/ns/net */
};

/* Bytes as the group's counts have them, and as an Ethernet interface counts them. */
struct class_bytes {
	__u64 wire;
	__u64 interface;
};

struct class_traffic {
	struct class_bytes received;
	struct class_bytes sent;
};

/* For each class, from the first one on; the last is traffic without a class that was to have an edge. */
struct class_counts {
	struct class_traffic of[CLASSES + 1];
};
const struct class_counts *unused_class_counts __attribute__((unused));
const struct class_key *unused_class_key __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct class_key);
	__type(value, struct class_counts);
} by_class SEC(".maps");

static const struct class_counts no_counts;

/*
 * The class of an address; 0 if no prefix has it. The walk along the prefixes
 * costs more than all else here, so its result is kept for the next packets.
 */
static __always_inline __u32 class_at(struct prefix6 *k, bool six)
{
	__u32 *words = (__u32 *)k->address;
	__u32 zero = 0, i, *version, *found, rules;
	struct class_cache *c;

	version = bpf_map_lookup_elem(&class_rules, &zero);
	if (!version)
		return 0;
	rules = *(volatile __u32 *)version + six;
	i = (words[0] ^ words[1] ^ words[2] ^ words[3]) * 0x9e3779b1;
	i = i >> 16 & (CACHED - 1);
	c = bpf_map_lookup_elem(&class_cache, &i);
	if (!c)
		return 0;
	if (c->rules == rules && c->address[0] == words[0] && c->address[1] == words[1] &&
	    c->address[2] == words[2] && c->address[3] == words[3])
		return c->class;
	if (six) {
		k->length = 128;
		found = bpf_map_lookup_elem(&classes6, k);
	} else {
		struct prefix4 k4 = {.length = 32};

		*(__u32 *)k4.address = words[0];
		found = bpf_map_lookup_elem(&classes4, &k4);
	}
	i = found ? *found : 0;
	/* An interrupt may count another packet on this CPU in the middle of this. */
	if (c->rules != CHANGING) {
		c->rules = CHANGING;
		barrier();
		c->address[0] = words[0];
		c->address[1] = words[1];
		c->address[2] = words[2];
		c->address[3] = words[3];
		c->class = i;
		barrier();
		c->rules = rules;
	}
	return i;
}

/* The class of the other end of a packet; 0 if no prefix has its address. */
static __always_inline __u32 class_of(struct __sk_buff *skb, bool sent)
{
	struct prefix6 k = {};
	bool six = skb->protocol == ETH_P_IPV6;

	if (six) {
		if (bpf_skb_load_bytes(skb, sent ? 24 : 8, k.address, 16))
			return 0;
	} else if (skb->protocol != ETH_P_IP || bpf_skb_load_bytes(skb, sent ? 16 : 12, k.address, 4)) {
		return 0;
	}
	return class_at(&k, six);
}

/*
 * The network namespace of a packet's socket. The verifier lets no program of
 * this kind follow the pointers of a socket, so the beginning of the socket is
 * copied first.
 */
static __always_inline struct net *netns_of(struct __sk_buff *skb)
{
	__u32 at = bpf_core_field_offset(struct sock_common, skc_net);
	void *sk = (void *)skb->sk;
	char copy[64];

	if (!sk || at > sizeof(copy) - sizeof(struct net *) || bpf_probe_read_kernel(copy, sizeof(copy), sk))
		return 0;
	return *(struct net **)(copy + at);
}

/* Adds to the counts of a class. */
static __always_inline void add_class(const struct class_key *k, __u32 class, bool sent, const struct packet_size *size)
{
	struct class_counts *n;
	struct class_bytes *b;

	if (--class >= CLASSES)
		class = CLASSES;
	n = bpf_map_lookup_elem(&by_class, k);
	if (!n) {
		bpf_map_update_elem(&by_class, k, &no_counts, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&by_class, k);
		if (!n)
			return;
	}
	b = sent ? &n->of[class].sent : &n->of[class].received;
	__sync_fetch_and_add(&b->wire, size->wire);
	__sync_fetch_and_add(&b->interface, size->interface);
}

#endif

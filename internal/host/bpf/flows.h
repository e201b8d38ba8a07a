/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The class of addresses that have none because the machine translates them:
 * those of services, whose real end its own network namespace chooses for each
 * connection after the packet has left the workload. A connection is known from
 * the moment at which connection tracking confirms it, while its first packet
 * passes.
 */
#ifndef METE_FLOWS_H
#define METE_FLOWS_H

#include "edges.h"

/* A connection, from the end that begins it; all in network byte order. */
struct flow {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 six;
	__u16 zero;
};
const struct flow *unused_flow __attribute__((unused));

/* What is behind the destination of a flow. */
struct real_end {
	__u32 address[4];
	__u16 port;
	__u16 here; /* whether it is on this machine whatever its address is */
};
const struct real_end *unused_real_end __attribute__((unused));

/* Flows whose destination is translated, until the kernel forgets them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, struct real_end);
} real_ends SEC(".maps");

/*
 * The flows for which there was no room: the latest of them. A closed connection
 * is known for minutes, so that many short ones may fill the other map.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow);
	__type(value, struct real_end);
} more_ends SEC(".maps");

/* Destinations that were translated. */
struct service {
	__u32 address[4];
	__u16 port;
	__u8 protocol;
	__u8 six;
};
const struct service *unused_service __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct service);
	__type(value, __u8);
} services SEC(".maps");

/* What was sent over a flow before it was confirmed: its first packet. */
struct pending {
	struct class_key key;
	struct packet_size sent;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct flow);
	__type(value, struct pending);
} pending SEC(".maps");

struct flow_state {
	__u64 netns; /* whose connection tracking is followed; 0 if none is */
	__u32 seen;  /* whether it ever translated anything */
	__u32 full;  /* whether there ever was no room for a flow */
	__u64 by_edge; /* whether the programs that count do so by edge */
};
const struct flow_state *unused_flow_state __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_state);
} following SEC(".maps");

#define TCP_SYN 2
#define TCP_ACK 16

static __always_inline __u32 class_behind(const struct real_end *e, bool six)
{
	struct prefix6 k = {};

	if (e->here)
		return CLASS_NODE;
	__builtin_memcpy(k.address, e->address, 16);
	return class_at(&k, six);
}

/* The flow of a packet; begins says that the packet opens a connection. */
static __always_inline bool flow_of(struct __sk_buff *skb, bool sent, struct flow *f, bool *begins)
{
	void *source = sent ? f->source : f->destination, *destination = sent ? f->destination : f->source;
	__u16 ports[2];
	__u8 b[20];
	__u32 at;

	if (bpf_skb_load_bytes(skb, 0, b, sizeof(b)))
		return false;
	if (skb->protocol == ETH_P_IPV6) {
		f->six = 1;
		f->protocol = b[6];
		at = 40;
		if (bpf_skb_load_bytes(skb, 8, source, 16) || bpf_skb_load_bytes(skb, 24, destination, 16))
			return false;
	} else {
		f->protocol = b[9];
		at = (b[0] & 15) * 4;
		if (b[6] & 0x1f || b[7]) /* the rest of a datagram, without ports */
			return false;
		__builtin_memcpy(source, b + 12, 4);
		__builtin_memcpy(destination, b + 16, 4);
	}
	if ((f->protocol != PROTO_TCP && f->protocol != PROTO_UDP && f->protocol != PROTO_SCTP) ||
	    bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return false;
	f->source_port = sent ? ports[0] : ports[1];
	f->destination_port = sent ? ports[1] : ports[0];
	*begins = f->protocol == PROTO_TCP && !bpf_skb_load_bytes(skb, at + 13, b, 1) &&
		  (b[0] & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	return true;
}

/*
 * Whether a network namespace may change the addresses of a packet before a
 * socket receives it: PRE_ROUTING and LOCAL_IN of enum nf_inet_hooks.
 */
static __always_inline bool changes_input(struct net *net, bool six)
{
	if (!net || !bpf_core_field_exists(net->nf.hooks_ipv4) || !bpf_core_field_exists(net->nf.hooks_ipv6))
		return true;
	return six ? BPF_CORE_READ(net, nf.hooks_ipv6[0]) || BPF_CORE_READ(net, nf.hooks_ipv6[1]) :
		     BPF_CORE_READ(net, nf.hooks_ipv4[0]) || BPF_CORE_READ(net, nf.hooks_ipv4[1]);
}

static __always_inline bool is_service(const void *address, __u16 port, __u8 protocol, bool six)
{
	struct service s = {.port = port, .protocol = protocol, .six = six};

	__builtin_memcpy(s.address, address, 16);
	return bpf_map_lookup_elem(&services, &s);
}

/*
 * The real end of a packet whose address has no class; 0 if it is not known, and
 * where the packet waits in pending for it to be chosen. Only what the machine's
 * own namespace translates counts. A workload's namespace with rules of its own
 * could pass off any address as that of a service, so that what is received there
 * has no real end. Sets the namespace of k.
 */
static __noinline struct real_end *translated(struct __sk_buff *skb, bool sent, const struct packet_size *n,
					      struct class_key *k, bool *waits)
{
	struct flow f = {};
	struct flow_state *state;
	struct real_end *e;
	struct pending *p;
	struct net *net;
	bool begins;
	__u32 zero = 0;

	state = bpf_map_lookup_elem(&following, &zero);
	if (!state || !state->seen || !flow_of(skb, sent, &f, &begins))
		return 0;
	if (!is_service(f.destination, f.destination_port, f.protocol, f.six))
		return 0;
	net = netns_of(skb);
	k->netns = BPF_CORE_READ(net, ns.inum);
	if (!sent && k->netns != state->netns && changes_input(net, f.six))
		return 0;
	/* A connection with the ports of an earlier one may have another end. */
	e = sent && begins ? 0 : bpf_map_lookup_elem(&real_ends, &f);
	if (!e && state->full && !(sent && begins))
		e = bpf_map_lookup_elem(&more_ends, &f);
	if (e || !sent)
		return e;
	*waits = true;
	p = bpf_map_lookup_elem(&pending, &f);
	if (p && p->key.group == k->group && p->key.netns == k->netns) {
		add_size(&p->sent, n);
	} else {
		struct pending first = {.key = *k, .sent = *n};

		bpf_map_update_elem(&pending, &f, &first, 0);
	}
	return 0;
}

static __always_inline void count_class(struct __sk_buff *skb, bool sent, const struct packet_size *n)
{
	struct class_key k = {.group = bpf_skb_cgroup_id(skb)};
	__u32 class = class_of(skb, sent);
	struct real_end *e;
	struct net *net;
	bool waits;

	if (class) {
		net = netns_of(skb);
		k.netns = BPF_CORE_READ(net, ns.inum);
	} else {
		e = translated(skb, sent, n, &k, &waits);
		if (!e)
			return;
		class = class_behind(e, skb->protocol == ETH_P_IPV6);
		if (!class)
			return;
	}
	add_class(&k, class, sent, n);
}

/* The traffic to the real end of a destination belongs to the edge with that end. */
static __always_inline void set_end(struct edge_key *k, const struct real_end *e)
{
	__builtin_memcpy(k->peer, e->address, 16);
	k->port = e->port;
}

/* Whether an end of the machine's connections that has no class may be translated. */
static __noinline bool may_be_translated(const struct edge_end *end)
{
	struct flow_state *state;
	__u32 zero = 0;

	state = bpf_map_lookup_elem(&following, &zero);
	return state && state->seen && is_service(end->edge.peer, end->port, end->edge.protocol, end->edge.flags & EDGE_SIX);
}

/* Counts a packet whose edge is new, or is of an address without a class, which may be translated. */
static __noinline void find_edge(struct __sk_buff *skb, bool sent, const struct packet_size *n, struct edge_end *end,
				 struct edge_counts *c)
{
	struct edge_key *k = &end->edge;
	bool six = k->flags & EDGE_SIX, waits = false;
	struct class_key of = {.group = k->group};
	struct real_end *e;
	__u32 class = 0;

	if (!c)
		class = class_of_peer(k);
	if (!class && may_be_translated(end)) {
		e = translated(skb, sent, n, &of, &waits);
		if (waits)
			return;
		if (e) {
			k->flags &= ~EDGE_LISTENS;
			set_end(k, e);
			class = class_behind(e, six);
			c = 0;
		}
	}
	if (c)
		add_size(sent ? &c->sent : &c->received, n);
	else
		add_edge(k, class, sent, n);
}

static __always_inline void count_edge(struct __sk_buff *skb, bool sent, const struct packet_size *n)
{
	struct edge_end end = {.edge.group = bpf_skb_cgroup_id(skb)};
	struct edge_counts *c;

	if (!edge_of(skb, sent, &end))
		return;
	c = bpf_map_lookup_elem(&edges, &end.edge);
	if (c && c->class)
		add_size(sent ? &c->sent : &c->received, n);
	else
		find_edge(skb, sent, n, &end, c);
}

/* From include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h. */
#define SUBSYS_CTNETLINK 1
#define MSG_CT_NEW 0
#define MSG_CT_DELETE 2
#define CTA_TUPLE_ORIG 1
#define CTA_TUPLE_REPLY 2
#define CTA_ZONE 18
#define AF_INET 2
#define AF_INET6 10

struct attribute {
	__u16 size;
	__u16 type;
};

struct connection_message {
	__u32 size;
	__u16 type;
	__u16 flags;
	__u32 sequence;
	__u32 port;
	__u8 family;
	__u8 version;
	__u16 resource;
};

/* The end of a tuple, after the addresses. */
struct tuple_ports {
	struct attribute all;
	struct attribute protocol_is;
	__u8 protocol;
	__u8 padding[3];
	struct attribute source_is;
	__u16 source;
	__u16 padding1;
	struct attribute destination_is;
	__u16 destination;
	__u16 padding2;
};

#define ADDRESS(six) ((six) ? 16u : 4u)
#define TUPLE(six) (44 + 2 * ADDRESS(six))

/*
 * One direction of a connection. Attributes have one order and one size for
 * each family of addresses; a tuple with others, as of ICMP or in a zone, is
 * none of those wanted here.
 */
static __noinline bool tuple_at(struct __sk_buff *skb, __u32 at, bool six, struct flow *f)
{
	struct attribute a[3]; /* the tuple, its addresses, the source */
	struct tuple_ports p;
	__u32 n = ADDRESS(six);

	if (bpf_skb_load_bytes(skb, at, a, sizeof(a)) || a[0].size != TUPLE(six) ||
	    a[1].size != 12 + 2 * n || a[2].size != 4 + n)
		return false;
	at += sizeof(a);
	if (six) {
		if (bpf_skb_load_bytes(skb, at, f->source, 16) || bpf_skb_load_bytes(skb, at + 20, f->destination, 16))
			return false;
	} else if (bpf_skb_load_bytes(skb, at, f->source, 4) || bpf_skb_load_bytes(skb, at + 8, f->destination, 4)) {
		return false;
	}
	if (bpf_skb_load_bytes(skb, at + 4 + 2 * n, &p, sizeof(p)) || p.all.size != sizeof(p) ||
	    p.protocol_is.size != 5 || p.source_is.type != 2 || p.destination_is.type != 3)
		return false;
	f->six = six;
	f->protocol = p.protocol;
	f->source_port = p.source;
	f->destination_port = p.destination;
	return true;
}

static __always_inline bool same(const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* Counts what a flow sent before its real end was known. */
static __noinline void count_pending(const struct pending *p, const struct flow *f, const struct real_end *e, bool by_edge)
{
	struct edge_key k = {.group = p->key.group, .netns = p->key.netns, .protocol = f->protocol, .flags = f->six ? EDGE_SIX : 0};
	__u32 class = class_behind(e, f->six);

	set_end(&k, e);
	if (by_edge)
		add_edge(&k, class, true, &p->sent);
	else if (class)
		add_class(&p->key, class, true, &p->sent);
}

/*
 * Filters the events of connection tracking: takes what is of use from each,
 * and keeps all of them from the socket, which is never read. The kernel runs
 * it where it confirms a connection, before the packet goes on.
 */
SEC("socket")
int connection(struct __sk_buff *skb)
{
	struct flow f = {}, reply = {};
	struct connection_message m;
	struct flow_state *state;
	struct real_end e = {};
	struct attribute next;
	struct service s = {};
	struct pending *p;
	__u32 zero = 0;
	__u8 one = 1;
	bool six;

	if (bpf_skb_load_bytes(skb, 0, &m, sizeof(m)) || m.type >> 8 != SUBSYS_CTNETLINK ||
	    (m.family != AF_INET && m.family != AF_INET6))
		return 0;
	six = m.family == AF_INET6;
	if (!tuple_at(skb, sizeof(m), six, &f) || !tuple_at(skb, sizeof(m) + TUPLE(six), six, &reply) ||
	    bpf_skb_load_bytes(skb, sizeof(m) + 2 * TUPLE(six), &next, sizeof(next)) || next.type == CTA_ZONE)
		return 0;
	state = bpf_map_lookup_elem(&following, &zero);
	if (!state)
		return 0;
	/* The end of an earlier connection may have been lost: one that is not translated ends it too. */
	if ((m.type & 255) == MSG_CT_DELETE || same(f.destination, reply.source)) {
		if (state->seen)
			bpf_map_delete_elem(&real_ends, &f);
		if (state->full)
			bpf_map_delete_elem(&more_ends, &f);
		return 0;
	}
	if ((m.type & 255) != MSG_CT_NEW)
		return 0;
	__builtin_memcpy(e.address, reply.source, 16);
	/* Its own end, or the loopback interface of the machine. */
	e.port = reply.source_port;
	e.here = same(f.source, reply.source) || (!six && (e.address[0] & 255) == 127);
	if (bpf_map_update_elem(&real_ends, &f, &e, 0)) {
		state->full = 1;
		bpf_map_update_elem(&more_ends, &f, &e, 0);
	}
	__builtin_memcpy(s.address, f.destination, 16);
	s.port = f.destination_port;
	s.protocol = f.protocol;
	s.six = six;
	if (!bpf_map_lookup_elem(&services, &s))
		bpf_map_update_elem(&services, &s, &one, 0);
	state->seen = 1;
	p = bpf_map_lookup_elem(&pending, &f);
	if (p) {
		count_pending(p, &f, &e, state->by_edge);
		bpf_map_delete_elem(&pending, &f);
	}
	return 0;
}

#endif

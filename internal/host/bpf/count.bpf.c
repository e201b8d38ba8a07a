//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counts what groups do as they do it, and tells of their births and deaths. */
#include "flows.h"
#include "group.h"
#include "packet.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PATH_SIZE 512
#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

/* All that is counted for one group. */
struct counts {
	__u64 forks;
	__u64 read_bytes;
	__u64 written_bytes;
	__u64 reads;
	__u64 writes;
	__u64 rx_bytes;
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 tx_packets;
};

/* A group's place in the table. The first belongs to no group in particular. */
struct slot {
	__u64 id;
	__u32 hierarchy;
	__u32 used;
	struct counts n;
};
const struct slot *unused_slot __attribute__((unused));

struct key {
	__u64 id;
	__u64 hierarchy;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct key);
	__type(value, __u32);
} index_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Slots that were given back. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} freed SEC(".maps");

struct event {
	__u64 time;
	__u64 id;
	__u64 parent;
	__u64 cpu;
	__u64 own_cpu;
	__u64 memory;
	__u64 pids;
	struct counts n;
	__u32 hierarchy;
	__u32 level;
	__u32 born;
	__u32 has;
	char path[PATH_SIZE];
};
const struct event *unused_event __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Shared with the loader through one page. */
struct state {
	__u64 lost;            /* events that found the ring full */
	__u32 next;            /* first slot that never was used */
	__u32 full;            /* how often no slot was left; wraps */
	__u64 skip_major[64];  /* bit set of disks that are not leaves */
};
const struct state *unused_state __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} shared SEC(".maps");

/* Set by the loader. */
const volatile __u32 slot_count = 0;
const volatile __u64 hierarchies = ~0ULL; /* which ones' events are wanted */
const volatile bool unified = false;
const volatile bool loopback = false; /* whether what goes over lo counts */

static const __u32 zero = 0;

static __always_inline struct slot *slot_at(__u32 i)
{
	return bpf_map_lookup_elem(&slots, &i);
}

/* Finds a group's slot, or gives it one; with none left, the common one. */
static __noinline struct slot *slot_of(__u64 hierarchy, __u64 id)
{
	struct key k = {.id = id, .hierarchy = hierarchy};
	__u32 *at = bpf_map_lookup_elem(&index_of, &k);
	struct state *st;
	struct slot *s;
	__u32 i;

	if (at)
		return slot_at(*at);
	if (!id)
		return slot_at(0);
	st = bpf_map_lookup_elem(&shared, &zero);
	if (!st)
		return 0;
	if (bpf_map_pop_elem(&freed, &i)) {
		i = slot_count;
		if (st->next < slot_count)
			i = __sync_fetch_and_add(&st->next, 1);
	}
	s = i ? slot_at(i) : 0;
	if (!s) {
		__sync_fetch_and_add(&st->full, 1);
		return slot_at(0);
	}
	s->id = id;
	s->hierarchy = hierarchy;
	if (bpf_map_update_elem(&index_of, &k, &i, BPF_NOEXIST)) {
		/* Another CPU was faster, or there is no memory. */
		bpf_map_push_elem(&freed, &i, 0);
		at = bpf_map_lookup_elem(&index_of, &k);
		return slot_at(at ? *at : 0);
	}
	s->used = 1;
	return s;
}

static __always_inline struct slot *slot_of_group(struct cgroup *cg)
{
	return slot_of(BPF_CORE_READ(cg, root, hierarchy_id), BPF_CORE_READ(cg, kn, id));
}

#define ADD(field, v) __sync_fetch_and_add(&(field), (v))

/*
 * The programs for processes and disks are of the plain kind, which read only
 * through helpers: the kernel takes milliseconds to load one of the kind that
 * knows types, and a single metered command waits for it.
 */

/* Processes: one for each that starts, none for a thread. */
SEC("raw_tp/sched_process_fork")
int BPF_PROG(fork, struct task_struct *parent, struct task_struct *child)
{
	struct slot *s;

	if (BPF_CORE_READ(child, pid) != BPF_CORE_READ(child, tgid) ||
	    BPF_CORE_READ(child, flags) & PF_KTHREAD)
		return 0;
	s = slot_of_group(job_of(child, unified));
	if (s)
		ADD(s->n.forks, 1);
	return 0;
}

/*
 * Disk: requests at the moment they go to a leaf device. Only what moves data
 * counts: flushes, discards and written zeroes do not.
 */
static __always_inline int count_request(struct request *rq, __u64 sign)
{
	/* REQ_OP_MASK of include/linux/blk_types.h. */
	__u32 op = BPF_CORE_READ(rq, cmd_flags) & 0xff;
	__u32 major = BPF_CORE_READ(rq, q, disk, major);
	struct state *st = bpf_map_lookup_elem(&shared, &zero);
	__u64 bytes = BPF_CORE_READ(rq, __data_len);
	struct cgroup *cg;
	struct slot *s;

	if (!st || (major < 4096 && st->skip_major[major / 64 & 63] >> (major & 63) & 1))
		return 0;
	cg = BPF_CORE_READ(rq, bio, bi_blkg, blkcg, css.cgroup);
	if (op == bpf_core_enum_value(enum req_op, REQ_OP_READ)) {
		s = cg ? slot_of_group(cg) : slot_at(0);
		if (!s)
			return 0;
		ADD(s->n.read_bytes, sign * bytes);
		ADD(s->n.reads, sign);
	} else if (op == bpf_core_enum_value(enum req_op, REQ_OP_WRITE) ||
		   op == bpf_core_enum_value(enum req_op, REQ_OP_ZONE_APPEND)) {
		s = cg ? slot_of_group(cg) : slot_at(0);
		if (!s)
			return 0;
		ADD(s->n.written_bytes, sign * bytes);
		ADD(s->n.writes, sign);
	}
	return 0;
}

SEC("raw_tp/block_rq_issue")
int BPF_PROG(disk_issue, struct request *rq)
{
	return count_request(rq, 1);
}

/* A busy device hands a started request back, and it will be issued again. */
SEC("raw_tp/block_rq_requeue")
int BPF_PROG(disk_requeue, struct request *rq)
{
	if (BPF_CORE_READ(rq, state) == bpf_core_enum_value(enum mq_rq_state, MQ_RQ_IDLE))
		return 0;
	return count_request(rq, -1ULL);
}

/* Network: what sockets of the group and below send and receive. */
/* LOOPBACK_IFINDEX of include/net/flow.h: lo has it in every namespace. */
#define LOOPBACK 1

/* How a packet counts, beyond its group. */
enum by { BY_GROUP, BY_CLASS, BY_EDGE };

/* Where the packet counts, and what it is; none where it does not count. */
static __always_inline struct slot *slot_of_packet(struct __sk_buff *skb, struct packet_size *n)
{
	struct slot *s;

	if (skb->ifindex == LOOPBACK && !loopback)
		return 0;
	s = slot_of(0, bpf_skb_cgroup_id(skb));
	if (s)
		packet(skb, n);
	return s;
}

static __always_inline int count_packet(struct __sk_buff *skb, bool sent, enum by by)
{
	struct packet_size n;
	struct slot *s = slot_of_packet(skb, &n);

	if (!s)
		return 1;
	if (sent) {
		ADD(s->n.tx_bytes, n.wire);
		ADD(s->n.tx_packets, n.packets);
	} else {
		ADD(s->n.rx_bytes, n.wire);
		ADD(s->n.rx_packets, n.packets);
	}
	if (by == BY_CLASS)
		count_class(skb, sent, &n);
	else if (by == BY_EDGE)
		count_edge(skb, sent, &n);
	return 1;
}

SEC("cgroup_skb/ingress")
int net_ingress(struct __sk_buff *skb)
{
	return count_packet(skb, false, BY_GROUP);
}

SEC("cgroup_skb/egress")
int net_egress(struct __sk_buff *skb)
{
	return count_packet(skb, true, BY_GROUP);
}

/* The same, and by class. */
SEC("cgroup_skb/ingress")
int class_ingress(struct __sk_buff *skb)
{
	return count_packet(skb, false, BY_CLASS);
}

SEC("cgroup_skb/egress")
int class_egress(struct __sk_buff *skb)
{
	return count_packet(skb, true, BY_CLASS);
}

/* The same, and by peer and port. */
SEC("cgroup_skb/ingress")
int edge_ingress(struct __sk_buff *skb)
{
	return count_packet(skb, false, BY_EDGE);
}

SEC("cgroup_skb/egress")
int edge_egress(struct __sk_buff *skb)
{
	return count_packet(skb, true, BY_EDGE);
}

/* Both tracepoints are hit under cgroup_mutex, so that one buffer will do. */
static struct event scratch;

static __always_inline void publish(struct event *e, struct cgroup *cg, const char *path)
{
	struct state *st;
	long n;

	e->time = bpf_ktime_get_boot_ns();
	e->id = cg->kn->id;
	e->parent = parent_of(cg);
	e->hierarchy = cg->root->hierarchy_id;
	e->level = cg->level;
	n = bpf_probe_read_kernel_str(e->path, PATH_SIZE, path);
	if (n < 0)
		n = 0;
	if (n >= PATH_SIZE) {
		char last = 0;

		n = PATH_SIZE;
		bpf_probe_read_kernel(&last, 1, path + PATH_SIZE - 1);
		if (last)
			e->has |= CUT;
	}
	if (bpf_ringbuf_output(&events, e, __builtin_offsetof(struct event, path) + n, BPF_RB_NO_WAKEUP)) {
		st = bpf_map_lookup_elem(&shared, &zero);
		if (st)
			ADD(st->lost, 1);
	}
}

static __always_inline bool wanted(struct cgroup *cg)
{
	__u32 h = cg->root->hierarchy_id;

	return h > 63 || hierarchies >> h & 1;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(born, struct cgroup *cg, const char *path)
{
	struct event *e = &scratch;

	if (!wanted(cg))
		return 0;
	e->born = 1;
	e->has = 0;
	publish(e, cg, path);
	return 0;
}

/*
 * What a group of the default hierarchy used itself, children excepted: each
 * CPU's share is exact at once, without a flush.
 */
static __always_inline bool own_cpu(struct cgroup *cg, __u64 *ns)
{
	struct cgroup___rstat *old = (void *)cg;
	const void *p;

	if (!cpus || cg->root->hierarchy_id || !cg->level)
		return false;
	if (bpf_core_field_exists(cg->rstat_base_cpu))
		p = &BPF_CORE_READ(cg, rstat_base_cpu)->bstat.cputime.sum_exec_runtime;
	else if (bpf_core_field_exists(old->rstat_cpu))
		p = &BPF_CORE_READ(old, rstat_cpu)->bstat.cputime.sum_exec_runtime;
	else
		return false;
	*ns = sum_percpu(p);
	return true;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(died, struct cgroup *cg, const char *path)
{
	struct event *e = &scratch;
	struct key k;
	struct slot *s;
	__u32 *at;

	if (!wanted(cg))
		return 0;
	e->born = 0;
	e->has = 0;
	if (cpuacct_of(cg, &e->cpu)) {
		e->has |= HAS_CPU;
	} else if (!cg->root->hierarchy_id && cg->level) {
		e->cpu = cg->bstat.cputime.sum_exec_runtime;
		e->has |= HAS_CPU;
	}
	if (own_cpu(cg, &e->own_cpu))
		e->has |= HAS_OWN_CPU;
	if (memory_of(cg, &e->memory))
		e->has |= HAS_MEMORY;
	if (pids_of(cg, &e->pids))
		e->has |= HAS_PIDS;
	k.id = cg->kn->id;
	k.hierarchy = cg->root->hierarchy_id;
	at = bpf_map_lookup_elem(&index_of, &k);
	s = at ? slot_at(*at) : 0;
	if (s) {
		e->n = s->n;
		e->has |= HAS_COUNTS;
	}
	publish(e, cg, path);
	return 0;
}

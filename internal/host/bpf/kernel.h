/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The few types of the kernel that the programs here look into, with only the
 * fields that they read. Field offsets are not what this file says: they are
 * relocated to the running kernel's when a program is loaded (CO-RE).
 */
#ifndef METE_KERNEL_H
#define METE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

enum { false, true };

/* From include/uapi/linux/bpf.h. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_F_INNER_MAP = 1 << 12,
	BPF_RB_NO_WAKEUP = 1,
};

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Only the members that programs for packets here use stand in their places. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 to_ifindex[5];
	__u32 ifindex;
	__u32 to_data[8];
	__u32 data;
	__u32 data_end;
	__u32 to_gso_segs[20];
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};
_Static_assert(__builtin_offsetof(struct __sk_buff, ifindex) == 40, "struct __sk_buff");
_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "struct __sk_buff");
_Static_assert(__builtin_offsetof(struct __sk_buff, sk) == 168, "struct __sk_buff");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_segs) == 164, "struct __sk_buff");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "struct __sk_buff");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum cgroup_subsys_id {
	io_cgrp_id,
	cpuacct_cgrp_id,
	memory_cgrp_id,
	pids_cgrp_id,
};

enum req_op {
	REQ_OP_READ,
	REQ_OP_WRITE,
	REQ_OP_ZONE_APPEND = 7,
};

enum mq_rq_state {
	MQ_RQ_IDLE,
};

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
	__u64 serial_nr;
};

struct cgroup_root {
	int hierarchy_id;
};

struct task_cputime {
	unsigned long long sum_exec_runtime;
};

struct cgroup_base_stat {
	struct task_cputime cputime;
};

struct cgroup_rstat_base_cpu {
	struct cgroup_base_stat bstat;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[16];
	struct cgroup_root *root;
	struct cgroup_rstat_base_cpu *rstat_base_cpu;
	struct cgroup_base_stat bstat;
};

/* Before Linux 6.16. */
struct cgroup_rstat_cpu {
	struct cgroup_base_stat bstat;
};
struct cgroup___rstat {
	struct cgroup_rstat_cpu *rstat_cpu;
};

struct cpuacct {
	__u64 *cpuusage;
};

typedef struct {
	long counter;
} atomic_long_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct page_counter {
	atomic_long_t usage;
};

struct mem_cgroup {
	struct page_counter memory;
};

struct pids_cgroup {
	atomic64_t counter;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_io_accounting {
	__u64 read_bytes;
	__u64 write_bytes;
};

struct signal_struct {
	__u64 utime;
	__u64 stime;
	struct task_io_accounting ioac;
	unsigned long long sum_sched_runtime;
};

struct percpu_counter {
	__s64 count;
	__s32 *counters;
};

struct mm_struct {
	struct percpu_counter rss_stat[4];
};

/* Before Linux 6.2. */
struct mm_rss_stat {
	atomic_long_t count[4];
};
struct mm_struct___old {
	struct mm_rss_stat rss_stat;
};

struct task_struct {
	unsigned int flags;
	struct sched_entity se;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 utime;
	__u64 stime;
	__u64 start_boottime;
	char comm[16];
	struct signal_struct *signal;
	struct task_io_accounting ioac;
	struct css_set *cgroups;
};

struct gendisk {
	int major;
};

struct request_queue {
	struct gendisk *disk;
};

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

struct bio {
	struct blkcg_gq *bi_blkg;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	struct bio *bio;
	enum mq_rq_state state;
};

struct ns_common {
	unsigned int inum;
};

struct nf_hook_entries;

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[5];
	struct nf_hook_entries *hooks_ipv6[5];
};

struct net {
	struct ns_common ns;
	struct netns_nf nf;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be16 skc_dport;
	possible_net_t skc_net;
};

struct sock {
	__u32 sk_max_ack_backlog;
};

struct bpf_array {
	void *pptrs[1];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

/* The index of a controller in the running kernel, or -1 where it has none. */
#define SUBSYS(name)                                                           \
	(bpf_core_enum_value_exists(enum cgroup_subsys_id, name##_cgrp_id) ?   \
	 (int)bpf_core_enum_value(enum cgroup_subsys_id, name##_cgrp_id) : -1)

#endif

//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads all groups of one hierarchy in one system call. */
#include "group.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct row {
	__u64 id;
	__u64 cpu;
	__u64 memory;
	__u32 pids;
	__u32 has;
	/*
	 * Which group's id and addresses these are: the kernel never uses a number again.
	 * 0 if the next walk must find them. Each step on the way to them is a cache miss.
	 */
	__u64 serial;
	/* Addresses of the group's counters; 0 without. */
	__u64 cpu_at;
	__u64 memory_at;
	__u64 pids_at;
};
const struct row *unused_row __attribute__((unused));

/* The rows of one walker. The loader makes the real ones, in any length. */
struct rows {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 64);
	__type(key, __u32);
	__array(values, struct rows);
} walkers SEC(".maps");

/* Written before each walk: whose rows these are, and how many came so far. */
__u32 walker;
__u32 seen;

extern void css_rstat_flush(struct cgroup_subsys_state *css) __ksym;
extern void cgroup_rstat_flush(struct cgroup *cgrp) __ksym;

/*
 * Brings the CPU times of the default hierarchy up to date, as reading cpu.stat
 * would; run on one group, it does so for all below.
 */
SEC("iter.s/cgroup")
int flush(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cg = ctx->cgroup;

	if (cg)
		css_rstat_flush(&cg->self);
	return 0;
}

/* The same before Linux 6.16. */
SEC("iter.s/cgroup")
int flush_old(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cg = ctx->cgroup;

	if (cg)
		cgroup_rstat_flush(cg);
	return 0;
}

SEC("iter/cgroup")
int walk(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cg = ctx->cgroup;
	__u32 w = walker, i;
	__u64 serial;
	void *rows;
	struct row *r;
	__u32 has = 0;

	if (!cg)
		return 0;
	/* Dead groups take a sequence number of the iterator but never come here. */
	i = seen++;
	rows = bpf_map_lookup_elem(&walkers, &w);
	if (!rows)
		return 0;
	r = bpf_map_lookup_elem(rows, &i);
	if (!r)
		return 0;

	serial = cg->self.serial_nr;
	if (!serial || r->serial != serial) {
		r->id = cg->kn->id;
		r->cpu_at = (__u64)cpuacct_at(cg);
		r->memory_at = (__u64)memory_at(cg);
		r->pids_at = (__u64)pids_at(cg);
		/* Groups of the default hierarchy gain and lose controllers while they exist. */
		r->serial = cg->root->hierarchy_id ? serial : 0;
	}
	if (r->cpu_at) {
		r->cpu = sum_percpu((const void *)r->cpu_at);
		has |= HAS_CPU;
	} else if (!r->serial && !cg->root->hierarchy_id && cg->level) {
		r->cpu = cg->bstat.cputime.sum_exec_runtime;
		has |= HAS_CPU;
	}
	if (r->memory_at) {
		r->memory = counter_at((const void *)r->memory_at) * page_size;
		has |= HAS_MEMORY;
	}
	if (r->pids_at) {
		r->pids = counter_at((const void *)r->pids_at);
		has |= HAS_PIDS;
	}
	r->has = has;
	return 0;
}

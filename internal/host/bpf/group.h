/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs here read of a cgroup. */
#ifndef METE_GROUP_H
#define METE_GROUP_H

#include "kernel.h"

/* More possible CPUs than this are not supported; also in Go. */
#define MAX_CPUS 1024

/* Which fields of a row or an event hold a reading; also in Go. */
enum has {
	HAS_CPU = 1,
	HAS_MEMORY = 2,
	HAS_PIDS = 4,
	HAS_OWN_CPU = 8,
	HAS_COUNTS = 16,
	CUT = 32,
};

/* Set by the loader. cpus is 0 where the offsets could not be found. */
const volatile __u32 cpus = 0;
const volatile __u64 page_size = 4096;
const volatile __u64 percpu_offset[MAX_CPUS] = {};

/* The sum over all CPUs of the 64-bit counter at the per-CPU address p. */
static __always_inline __u64 sum_percpu(const void *p)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < MAX_CPUS; i++) {
		__u64 v = 0;

		if (i >= cpus)
			break;
		bpf_probe_read_kernel(&v, sizeof(v), (const char *)p + percpu_offset[i]);
		sum += v;
	}
	return sum;
}

static __always_inline struct cgroup_subsys_state *css_of(struct cgroup *cg, int id)
{
	return id < 0 ? 0 : cg->subsys[id & 15];
}

static __always_inline __u64 parent_of(struct cgroup *cg)
{
	struct cgroup_subsys_state *up = cg->self.parent;

	return up ? up->cgroup->kn->id : 0;
}

/*
 * The per-CPU address of the CPU time that cpuacct has charged to a group, in
 * nanoseconds, whose sum cpuacct.usage shows; 0 without. Where cpuacct is
 * mounted nowhere, it belongs to the root of the default hierarchy and holds all
 * that was ever used.
 */
static __always_inline const void *cpuacct_at(struct cgroup *cg)
{
	struct cgroup_subsys_state *css = css_of(cg, SUBSYS(cpuacct));

	if (!css || !cpus)
		return 0;
	return BPF_CORE_READ((struct cpuacct *)css, cpuusage);
}

/* The address of the pages charged to a group; 0 without. The kernel charges none to the root. */
static __always_inline const void *memory_at(struct cgroup *cg)
{
	struct cgroup_subsys_state *css = css_of(cg, SUBSYS(memory));

	return css && cg->level ? &((struct mem_cgroup *)css)->memory.usage.counter : 0;
}

/* The address of the number of tasks in a group and below; 0 without. The kernel counts none in the root. */
static __always_inline const void *pids_at(struct cgroup *cg)
{
	struct cgroup_subsys_state *css = css_of(cg, SUBSYS(pids));

	return css && cg->level ? &((struct pids_cgroup *)css)->counter.counter : 0;
}

/* The 64-bit counter at p. */
static __always_inline __u64 counter_at(const void *p)
{
	__u64 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), p);
	return v;
}

/* The CPU time that cpuacct has charged to a group, in nanoseconds. */
static __always_inline bool cpuacct_of(struct cgroup *cg, __u64 *ns)
{
	const void *at = cpuacct_at(cg);

	if (at)
		*ns = sum_percpu(at);
	return at;
}

/* Memory charged to a group in bytes. */
static __always_inline bool memory_of(struct cgroup *cg, __u64 *bytes)
{
	const void *at = memory_at(cg);

	if (at)
		*bytes = counter_at(at) * page_size;
	return at;
}

/* Tasks in a group and below. */
static __always_inline bool pids_of(struct cgroup *cg, __u64 *n)
{
	const void *at = pids_at(cg);

	if (at)
		*n = counter_at(at);
	return at;
}

/*
 * The group by which a task is known: its cpuacct group where that controller
 * has a hierarchy of its own, else its group in the default hierarchy.
 */
static __always_inline struct cgroup *job_of(struct task_struct *t, bool unified)
{
	struct css_set *set = BPF_CORE_READ(t, cgroups);
	struct cgroup_subsys_state *css;
	struct cgroup *cg;
	int id = SUBSYS(cpuacct);

	if (!unified && id >= 0) {
		bpf_core_read(&css, sizeof(css), &set->subsys[id & 15]);
		cg = BPF_CORE_READ(css, cgroup);
		if (BPF_CORE_READ(cg, root, hierarchy_id))
			return cg;
	}
	return BPF_CORE_READ(set, dfl_cgrp);
}

#endif

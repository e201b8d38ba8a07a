//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds where each CPU keeps its part of per-CPU data. */
#include "kernel.h"

#define MAX_CPUS 1024

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile __u32 cpus = 0;
__u64 offset[MAX_CPUS];
static volatile __u64 address;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} probe SEC(".maps");

/*
 * The kernel's table of offsets is not in its type information. But the
 * address of a CPU's copy less the common per-CPU address of any map is one.
 */
SEC("syscall")
int find(void *ctx)
{
	__u32 zero = 0;
	__u64 base;
	void *p;

	/* Through memory a map becomes a number, with which one can count. */
	address = (__u64)&probe;
	base = (__u64)BPF_CORE_READ((struct bpf_array *)address, pptrs[0]);
	for (__u32 i = 0; i < MAX_CPUS; i++) {
		if (i >= cpus)
			break;
		p = bpf_map_lookup_percpu_elem(&probe, &zero, i);
		if (!p)
			return 1;
		address = (__u64)p;
		offset[i] = address - base;
	}
	return 0;
}

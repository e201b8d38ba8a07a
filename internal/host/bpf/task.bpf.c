//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads all tasks of the machine. */
#include "group.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool unified = false;

struct task {
	__u32 pid;
	__u32 tgid;
	__u32 ppid;
	__u32 flags;
	__u64 start;
	__u64 cpu;
	__u64 user;
	__u64 system;
	__u64 read_bytes;
	__u64 written_bytes;
	/* Of the process's threads that ended. */
	__u64 dead_cpu;
	__u64 dead_user;
	__u64 dead_system;
	__u64 dead_read_bytes;
	__u64 dead_written_bytes;
	__u64 rss;
	__u64 group;
	__u32 hierarchy;
	__u32 has_rss;
	char comm[16];
};
const struct task *unused_task __attribute__((unused));

/* Resident pages of one kind: the common count and what each CPU holds back. */
static __always_inline __s64 pages(struct mm_struct *mm, int kind)
{
	struct mm_struct___old *old = (void *)mm;
	const struct percpu_counter *c;
	const char *p;
	__s64 sum;

	if (bpf_core_field_exists(old->rss_stat.count)) {
		bpf_probe_read_kernel(&sum, sizeof(sum), (char *)&old->rss_stat.count + kind * sizeof(long));
		return sum;
	}
	/* An index that is not constant would have the size of this file's type. */
	c = (void *)((char *)&mm->rss_stat + kind * bpf_core_type_size(struct percpu_counter));
	sum = BPF_CORE_READ(c, count);
	p = (const char *)BPF_CORE_READ(c, counters);
	for (__u32 i = 0; i < MAX_CPUS; i++) {
		__s32 v = 0;

		if (i >= cpus)
			break;
		bpf_probe_read_kernel(&v, sizeof(v), p + percpu_offset[i]);
		sum += v;
	}
	return sum;
}

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;
	struct signal_struct *sig;
	struct mm_struct *mm;
	struct cgroup *cg;
	struct task r = {};

	if (!t)
		return 0;
	sig = t->signal;
	r.pid = t->pid;
	r.tgid = t->tgid;
	r.ppid = t->real_parent->tgid;
	r.flags = t->flags;
	r.start = t->start_boottime;
	r.cpu = t->se.sum_exec_runtime;
	r.user = t->utime;
	r.system = t->stime;
	r.read_bytes = t->ioac.read_bytes;
	r.written_bytes = t->ioac.write_bytes;
	r.dead_cpu = sig->sum_sched_runtime;
	r.dead_user = sig->utime;
	r.dead_system = sig->stime;
	r.dead_read_bytes = sig->ioac.read_bytes;
	r.dead_written_bytes = sig->ioac.write_bytes;
	mm = t->mm;
	/* One row of each process is enough: its leader's, or all if it is gone. */
	if (mm && (t->pid == t->tgid || !t->group_leader->mm)) {
		/* MM_FILEPAGES, MM_ANONPAGES, MM_SHMEMPAGES; include/linux/mm_types_task.h */
		__s64 n = pages(mm, 0) + pages(mm, 1) + pages(mm, 3);

		r.rss = n > 0 ? n * page_size : 0;
		r.has_rss = 1;
	}
	cg = job_of(t, unified);
	r.group = BPF_CORE_READ(cg, kn, id);
	r.hierarchy = BPF_CORE_READ(cg, root, hierarchy_id);
	bpf_probe_read_kernel(r.comm, sizeof(r.comm), t->comm);
	bpf_seq_write(ctx->meta->seq, &r, sizeof(r));
	return 0;
}

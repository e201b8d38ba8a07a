package vm

import (
	"fmt"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// Times is the CPU time of a virtual machine up to an instant, in ns.
type Times struct {
	At int64 // of CLOCK_BOOTTIME
	// CPU is that of its process with all threads, ended ones included, and of kernel
	// threads that serve only it. Helpers are not included.
	CPU int64
	// Role is the same by role and sums to CPU: what belongs to no other role is the
	// emulator's. It is valid if Named is set.
	Role  [RoleLimit]int64
	Named bool
	// Wait is for how long threads that run the guest were runnable and waited for a CPU of
	// this machine: the guest sees it as steal. It is valid if HasWait is set.
	Wait    int64
	HasWait bool
}

// Rates is the activity of a virtual machine between two Times, in CPUs of this machine: 1
// is one CPU all the time.
type Rates struct {
	CPU   float64
	Role  [RoleLimit]float64
	Named bool
	Wait  float64
	// HasWait means that Wait is valid.
	HasWait bool
}

// Since returns the rates from before to t, and false if no time passed. Threads that ended
// meanwhile do not make a rate negative.
func (t Times) Since(before Times) (Rates, bool) {
	span := t.At - before.At
	if span <= 0 {
		return Rates{}, false
	}
	rate := func(now, then int64) float64 { return float64(max(0, now-then)) / float64(span) }
	r := Rates{CPU: rate(t.CPU, before.CPU), Named: t.Named && before.Named,
		Wait: rate(t.Wait, before.Wait), HasWait: t.HasWait && before.HasWait}
	for role := range r.Role {
		r.Role[role] = rate(t.Role[role], before.Role[role])
	}
	return r, true
}

// Times reads the CPU time of a virtual machine. It reads the parts before the total; the
// value of a running thread is as old as its latest clock tick, 4 ms on most kernels. The
// error wraps fault.ErrNotFound if the virtual machine has ended.
func (t *Table) Times(v *VM) (Times, error) {
	r := Times{}
	var names []string
	guests := 0 // threads that run the guest and were read
	err := t.threads(v.PID, func(tid int32, name string) {
		names = append(names, name)
		role := roleOf(name)
		if role == Emulator {
			return
		}
		run, wait, err := t.schedstat(fmt.Sprintf("%s/task/%d", dir(v.PID), tid))
		if err != nil {
			return // it ended, or this kernel has no such file
		}
		if r.Role[role] += run; role == VCPU {
			r.Wait += wait
			guests++
		}
	})
	if err != nil {
		return Times{}, err
	}
	_, named := vcpus(names, v.Domain.VCPUs)
	r.Named = named && guests > 0
	r.HasWait = r.Named
	outside := int64(0)
	for _, tid := range v.vhosts {
		if run, _, err := t.schedstat(dir(tid)); err == nil {
			outside += run
		}
	}
	if r.CPU, err = t.cpu(v); err != nil {
		return Times{}, err
	}
	r.CPU += outside
	r.Role[VHost] += outside
	r.Role[Emulator] = max(0, r.CPU-r.Role[VCPU]-r.Role[VHost]-r.Role[IOThread])
	r.At, err = t.h.Boottime()
	return r, err
}

// schedstat reads how long a thread ran and waited, in ns.
func (t *Table) schedstat(dir string) (run, wait int64, err error) {
	b, err := t.h.ReadFile(dir + "/schedstat")
	if err != nil {
		return 0, 0, err
	}
	return procfmt.Schedstat(b)
}

// cpu reads the CPU time of a virtual machine's process, in ns: exact by its clock, else in
// steps of 10 ms.
func (t *Table) cpu(v *VM) (int64, error) {
	cpu := int64(-1)
	if t.clock {
		// Read the clock before the file, which confirms the process.
		if c, err := proc.CPUTime(v.PID); err == nil {
			cpu = c
		}
	}
	st, err := t.stat(v.PID)
	if err == nil && st.Start != v.Start {
		err = fmt.Errorf("%s: another process: %w", dir(v.PID), fault.ErrNotFound)
	}
	if err != nil {
		return 0, err
	}
	if cpu < 0 {
		cpu = st.User + st.System
	}
	return cpu, nil
}

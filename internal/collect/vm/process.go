package vm

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// An otherProcess is what is known of a process that is not QEMU.
type otherProcess struct {
	checks uint8 // how often it was checked, up to maxChecks
	vhost  int32 // of a kernel thread: the process whose packets it moves
	kernel bool  // a kernel thread, which remains one
}

// A process may become QEMU some time after its start, such as a shell that prepares it. So
// the first scans check each process, and later ones one in eight.
const (
	maxChecks    = 3
	recheckEvery = 8
)

// startupTime is how long after its start QEMU has all of its threads, in ns.
const startupTime = 5_000_000_000

// maxGroupProcesses is how many processes of a workload are read to find out what else runs
// beside a virtual machine.
const maxGroupProcesses = 256

// scanAll checks all processes. It skips most of them: they were identified as something
// else, which rarely changes.
func (t *Table) scanAll() error {
	t.scans++
	t.Unreadable = 0
	next := t.spare
	there := map[int32]bool{}
	vhosts := map[int32][]int32{}
	err := proc.EachPID(t.h, func(pid int32) {
		g, known := t.seen[pid]
		if !known || !g.kernel && (g.checks < maxChecks || (int(pid)+t.scans)%recheckEvery == 0) {
			looks := g.checks
			var err error
			if g, err = t.inspect(pid); err != nil && !errors.Is(err, fault.ErrNotFound) {
				t.Unreadable++
			}
			g.checks = min(looks+1, maxChecks)
		}
		if t.vms[pid] != nil {
			there[pid] = true
			return
		}
		if next[pid] = g; g.vhost != 0 {
			vhosts[g.vhost] = append(vhosts[g.vhost], pid)
		}
	})
	if err != nil {
		clear(next)
		return err
	}
	t.seen, t.spare = next, t.seen
	clear(t.spare)
	for pid, v := range t.vms {
		switch {
		case !there[pid]:
			t.forget(pid)
		case !slices.Equal(v.vhosts, vhosts[pid]):
			changed := *v
			changed.vhosts = vhosts[pid]
			t.vms[pid] = &changed
		}
	}
	return nil
}

// identify returns the virtual machine of a process, or nil and what else it is.
func (t *Table) identify(pid int32) (*VM, otherProcess, error) {
	name, kernel, err := t.program(pid)
	if err != nil || kernel {
		owner, _ := vhostOwner(name)
		return nil, otherProcess{kernel: kernel, vhost: owner}, err
	}
	if !isQEMU(name) {
		return nil, otherProcess{}, nil
	}
	v := &VM{PID: pid}
	st, err := t.stat(pid)
	if err != nil {
		return nil, otherProcess{}, err
	}
	v.Start = st.Start
	if v.Group, err = t.group(pid); err != nil {
		return nil, otherProcess{}, err
	}
	cmdline, err := t.h.ReadFile(dir(pid) + "/cmdline")
	if err != nil {
		return nil, otherProcess{}, err
	}
	if len(cmdline) == 0 {
		return nil, otherProcess{}, nil // it has ended without an error
	}
	v.cmdline = string(cmdline)
	if old := t.vms[pid]; old != nil && old.Start == v.Start && old.cmdline == v.cmdline {
		v.Domain, v.vhosts = old.believed, old.vhosts
	} else {
		v.Domain = Parse(cmdline)
	}
	why := ""
	if why, v.GID, err = t.distrust(pid); err != nil {
		return nil, otherProcess{}, err
	}
	if why != "" {
		// Its number of CPUs only decides how its own use is divided.
		v.UUID, v.CID, v.Name = "", 0, ""
		if old := t.vms[pid]; old == nil || old.Start != v.Start {
			t.log.Info("virtual machine without UUID, name and vsock address, which are not believed", "pid", pid, "why", why)
		}
	}
	v.believed = v.Domain
	var threads []string
	if err := t.threads(pid, func(_ int32, name string) { threads = append(threads, name) }); err != nil {
		return nil, otherProcess{}, err
	}
	v.VCPUs, v.Named = vcpus(threads, v.Domain.VCPUs)
	if now, err := t.h.Boottime(); err == nil && now-v.Start < startupTime {
		v.VCPUs = max(v.VCPUs, v.Domain.VCPUs) // some of its threads may not exist yet
	}
	// The readings belong to one process if its start is still the same.
	if st, err := t.stat(pid); err != nil || st.Start != v.Start {
		return nil, otherProcess{}, fmt.Errorf("%s: another process: %w", dir(pid), fault.ErrNotFound)
	}
	return v, otherProcess{}, nil
}

// program returns the name of the program of a process, and whether it is a kernel thread,
// whose name it then is. For a process of another user only its own name may be readable,
// which QEMU does not change by default.
func (t *Table) program(pid int32) (name string, kernel bool, err error) {
	exe, err := t.h.Readlink(dir(pid) + "/exe")
	if err == nil {
		return path.Base(exe), false, nil
	}
	if !errors.Is(err, fault.ErrDenied) && !errors.Is(err, fault.ErrNotFound) {
		return "", false, err
	}
	st, serr := t.stat(pid)
	return string(st.Comm), st.Kernel, serr
}

func (t *Table) stat(pid int32) (procfmt.Process, error) {
	b, err := t.h.ReadFile(dir(pid) + "/stat")
	if err != nil {
		return procfmt.Process{}, err
	}
	p, err := procfmt.ProcStat(b)
	if err != nil {
		return p, fmt.Errorf("%s/stat: %w", dir(pid), err)
	}
	return p, nil
}

// group returns the path of a process's group in the hierarchy that counts CPU.
func (t *Table) group(pid int32) (string, error) {
	b, err := t.h.ReadFile(dir(pid) + "/cgroup")
	if err != nil {
		return "", err
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return "", fmt.Errorf("%s/cgroup: %w", dir(pid), err)
	}
	for _, m := range ms {
		if m.Hierarchy == int(t.hierarchy.ID) {
			return t.hierarchy.Absolute(m.Path), nil
		}
	}
	return "", fmt.Errorf("%s/cgroup: no hierarchy %d: %w", dir(pid), t.hierarchy.ID, fault.ErrInvalid)
}

// threads calls f for each thread of a process, with its name.
func (t *Table) threads(pid int32, f func(tid int32, name string)) error {
	tasks := dir(pid) + "/task"
	entries, err := t.h.ReadDir(tasks)
	if err != nil {
		return err
	}
	for _, e := range entries {
		tid, err := strconv.ParseInt(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		b, err := t.h.ReadFile(tasks + "/" + e.Name() + "/comm")
		if errors.Is(err, fault.ErrNotFound) {
			continue // it just ended
		}
		if err != nil {
			return err
		}
		if n := len(b); n > 0 && b[n-1] == '\n' {
			b = b[:n-1]
		}
		f(int32(tid), string(b))
	}
	return nil
}

// readGroupProcess reads a process of a group; false if it has ended.
func (t *Table) readGroupProcess(pid int32) (groupProcess, bool) {
	st, err := t.stat(pid)
	if err != nil || st.State == 'Z' || st.State == 'X' {
		return groupProcess{}, false
	}
	return groupProcess{pid: pid, parent: int32(st.Parent), name: string(st.Comm), kernel: st.Kernel, qemu: t.vms[pid] != nil}, true
}

// groupPIDs lists the processes that count for g: in its group and in groups below that are
// not workloads. It stops at more than maxGroupProcesses.
func (t *Table) groupPIDs(g *usage.Group, owner Owner) ([]int32, error) {
	var pids []int32
	err := t.addPIDs(g.Workload.Path, func(group string) bool { return owner(group) == g }, &pids)
	slices.Sort(pids)
	// With cgroup v1 a process is listed in each group with a thread of it.
	return slices.Compact(pids), err
}

// addPIDs adds the processes of a group, whose path is below the mount, and of the wanted
// groups below it.
func (t *Table) addPIDs(below string, want func(group string) bool, pids *[]int32) error {
	at := path.Join(t.hierarchy.Mount, below)
	b, err := t.h.ReadFile(at + "/cgroup.procs")
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return nil // removed, or its memory is charged here and its CPU time is not
	case errors.Is(err, fault.ErrUnsupported): // a threaded group: its processes are listed in its parent
	case err != nil:
		return err
	}
	for len(b) > 0 && len(*pids) <= maxGroupProcesses {
		n := slices.Index(b, '\n')
		if n < 0 {
			n = len(b) - 1
		}
		// Processes of an outer PID namespace are listed as 0.
		if pid, err := strconv.ParseInt(string(b[:n]), 10, 32); err == nil && pid > 0 {
			*pids = append(*pids, int32(pid))
		}
		b = b[n+1:]
	}
	if len(*pids) > maxGroupProcesses || t.h.Leaf(at) {
		return nil
	}
	entries, err := t.h.ReadDir(at)
	if err != nil {
		if errors.Is(err, fault.ErrNotFound) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		p := path.Join(below, e.Name())
		if !e.IsDir() || !want(path.Join(t.hierarchy.Root, p)) {
			continue
		}
		if err := t.addPIDs(p, want, pids); err != nil {
			return err
		}
	}
	return nil
}

func dir(pid int32) string { return "/proc/" + strconv.Itoa(int(pid)) }

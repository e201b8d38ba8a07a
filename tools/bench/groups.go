package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/host/hostfs"
)

// A farm is a set of groups with processes in them, made for one run.
type farm struct {
	dirs  []string // of all groups, in all hierarchies, parents first
	procs []*exec.Cmd
	name  string
	cpu   []string // directory of each group in the hierarchy that counts CPU
	mem   []string // in the one that charges memory
}

// controllers are those in which the farm creates groups, as a container runtime would.
var controllers = []string{"cpuacct", "cpu", "memory", "pids", "blkio"}

// farmPrefix begins the name of a farm's groups; the process id of its bench follows.
const farmPrefix = "mete-bench-"

// newFarm creates n groups: most sleep, and the first five are busy: four compute and one
// forks.
func newFarm(h *hostfs.FS, n int) (_ *farm, err error) {
	f := &farm{name: farmPrefix + strconv.Itoa(os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.clear())
		}
	}()
	ys, err := h.Hierarchies()
	if err != nil {
		return nil, err
	}
	var mounts []string
	var cpu, mem string
	for _, y := range ys {
		use := y.V2 && len(y.Controllers) > 0
		for _, c := range controllers {
			use = use || y.Has(c)
		}
		if !use {
			continue
		}
		mounts = append(mounts, y.Mount)
		if y.Has("cpuacct") || y.V2 && cpu == "" {
			cpu = y.Mount
		}
		if y.Has("memory") {
			mem = y.Mount
		}
	}
	for _, m := range mounts {
		if err := removeLeft(m); err != nil {
			return nil, err
		}
		if err := f.mkdir(filepath.Join(m, f.name)); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i := range n {
		g := fmt.Sprintf("%s/g%05d", f.name, i)
		for _, m := range mounts {
			if err := f.mkdir(filepath.Join(m, g)); err != nil {
				return nil, err
			}
		}
		f.cpu = append(f.cpu, filepath.Join(cpu, g))
		f.mem = append(f.mem, filepath.Join(mem, g))
		cmd := exec.Command("sleep", "100000")
		switch {
		case i < 4:
			cmd = exec.Command(self, "child", "busy")
		case i == 4:
			cmd = exec.Command(self, "child", "fork")
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		f.procs = append(f.procs, cmd)
		for _, m := range mounts {
			if err := os.WriteFile(filepath.Join(m, g, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// removeLeft removes the groups of killed benches from a hierarchy, which an agent would follow too.
func removeLeft(mount string) error {
	left, err := filepath.Glob(filepath.Join(mount, farmPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		pid := strings.TrimPrefix(filepath.Base(dir), farmPrefix)
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue // of a bench that runs
		}
		groups, err := filepath.Glob(dir + "/g*")
		if err != nil {
			return err
		}
		for _, g := range append(groups, dir) {
			if err := os.Remove(g); err != nil {
				return fmt.Errorf("a killed bench left a group with processes, which end with: cat %s/cgroup.procs %[1]s/*/cgroup.procs | xargs kill: %w", dir, err)
			}
		}
	}
	return nil
}

func (f *farm) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f.dirs = append(f.dirs, dir)
	return nil
}

// clear ends the processes and removes the groups.
func (f *farm) clear() (err error) {
	for _, p := range f.procs {
		_ = p.Process.Kill()
	}
	for _, p := range f.procs {
		_ = p.Wait() // killed, so an error is expected
	}
	for i := len(f.dirs) - 1; i >= 0; i-- {
		for try := 0; ; try++ {
			e := os.Remove(f.dirs[i])
			if e == nil || try > 100 {
				err = errors.Join(err, e)
				break
			}
			time.Sleep(10 * time.Millisecond) // a forked child is still exiting
		}
	}
	return err
}

// child runs a load: 10 % of a CPU, so that the machine is not saturated, or twenty forks
// per second.
func child(args []string) error {
	if len(args) == 1 && args[0] == "fork" {
		for {
			if err := exec.Command("true").Run(); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	for {
		for t := time.Now(); time.Since(t) < 10*time.Millisecond; {
		}
		time.Sleep(90 * time.Millisecond)
	}
}

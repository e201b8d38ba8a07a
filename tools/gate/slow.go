package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// slowDown moves this process, and so all processes that it starts, into a new control
// group limited to 1/n of the machine's CPU time. end moves it back and removes the group.
func slowDown(n float64) (end func(), err error) {
	if n < 1 {
		return nil, errors.New("the factor must be 1 or more")
	}
	mount, v2, err := cpuController("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(mount, fmt.Sprintf("mete-gate-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	const period = 100_000 // microseconds, the kernel's default
	quota := strconv.Itoa(int(period * float64(runtime.NumCPU()) / n))
	limits := map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": quota}
	if v2 {
		limits = map[string]string{"cpu.max": quota + " " + strconv.Itoa(period)}
	}
	for file, value := range limits {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return nil, errors.Join(err, os.Remove(dir))
		}
	}
	move := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err := move(dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return func() {
		if err := errors.Join(move(mount), os.Remove(dir)); err != nil {
			fmt.Fprintf(os.Stderr, "gate: %s stays: %v\n", dir, err)
		}
	}, nil
}

// cpuController returns the mount point of the CPU controller, and whether it is in cgroup
// v2.
func cpuController(mountinfo string) (dir string, v2 bool, err error) {
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return "", false, err
	}
	// The fields after " - " are type, source and options; the fifth field is the mount
	// point (proc(5)).
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup":
			if slices.Contains(strings.Split(right[2], ","), "cpu") {
				return left[4], false, nil
			}
		case "cgroup2":
			enabled, err := os.ReadFile(filepath.Join(left[4], "cgroup.subtree_control"))
			if err == nil && slices.Contains(strings.Fields(string(enabled)), "cpu") {
				return left[4], true, nil
			}
		}
	}
	return "", false, errors.New("no CPU controller of control groups is mounted")
}

package launch

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

type LimitError struct {
	Limit string // cpus or memory
	Err   error
}

func (e *LimitError) Error() string { return "limit of " + e.Limit + ": " + e.Err.Error() }
func (e *LimitError) Unwrap() error { return e.Err }

// period is the period of CPU limits in microseconds, the kernel's default
// (Documentation/scheduler/sched-bwc.rst).
const period = 100_000

// minMemory is the lowest memory limit. Starting a command takes some 200 KiB of kernel and user memory, and in v1 a thread
// of this process starts it within the limit: if the kernel has no memory for a page of that thread, it tries forever.
const minMemory = 1 << 20

// setLimits sets each limit in the hierarchy that has its controller.
func (g *Group) setLimits(l Limits) error {
	if l.CPUs > 0 {
		quota := strconv.FormatInt(max(1000, int64(l.CPUs*period)), 10)
		err := g.writeLimit("cpu", map[bool][][2]string{
			true:  {{"cpu.max", quota + " " + strconv.Itoa(period)}},
			false: {{"cpu.cfs_period_us", strconv.Itoa(period)}, {"cpu.cfs_quota_us", quota}},
		})
		if err != nil {
			return &LimitError{"cpus", err}
		}
	}
	if l.Memory > 0 {
		if l.Memory < minMemory {
			err := fmt.Errorf("%d bytes are too few to start a command", l.Memory)
			return &LimitError{"memory", fault.WithHint(err, "1Mi is enough for most commands to start")}
		}
		bytes := strconv.FormatInt(l.Memory, 10)
		err := g.writeLimit("memory", map[bool][][2]string{
			true:  {{"memory.max", bytes}},
			false: {{"memory.limit_in_bytes", bytes}},
		})
		if err != nil {
			return &LimitError{"memory", err}
		}
	}
	return nil
}

// cpusAbove returns the lowest CPU limit of the groups above that of a part, of v1, in CPUs; 0 without
// one. In v1 the kernel refuses a limit above it (kernel/sched/core.c, tg_cfs_schedulable_down); in v2 the lowest one
// applies.
func (g *Group) cpusAbove(p *part) (lowest float64) {
	number := func(file string) float64 {
		text, err := g.h.ReadFile(file)
		if err != nil {
			return 0
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			return 0
		}
		return v
	}
	for dir := p.parent; ; dir = path.Dir(dir) {
		quota, of := number(dir+"/cpu.cfs_quota_us"), number(dir+"/cpu.cfs_period_us")
		if quota > 0 && of > 0 && (lowest == 0 || quota/of < lowest) {
			lowest = quota / of
		}
		if dir == p.y.Mount || len(dir) <= 1 {
			return lowest
		}
	}
}

// writeLimit writes the files of a controller, of v2 (true) or v1 (false).
func (g *Group) writeLimit(controller string, files map[bool][][2]string) error {
	for _, v2 := range []bool{false, true} {
		for _, p := range g.parts {
			file := p.dir + "/" + files[v2][0][0]
			if p.y.V2 != v2 || !v2 && !p.y.Has(controller) || v2 && !isWritable(g.h, file) {
				continue
			}
			for _, f := range files[v2] {
				err := g.h.WriteFile(p.dir+"/"+f[0], []byte(f[1]))
				if !v2 && controller == "cpu" && errors.Is(err, unix.EINVAL) {
					if most := g.cpusAbove(p); most > 0 {
						return fault.WithHint(fmt.Errorf("the groups above have %g CPUs: %w", most, fault.ErrInvalid), fmt.Sprintf("give --cpus %g or less, or none", most))
					}
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	return fmt.Errorf("the job's group has no %s controller: %w", controller, fault.ErrUnsupported)
}

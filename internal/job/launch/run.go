package launch

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/usage"
)

// A Job is a command's [Group] or [Tree].
type Job interface {
	Start(c Command) (*Process, error)
	Read(r *usage.Reading)
	Levels(r *usage.Reading)
	Ended(e Exit)
	Members() []Member
	Strayed(pid int, ended bool) []string
	Gone() bool
}

// Watch says how a job is watched.
type Watch struct {
	// Signals are passed to the command. After its end one of them ends the
	// waiting for the rest.
	Signals <-chan os.Signal
	// Pass reports whether the command needs s sent, as the terminal has not
	// sent it there already.
	Pass func(s os.Signal) bool
	// All waits until the job has no process left, not only the command.
	All bool
	// More adds to a reading what the job's own files do not show; its values
	// win. It may be nil.
	More func(r *usage.Reading)
	// Sampled is called with what there is of the job after each reading of all
	// of it, about once a second and at the end, and when that was. What it is
	// given changes afterwards; the command waits for signals meanwhile. It may
	// be nil.
	Sampled func(at hostfs.Clocks, m *report.Measured)
}

// Samples of levels are taken every tenth of the job's age, so that their
// averages are right for a job of 50 ms and light for one of a week.
const (
	firstSample = 2 * time.Millisecond
	lastSample  = time.Second
	sampleShare = 10
)

// Run starts the command, passes signals to it, and reads what the job uses
// until it ends. Only an error means that it was not started.
func Run(h *hostfs.FS, job Job, c Command, w Watch) (*report.Measured, Exit, error) {
	r := &run{h: h, job: job, watch: w, out: &report.Measured{}}
	if w.Sampled == nil {
		r.watch.Sampled = func(hostfs.Clocks, *report.Measured) {}
	}
	// Before the start, so that reading /proc/stat is not the job's time.
	steal := r.steal()
	p, err := job.Start(c)
	if err != nil {
		return nil, Exit{}, err
	}
	began := p.Began
	r.began = began.Monotonic
	r.out.Started = time.Unix(0, began.Realtime).UTC()
	exit := r.follow(p)
	if w.All {
		r.drain()
	}
	ended, err := h.Clocks()
	if err != nil {
		ended = began // this machine's clocks do not fail
	}
	r.sample(ended.Monotonic, true)
	r.watch.Sampled(ended, r.out)
	for _, m := range job.Members() {
		r.out.LivesOn = append(r.out.LivesOn, report.Process{PID: m.PID, Name: m.Name})
	}
	r.out.Ended = time.Unix(0, ended.Realtime).UTC()
	r.out.Wall = ended.Boottime - began.Boottime
	r.out.Awake = ended.Monotonic - began.Monotonic
	r.out.Stolen = r.steal() - steal
	return r.out, exit, nil
}

type run struct {
	h     *hostfs.FS
	job   Job
	watch Watch
	out   *report.Measured
	began int64         // CLOCK_MONOTONIC, ns
	full  time.Duration // age when all was read last
	stray bool
	gone  bool
}

// follow waits for the end of the command, sampling and passing signals.
func (r *run) follow(p *Process) Exit {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A failure shows in Reap, which waits itself.
		_ = p.WaitExit()
	}()
	timer := time.NewTimer(firstSample)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(r.tick(p))
		case s := <-r.watch.Signals:
			if n, ok := s.(syscall.Signal); ok && r.watch.Pass(s) {
				// A command of another user may not be signalled; it is
				// the caller's to notice that nothing happens.
				_ = p.Signal(n)
			}
		case <-done:
			r.strays(p, true)
			exit, err := p.Reap()
			if err != nil {
				r.note("how the command ended is not known: " + err.Error())
			}
			r.job.Ended(exit)
			return exit
		}
	}
}

// tick takes a sample, of everything once a second, and returns the time until
// the next.
func (r *run) tick(p *Process) time.Duration {
	c, err := r.h.Clocks()
	if err != nil {
		return lastSample
	}
	age := time.Duration(c.Monotonic - r.began)
	if age-r.full < lastSample {
		var m usage.Reading
		r.job.Levels(&m)
		r.levels(&m, c.Monotonic)
	} else {
		r.full = age
		r.sample(c.Monotonic, false)
		r.watch.Sampled(c, r.out)
		if p != nil {
			r.strays(p, false)
		}
	}
	return min(max(firstSample, age/sampleShare), lastSample)
}

// sample reads all that there is of the job. At the end, levels stay at what
// they were: what is left then is not what the job had.
func (r *run) sample(now int64, end bool) {
	var m usage.Reading
	r.job.Read(&m)
	if r.watch.More != nil {
		r.watch.More(&m)
	}
	if end {
		r.hold(now)
	}
	r.levels(&m, now)
	// A group that somebody removed shows nothing more: what it showed last is
	// the best that there is.
	if m.Has.Has(usage.CPU) {
		r.out.Final = m
	} else if !r.gone && r.job.Gone() {
		r.gone = true
		r.note("the job's group was removed by somebody while it ran: the figures are those of the last reading before")
	}
}

func (r *run) each(f func(usage.Resource, *report.Level)) {
	f(usage.Memory, &r.out.Memory)
	f(usage.MemoryAnon, &r.out.Anon)
	f(usage.MemoryFile, &r.out.File)
	f(usage.PIDs, &r.out.PIDs)
}

func (r *run) levels(m *usage.Reading, now int64) {
	r.each(func(res usage.Resource, l *report.Level) {
		if m.Has.Has(res) {
			l.Add(now, m.Value[res])
			r.out.Apportioned |= m.Apportioned & usage.SetOf(res)
		}
	})
}

func (r *run) hold(now int64) {
	r.each(func(_ usage.Resource, l *report.Level) { l.Hold(now) })
}

// strays notes once that the command has left its groups.
func (r *run) strays(p *Process, ended bool) {
	if r.stray {
		return
	}
	if away := r.job.Strayed(p.PID, ended); len(away) > 0 {
		r.stray = true
		r.note(fmt.Sprintf("the command was moved out of its group (%s): what it used elsewhere is not in the figures", strings.Join(away, ", ")))
	}
}

// drain waits until the job has no process left, or until a signal.
func (r *run) drain() {
	for {
		ms := r.job.Members()
		if len(ms) == 0 {
			return
		}
		wait := r.tick(nil)
		done := make(chan struct{})
		go func() { defer close(done); WaitGone(ms, wait) }()
		select {
		case <-done:
		case s := <-r.watch.Signals:
			<-done
			if s == syscall.SIGCONT {
				continue
			}
			r.note("stopped waiting for what was left running: " + s.String())
			return
		}
	}
}

func (r *run) note(s string) { r.out.Notes = append(r.out.Notes, s) }

// steal reads the CPU time that a hypervisor took, and how many CPUs there are.
func (r *run) steal() int64 {
	b, err := r.h.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		return 0
	}
	r.out.CPUs = s.CPUs
	return s.Steal
}

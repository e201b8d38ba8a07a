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

// A Job is a [Group] or a [Tree].
type Job interface {
	Start(c Command) (*Process, error)
	Read(r *usage.Reading)
	ReadLevels(r *usage.Reading)
	AddExit(e Exit)
	Members() []Member
	LeftGroups(pid int, ended bool) []string
	IsGone() bool
}

// Watch configures how a job is watched.
type Watch struct {
	// Signals are passed to the command. After its end a signal ends waiting for other processes.
	Signals <-chan os.Signal
	// NeedsSignal reports whether s must be sent to the command, because the terminal has not sent
	// it already.
	NeedsSignal func(s os.Signal) bool
	// WaitAll waits for all processes of the job, not only the command.
	WaitAll bool
	// ReadMore adds values to a reading, overriding those of the job's files. It may be nil.
	ReadMore func(r *usage.Reading)
	// OnSample is called after each complete reading, about once a second and at the end, with its
	// time and the measurement so far. It must not keep m; the command's signals wait meanwhile. It
	// may be nil.
	OnSample func(at hostfs.Clocks, m *report.Measurement)
}

// Levels are sampled every tenth of the job's age, so that averages are accurate for a job of 50 ms
// and cheap for one of a week.
const (
	firstSample = 2 * time.Millisecond
	lastSample  = time.Second
	sampleShare = 10
)

// Run starts the command, passes signals to it, and measures the job until it ends. An error means
// that the command was not started.
func Run(h *hostfs.FS, job Job, c Command, w Watch) (*report.Measurement, Exit, error) {
	r := &run{h: h, job: job, watch: w, out: &report.Measurement{}}
	if w.OnSample == nil {
		r.watch.OnSample = func(hostfs.Clocks, *report.Measurement) {}
	}
	// Before the start, so that the job is not charged for reading /proc/stat.
	steal := r.readSteal()
	p, err := job.Start(c)
	if err != nil {
		return nil, Exit{}, err
	}
	began := p.Began
	r.began = began.Monotonic
	r.out.Started = time.Unix(0, began.Realtime).UTC()
	exit := r.follow(p)
	if w.WaitAll {
		r.drain()
	}
	ended, err := h.Clocks()
	if err != nil {
		ended = began // cannot happen: clocks do not fail
	}
	r.sample(ended.Monotonic, true)
	r.watch.OnSample(ended, r.out)
	for _, m := range job.Members() {
		r.out.LivesOn = append(r.out.LivesOn, report.Process{PID: m.PID, Name: m.Name})
	}
	r.out.Ended = time.Unix(0, ended.Realtime).UTC()
	r.out.Wall = ended.Boottime - began.Boottime
	r.out.Awake = ended.Monotonic - began.Monotonic
	r.out.Stolen = r.readSteal() - steal
	return r.out, exit, nil
}

type run struct {
	h        *hostfs.FS
	job      Job
	watch    Watch
	out      *report.Measurement
	began    int64         // CLOCK_MONOTONIC, ns
	lastFull time.Duration // age of the latest complete reading
	left     bool
	gone     bool
}

// follow waits for the end of the command, sampling and passing signals.
func (r *run) follow(p *Process) Exit {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Reap waits too, and reports a failure.
		_ = p.WaitExit()
	}()
	timer := time.NewTimer(firstSample)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(r.tick(p))
		case s := <-r.watch.Signals:
			if n, ok := s.(syscall.Signal); ok && r.watch.NeedsSignal(s) {
				// Signaling a command of another user may fail; the caller sees that nothing
				// happens.
				_ = p.Signal(n)
			}
		case <-done:
			r.checkLeft(p, true)
			exit, err := p.Reap()
			if err != nil {
				r.addNote("the exit status of the command is unknown: " + err.Error())
			}
			r.job.AddExit(exit)
			return exit
		}
	}
}

// tick takes a sample, a complete one once a second, and returns the time until the next.
func (r *run) tick(p *Process) time.Duration {
	c, err := r.h.Clocks()
	if err != nil {
		return lastSample
	}
	age := time.Duration(c.Monotonic - r.began)
	if age-r.lastFull < lastSample {
		var m usage.Reading
		r.job.ReadLevels(&m)
		r.addLevels(&m, c.Monotonic)
	} else {
		r.lastFull = age
		r.sample(c.Monotonic, false)
		r.watch.OnSample(c, r.out)
		if p != nil {
			r.checkLeft(p, false)
		}
	}
	return min(max(firstSample, age/sampleShare), lastSample)
}

// sample takes a complete reading. At the end levels keep their last sample: what remains then is
// not what the job had.
func (r *run) sample(now int64, end bool) {
	var m usage.Reading
	r.job.Read(&m)
	if r.watch.ReadMore != nil {
		r.watch.ReadMore(&m)
	}
	if end {
		r.holdLevels(now)
	}
	r.addLevels(&m, now)
	// A removed group shows nothing more; its last reading is the best available.
	if m.Has.Has(usage.CPU) {
		r.out.Final = m
	} else if !r.gone && r.job.IsGone() {
		r.gone = true
		r.addNote("the job's group was removed while it ran: the figures are those of the last reading before")
	}
}

func (r *run) eachLevel(f func(usage.Resource, *report.Gauge)) {
	f(usage.Memory, &r.out.Memory)
	f(usage.MemoryAnon, &r.out.Anon)
	f(usage.MemoryFile, &r.out.File)
	f(usage.PIDs, &r.out.PIDs)
}

func (r *run) addLevels(m *usage.Reading, now int64) {
	r.eachLevel(func(res usage.Resource, l *report.Gauge) {
		if m.Has.Has(res) {
			l.Add(now, m.Value[res])
			r.out.Apportioned |= m.Apportioned & usage.SetOf(res)
		}
	})
}

func (r *run) holdLevels(now int64) {
	r.eachLevel(func(_ usage.Resource, l *report.Gauge) { l.Hold(now) })
}

// checkLeft adds a note, once, that the command has left its groups.
func (r *run) checkLeft(p *Process, ended bool) {
	if r.left {
		return
	}
	if away := r.job.LeftGroups(p.PID, ended); len(away) > 0 {
		r.left = true
		r.addNote(fmt.Sprintf("the command was moved out of its group (%s): what it used elsewhere is not in the figures", strings.Join(away, ", ")))
	}
}

// drain waits until the job has no processes, or for a signal.
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
			r.addNote("stopped waiting for what was left running: " + s.String())
			return
		}
	}
}

func (r *run) addNote(s string) { r.out.Notes = append(r.out.Notes, s) }

// readSteal reads the steal time and the number of CPUs.
func (r *run) readSteal() int64 {
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

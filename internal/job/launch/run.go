package launch

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
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

// A Moment is when a job is sampled.
type Moment uint8

const (
	Early Moment = iota // between two full samples, while the job is young
	Full                // about once a second
	Last                // the job has ended: what it holds now is not what it held
)

// Watch configures how a job is watched.
type Watch struct {
	// Signals are passed to the command. A signal for which [Ends] is true prevents the start if it
	// comes before, and ends waiting for other processes if it comes after the command's end.
	Signals <-chan os.Signal
	// NeedsSignal reports whether s must be sent to the command, because the terminal has not sent
	// it already.
	NeedsSignal func(s os.Signal) bool
	// WaitAll waits for all processes of the job, not only the command.
	WaitAll bool
	// Sample measures the job and reports whether it still can. The command's signals wait
	// meanwhile. It may be nil.
	Sample func(Moment) bool
}

// Ends reports whether s asks a program to end. Others, such as those of a resized terminal or a timer,
// end no wait.
func Ends(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// A job is sampled every tenth of its age, so that averages are accurate for a job of 50 ms and cheap
// for one of a week.
const (
	firstSample = 2 * time.Millisecond
	lastSample  = time.Second
	sampleShare = 10
)

// Run starts the command, passes signals to it, and has the job sampled until it ends. An error means
// that the command was not started.
func Run(h *hostfs.FS, job Job, c Command, w Watch) (*report.Measurement, Exit, error) {
	r := &run{h: h, job: job, watch: w, out: &report.Measurement{}}
	if w.Sample == nil {
		r.watch.Sample = func(Moment) bool { return true }
	}
	before := c.Before
	c.Before = func() error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		return r.checkEarly(c.Path)
	}
	p, err := job.Start(c)
	if err != nil {
		return nil, Exit{}, err
	}
	r.passEarly(p)
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
	r.sample(Last)
	for _, m := range job.Members() {
		r.out.LivesOn = append(r.out.LivesOn, report.Process{PID: m.PID, Name: m.Name})
	}
	r.out.Ended = time.Unix(0, ended.Realtime).UTC()
	r.out.Wall = ended.Boottime - began.Boottime
	return r.out, exit, nil
}

type run struct {
	h        *hostfs.FS
	job      Job
	watch    Watch
	out      *report.Measurement
	began    int64         // CLOCK_MONOTONIC, ns
	lastFull time.Duration // age of the latest complete reading
	early    []os.Signal   // came before the start
	left     bool
	gone     bool
}

// takeEarly takes the signals that have come so far.
func (r *run) takeEarly() {
	for {
		select {
		case s := <-r.watch.Signals:
			r.early = append(r.early, s)
		default:
			return
		}
	}
}

// checkEarly returns a *[StartError] if a signal that ends a program came before the start.
func (r *run) checkEarly(path string) error {
	r.takeEarly()
	for _, s := range r.early {
		if n, ok := s.(syscall.Signal); ok && Ends(n) {
			return &StartError{path, 128 + int(n), fmt.Errorf("not started: %s came first", unix.SignalName(n))}
		}
	}
	return nil
}

// passEarly sends the command the signals that came before its start, and those of the terminal too:
// they reached only this process. One that comes during the start may reach the command twice, which is
// better than not at all.
func (r *run) passEarly(p *Process) {
	r.takeEarly()
	for _, s := range r.early {
		if n, ok := s.(syscall.Signal); ok && n != syscall.SIGPIPE { // SIGPIPE is of this process's own output
			_ = p.Signal(n) // as in follow
		}
	}
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

// tick takes a sample, a full one once a second, and returns the time until the next.
func (r *run) tick(p *Process) time.Duration {
	c, err := r.h.Clocks()
	if err != nil {
		return lastSample
	}
	age := time.Duration(c.Monotonic - r.began)
	if age-r.lastFull < lastSample {
		r.watch.Sample(Early)
	} else {
		r.lastFull = age
		r.sample(Full)
		if p != nil {
			r.checkLeft(p, false)
		}
	}
	return min(max(firstSample, age/sampleShare), lastSample)
}

// sample takes a full sample, or the last one.
func (r *run) sample(at Moment) {
	// A removed group shows nothing more; its last reading is the best available.
	if !r.watch.Sample(at) && !r.gone && r.job.IsGone() {
		r.gone = true
		r.addNote("the job's group was removed while it ran: the figures are those of the last reading before")
	}
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

// drain waits until the job has no processes, or for a signal that ends the wait.
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
			if !Ends(s) {
				continue
			}
			r.addNote("stopped waiting for what was left running: " + s.String())
			return
		}
	}
}

func (r *run) addNote(s string) { r.out.Notes = append(r.out.Notes, s) }

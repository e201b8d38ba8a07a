// Package storage measures the disk space of containers and pods: of a container its writable layer and its logs, of a pod its
// emptyDir volumes on disk. It counts blocks, as du(1) does, by walking the directories, a few files a second, in a goroutine of its own.
// Of persistent volumes that pods mount it takes what their file systems say.
//
// A figure is that of a complete walk, and holds until the next one. A workload that did something since is walked again after
// some minutes, another one after an hour. A workload whose directories cannot be found, read or told apart with certainty has no
// figure.
package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Values of Config.Mode.
const (
	Auto = "auto" // where it is possible
	Off  = "off"
)

// A Config configures a Table.
type Config struct {
	Mode string // Auto or Off
	// Rate is how many files to look at in a second, on average: each takes some microseconds of CPU time.
	Rate int
	// Directories of the machine: of the kubelet, of logs of pods (with containers and pods below it), and of Docker.
	Kubelet, Logs, Docker string
}

// Default takes about 0.1 % of a CPU while it walks.
func Default() Config {
	return Config{Mode: Auto, Rate: 250, Kubelet: "/var/lib/kubelet", Logs: "/var/log", Docker: "/var/lib/docker"}
}

// Limits of Config.Rate.
const (
	MinRate = 10
	MaxRate = 100_000
)

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	switch {
	case c.Mode != Auto && c.Mode != Off:
		return fault.WithHint(fmt.Errorf("storage %q: %w", c.Mode, fault.ErrInvalid), "use auto or off")
	case c.Mode == Auto && (c.Rate < MinRate || c.Rate > MaxRate):
		return fmt.Errorf("storage: rate %d is not within %d and %d: %w", c.Rate, MinRate, MaxRate, fault.ErrInvalid)
	}
	return nil
}

// A Target is a container or pod.
type Target struct {
	Slot usage.Slot
	Kind workload.Kind
	Key  string // of the workload
	Pod  string // UID of the pod of a container, "" if it is in none
	// Hierarchy is one that has the workload's group, Path is the group's path there, and ID its id.
	Hierarchy hostfs.Hierarchy
	Path      string
	ID        uint64
}

// target is a tracked workload. There is one for each container and pod.
type target struct {
	Target
	logs   string        // the directory of its logs in a pod, see locator.findLogs
	sign   Sign          // latest
	walked Sign          // at the start of the latest complete walk
	bytes  int64         // of that walk
	at     int64         // when that one ended, ns of CLOCK_BOOTTIME; 0 is never
	tried  int64         // when the latest walk ended, whether it was complete or not
	pause  time.Duration // until the next one
	claim  fileID        // its writable layer
	busy   bool          // it is being walked
	large  bool          // its latest walk was long
	looked bool          // its logs were looked for
	gone   bool
	// hadVolumes says that the directory with the volumes of a pod was there: if it is not any more, the pod ends.
	hadVolumes bool
}

// tenant identifies the pod, or else the workload, among those that have long walks.
func (x *target) tenant() string {
	if x.Pod != "" {
		return x.Pod
	}
	return x.Key
}

// A Sign is what shows cheaply that a workload may have written.
type Sign struct {
	CPU     int64 // ns
	Written int64 // bytes
}

// Times.
const (
	firstPause = 2 * time.Second  // until the first walk: most short lives end before
	retryPause = 10 * time.Second // after the first walk that failed
	minPause   = time.Minute      // between walks of a workload that did something
	maxPause   = 16 * time.Minute // the same, if walks find no change or fail
	restPause  = time.Hour        // between walks of one that did nothing
	maxAge     = 3 * time.Hour    // of a figure, and of a walk
	logsPause  = time.Minute      // between looks for logs that were not found
	hangTime   = 20 * time.Second // after which a turn counts as hung
	closeTime  = time.Second      // for which Close waits for a turn
)

// leastCPU is the CPU time in which a workload may have written something.
const leastCPU = time.Millisecond

// Amounts of work, in files looked at.
const (
	turnFiles  = 256  // of a turn
	shortFiles = 4096 // a walk with more goes on beside the short ones
	locateCost = 150  // of finding the directories of a container, in CPU time
	maxLong    = 16   // long walks at once
	maxHung    = 4    // turns that hang at once
	restShare  = 20   // a turn is followed by a pause of this many times its length: a busy disk is left to others
	restWalks  = 2    // a walk is followed by a pause of this many times its length
)

// A Table measures the disk space of the tracked workloads. Its methods may be called by one goroutine, which they do not delay.
type Table struct {
	cfg     Config
	host    *hostfs.FS
	log     *slog.Logger
	reason  string // why nothing is measured, "" if it is
	stop    chan struct{}
	changed chan struct{} // a workload was added
	ended   chan struct{} // nil without a goroutine

	mu     sync.Mutex
	bySlot []*target
	claims map[fileID]*target
	hung   map[string]int // turns that hang, by directory
	hangs  int

	// hangTime and shortFiles, or less in tests.
	patience   time.Duration
	shortFiles int

	// Of the goroutine.
	short  *walk   // one that may be a short one; nil if there is none
	long   []*walk // those that are not
	turns  int
	logsAt int64 // when the links of logs were read last, ns of CLOCK_BOOTTIME

	volumes volumes
}

// Open returns an empty table. If nothing is measured, Reason says why.
func Open(h *hostfs.FS, cfg Config, log *slog.Logger) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, host: h, log: log, stop: make(chan struct{}), changed: make(chan struct{}, 1), claims: map[fileID]*target{}, hung: map[string]int{}, patience: hangTime, shortFiles: shortFiles}
	t.volumes = volumes{locator: locator{cfg: cfg, host: h}, log: log, patience: answerTime, lookTime: lookTime, podTime: podTime, stop: t.stop, hung: map[procfmt.Dev]string{}}
	switch {
	case cfg.Mode == Off:
		t.reason = "it is switched off"
	case !h.Live():
		t.reason = "a captured machine"
	case !canOpenCached():
		t.reason = "no openat2 with RESOLVE_CACHED, which Linux has since 5.12"
	}
	return t, nil
}

// canOpenCached reports whether the kernel has RESOLVE_CACHED.
func canOpenCached() bool {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolveCached}
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &how)
	if err == nil {
		_ = unix.Close(fd) // it was only a test
	}
	return err != unix.ENOSYS && err != unix.EINVAL && err != unix.EPERM && err != unix.E2BIG
}

// Reason returns why nothing is measured, "" if it is.
func (t *Table) Reason() string { return t.reason }

// Close ends the measurement. It waits a second at most for a file system that does not answer.
func (t *Table) Close() error {
	close(t.stop)
	for _, ended := range []chan struct{}{t.ended, t.volumes.ended} {
		if ended != nil {
			<-ended
		}
	}
	return nil
}

// Track begins to measure a workload. It forgets one that is tracked in the slot.
func (t *Table) Track(g Target) {
	if t.reason != "" {
		return
	}
	t.Forget(g.Slot)
	now, err := t.host.Boottime()
	if err != nil {
		return
	}
	t.mu.Lock()
	for int(g.Slot) >= len(t.bySlot) {
		t.bySlot = append(t.bySlot, nil)
	}
	t.bySlot[g.Slot] = &target{Target: g, tried: now, pause: firstPause}
	t.mu.Unlock()
	if t.ended == nil {
		t.ended = make(chan struct{})
		go t.run()
	}
	if g.Kind == workload.Pod && t.volumes.ended == nil {
		t.volumes.ended = make(chan struct{})
		go t.volumes.run()
	}
	select {
	case t.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// Forget ends the measurement of a workload.
func (t *Table) Forget(s usage.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.at(s); x != nil {
		x.gone = true
		if t.claims[x.claim] == x {
			delete(t.claims, x.claim)
		}
		t.bySlot[s] = nil
	}
}

func (t *Table) at(s usage.Slot) *target {
	if s < 0 || int(s) >= len(t.bySlot) {
		return nil
	}
	return t.bySlot[s]
}

// Use returns the disk space of a workload in bytes, and false if it is not known. sign is its present one, and now the time in ns of
// CLOCK_BOOTTIME.
func (t *Table) Use(s usage.Slot, sign Sign, now int64) (bytes int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.at(s)
	if x == nil {
		return 0, false
	}
	x.sign = sign
	return x.bytes, x.at > 0 && now-x.at <= int64(maxAge)
}

// due returns when a walk of x begins, ns of CLOCK_BOOTTIME.
func (x *target) due() int64 {
	pause := x.pause
	if pause < restPause && x.at > 0 && x.at == x.tried && x.sign.CPU-x.walked.CPU < int64(leastCPU) && x.sign.Written == x.walked.Written {
		pause = restPause
	}
	return x.tried + int64(pause)
}

// A Survey says of how many workloads the directories are found.
type Survey struct {
	Found, All int
	Reasons    map[string]int // why others are not
}

// Survey looks for the directories of all tracked workloads. Unlike the other methods it may take long.
func (t *Table) Survey() Survey {
	s := Survey{Reasons: map[string]int{}}
	l := &locator{cfg: t.cfg, host: t.host, enter: func(string) error { return nil }}
	t.mu.Lock()
	all := append([]*target(nil), t.bySlot...)
	t.mu.Unlock()
	for _, x := range all {
		if x == nil {
			continue
		}
		s.All++
		f, err := l.locate(&x.Target, "")
		if err == nil {
			s.Found++
			err = f.close()
		}
		if err != nil {
			s.Reasons[reasonOf(err)]++
		}
	}
	return s
}

// reasonOf returns the error without what differs from one workload to the next.
func reasonOf(err error) string {
	for _, known := range []error{errNoProcess, errNoOverlay, errRelative, errNotLayer, errNotYet, errTooLong, errUsers, errOtherDisk, errReplaced, errDeep, errMoved, errClaimed, errHung, fault.ErrDenied, fault.ErrNotFound} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

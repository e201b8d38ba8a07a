package energy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/sleep"
)

// HostName is what the meter is called that shows what the host gives this
// virtual machine.
const HostName = "host"

// DefaultShares is where a virtual machine has what its host gives it, if it is
// shared with it as for Scaphandre.
const DefaultShares = "/var/scaphandre"

// DefaultVSock says whether a virtual machine asks its host by AF_VSOCK: it does,
// unless METE_HOST_VSOCK says no.
func DefaultVSock(getenv func(string) string) bool {
	on, err := strconv.ParseBool(getenv("METE_HOST_VSOCK"))
	return on || err != nil
}

const (
	// staleFor is for how long a share may stand still at least, in ns. A host
	// with longer ticks is given three of them.
	staleFor = 5 * int64(time.Second)
	// plainStaleFor is the same of a counter alone, as Scaphandre's, which is
	// written every few seconds, and stands still while nothing runs.
	plainStaleFor = 60 * int64(time.Second)
	// hostEvery is how old a share is at most when the next one comes, in ns;
	// plainEvery that of a counter alone.
	hostEvery, plainEvery = int64(time.Second), 10 * int64(time.Second)
	// plainErrorPPM is by how much a counter alone may be off, which it does not
	// say: an assumption, four times RAPL's, as it is divided by a rule too.
	plainErrorPPM = 200_000
)

// shares is the meter that shows what the host gives this virtual machine. Two
// ways lead to it, a connection and a directory: the connection is the one that
// is used while shares come by it.
type shares struct {
	host  *hostfs.FS
	index int
	uuid  string // of this machine; "" is not known
	dir   string // "" is none
	dial  func(context.Context) (net.Conn, error)
	acks  chan share.Ack

	mu    sync.Mutex
	ways  [2]way
	plain bool // there was a counter alone when it was opened
	seen  bool // there ever was a share, or a counter
}

// The ways by which shares come, the better one first.
const (
	byStream = iota
	byFile
)

// A way is what came by one of them.
type way struct {
	name  string
	share *power.Share // nil where there is none, or a counter alone
	value int64        // uJ
	has   bool         // there is a value
	moved int64        // when it last did, ns of CLOCK_BOOTTIME
	pace  int64        // ns between two shares, by the host's clock
	err   string       // why nothing comes; "" where it does
	bad   bool         // something came, and was refused
}

// openShares makes the meter where this machine can have one: it is a virtual
// machine, or there is something in the directory already.
func openShares(h *hostfs.FS, cfg Config) *shares {
	s := &shares{host: h, dir: cfg.Shares, acks: make(chan share.Ack, 1)}
	switch {
	case cfg.Dial != nil:
		s.dial = cfg.Dial
	case cfg.VSock:
		s.dial = func(ctx context.Context) (net.Conn, error) {
			return vsock.Dial(ctx, vsock.Addr{CID: vsock.Host, Port: share.Port}, dialLimit)
		}
	}
	if s.dial == nil && s.dir == "" || !h.Live() || cfg.Dial == nil && !virtual(h, s.dir) {
		return nil
	}
	s.ways[byStream] = way{name: "vsock", err: "nobody was asked yet"}
	s.ways[byFile] = way{name: s.dir, err: "not read yet"}
	if s.dial == nil {
		s.ways[byStream].err = ""
	}
	if s.dir == "" {
		s.ways[byFile].err = ""
	}
	if b, err := h.ReadFile("/sys/class/dmi/id/product_uuid"); err == nil {
		s.uuid = known(strings.ToLower(strings.TrimSpace(string(b))))
	}
	return s
}

// known is a machine's UUID, or "" where it is none or one that says that there
// is none.
func known(uuid string) string {
	if !share.IsUUID(uuid) || strings.Trim(uuid, "0-") == "" || strings.Trim(uuid, "f-") == "" {
		return ""
	}
	return uuid
}

// virtual reports whether this is a virtual machine, as far as can be seen.
func virtual(h *hostfs.FS, dir string) bool {
	if dir != "" {
		if _, err := os.Stat(h.Path(path.Join(dir, share.Zone))); err == nil {
			return true
		}
	}
	if vsock.Inside() {
		return true
	}
	b, err := h.ReadFile("/proc/cpuinfo") // x86's bit 31 of CPUID 1 ECX
	return err == nil && bytes.Contains(b, []byte(" hypervisor"))
}

// meter is the meter, as far as it is known when it is opened.
func (s *shares) meter() power.Meter {
	m := power.Meter{Name: HostName, Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: hostEvery, Step: 1}
	if s.plain {
		m.Every, m.ErrorPPM = plainEvery, plainErrorPPM
	}
	return m
}

// firstFor is how long opening waits for a first share.
const firstFor = 300 * time.Millisecond

// first looks for a share once by each way, for a moment.
func (s *shares) first() {
	ctx, stop := context.WithTimeout(context.Background(), firstFor)
	defer stop()
	found := make(chan struct{}, 2)
	look := func(f func()) {
		go func() {
			f()
			found <- struct{}{}
		}()
	}
	tries := 0
	if s.dir != "" {
		tries++
		look(func() { s.look() })
	}
	if s.dial != nil {
		tries++
		look(func() {
			if err := s.follow(ctx, 1); err != nil {
				s.failed(byStream, err)
			}
		})
	}
	for range tries {
		select {
		case <-found:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.ways[byFile]
	s.plain = w.has && w.share == nil && !s.ways[byStream].has
}

// now is CLOCK_BOOTTIME, ns; 0 where it cannot be read, which it always can.
func (s *shares) now() int64 {
	t, err := s.host.Boottime()
	if err != nil {
		return 0
	}
	return t
}

// take takes a share that came by a way. The error says why it is refused.
func (s *shares) take(by int, m *share.Message) error {
	if theirs := known(m.Guest); theirs != "" && s.uuid != "" && theirs != s.uuid {
		return fmt.Errorf("the share is of the virtual machine %s, and this one is %s: %w", theirs, s.uuid, fault.ErrConflict)
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.ways[by]
	w.err, w.bad = "", false
	if w.share != nil && w.share.Epoch == m.Epoch && m.N <= w.share.N {
		return nil // it is known, or came late
	}
	moved, pace := now, w.pace
	if l := s.latest(m.Epoch); l != nil && m.N <= l.share.N {
		moved, pace = l.moved, l.pace // it came by the other way before
	} else if l != nil {
		pace = m.At - l.share.At
	}
	share := m.Share
	w.share, w.value, w.has, w.moved, w.pace = &share, share.Energy(), true, moved, pace
	s.seen = true
	return nil
}

// latest returns the way by which the newest share of an epoch came; nil where none
// did.
func (s *shares) latest(epoch string) (l *way) {
	for i := range s.ways {
		if w := &s.ways[i]; w.share != nil && w.share.Epoch == epoch && (l == nil || w.share.N > l.share.N) {
			l = w
		}
	}
	return l
}

// takePlain takes what a counter alone shows, in uJ.
func (s *shares) takePlain(uJ int64) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.ways[byFile]
	if w.share != nil && w.fresh(now) {
		return // the share is not there for a moment
	}
	w.err, w.bad = "", false
	if w.has && w.share == nil && w.value == uJ {
		return
	}
	w.share, w.value, w.has, w.moved, w.pace = nil, uJ, true, now, 0
	s.seen = true
}

// A refusal is an error about something that came.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// failed keeps why nothing comes by a way.
func (s *shares) failed(by int, err error) {
	text := err.Error()
	_, bad := errors.AsType[refusal](err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ways[by].err, s.ways[by].bad = text, bad
}

// fresh reports whether what came by a way can still be gone by.
func (w *way) fresh(now int64) bool {
	limit := max(staleFor, min(3*w.pace, 3*int64(time.Minute)))
	if w.share == nil {
		limit = plainStaleFor
	}
	return w.has && now-w.moved <= limit
}

// read gives what came last. It never waits.
func (s *shares) read(now int64) power.Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ways {
		if w := &s.ways[i]; w.fresh(now) {
			return power.Reading{Meter: s.index, At: now, Value: w.value, Share: w.share}
		}
	}
	return power.Reading{Meter: s.index, At: now, Err: s.why()}
}

// why says why there is no share. The text changes only when the reason does.
func (s *shares) why() string {
	text := ""
	for i := range s.ways {
		w := &s.ways[i]
		why := w.err
		if w.has && why == "" {
			why = "the share does not move any more"
		}
		switch {
		case w.name == "" || why == "":
		case text == "":
			text = w.name + ": " + why
		default:
			text += "; " + w.name + ": " + why
		}
	}
	if text == "" {
		return "nothing came yet"
	}
	return text
}

// Ack tells the host what this machine booked up to one of its shares. It never
// waits: where the host does not hear, only the latest one is kept.
func (s *Source) Ack(a share.Ack) {
	if s.shares == nil || s.shares.dial == nil {
		return
	}
	for {
		select {
		case s.shares.acks <- a:
			return
		default:
		}
		select {
		case <-s.shares.acks:
		default:
		}
	}
}

// lookEvery is the time between two looks into the directory, and lookAgain
// where nothing is in it.
const lookEvery, lookAgain = 500 * time.Millisecond, 10 * time.Second

// run looks for shares until ctx ends.
func (s *shares) run(ctx context.Context) {
	var ways sync.WaitGroup
	if s.dial != nil {
		ways.Go(func() { s.stay(ctx) })
	}
	if s.dir != "" {
		ways.Go(func() {
			for {
				wait := lookEvery
				if !s.streaming() && !s.look() {
					wait = lookAgain
				}
				if sleep.For(ctx, wait) != nil {
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ways.Wait()
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(time.Second): // a file system that hangs holds nobody up
	}
}

// streaming reports whether shares come by connection.
func (s *shares) streaming() bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ways[byStream].fresh(now)
}

// look reads the directory once, and reports whether something is there.
func (s *shares) look() bool {
	err := s.readDir()
	if err != nil {
		s.failed(byFile, err)
	}
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

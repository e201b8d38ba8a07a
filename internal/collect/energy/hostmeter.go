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

// hostMeter is the meter that shows what the host gives this virtual machine. Two
// channels lead to it, a connection and a directory: the connection is the one that
// is used while shares come by it.
type hostMeter struct {
	host  *hostfs.FS
	index int
	uuid  string // of this machine; "" is not known
	dir   string // "" is none
	dial  func(context.Context) (net.Conn, error)
	acks  chan share.Ack

	mu       sync.Mutex
	channels [2]channel
	plain    bool // there was a counter alone when it was opened
	seen     bool // there ever was a share, or a counter
}

// The channels by which shares come, the better one first.
const (
	viaStream = iota
	viaFile
)

// A channel is what came by one of them.
type channel struct {
	name      string
	share     *power.Share // nil where there is none, or a counter alone
	value     int64        // uJ
	has       bool         // there is a value
	changedAt int64        // when it last did, ns of CLOCK_BOOTTIME
	interval  int64        // ns between two shares, by the host's clock
	err       string       // why nothing comes; "" where it does
	refused   bool         // something came, and was refused
}

// openHostMeter makes the meter where this machine can have one: it is a virtual
// machine, or there is something in the directory already.
func openHostMeter(h *hostfs.FS, cfg Config) *hostMeter {
	hm := &hostMeter{host: h, dir: cfg.Shares, acks: make(chan share.Ack, 1)}
	switch {
	case cfg.Dial != nil:
		hm.dial = cfg.Dial
	case cfg.VSock:
		hm.dial = func(ctx context.Context) (net.Conn, error) {
			return vsock.Dial(ctx, vsock.Addr{CID: vsock.Host, Port: share.Port}, dialLimit)
		}
	}
	if hm.dial == nil && hm.dir == "" || !h.Live() || cfg.Dial == nil && !isVirtualMachine(h, hm.dir) {
		return nil
	}
	hm.channels[viaStream] = channel{name: "vsock", err: "nobody was asked yet"}
	hm.channels[viaFile] = channel{name: hm.dir, err: "not read yet"}
	if hm.dial == nil {
		hm.channels[viaStream].err = ""
	}
	if hm.dir == "" {
		hm.channels[viaFile].err = ""
	}
	if b, err := h.ReadFile("/sys/class/dmi/id/product_uuid"); err == nil {
		hm.uuid = validUUID(strings.ToLower(strings.TrimSpace(string(b))))
	}
	return hm
}

// validUUID is a machine's UUID, or "" where it is none or one that says that there
// is none.
func validUUID(uuid string) string {
	if !share.IsUUID(uuid) || strings.Trim(uuid, "0-") == "" || strings.Trim(uuid, "f-") == "" {
		return ""
	}
	return uuid
}

// isVirtualMachine reports whether this is a virtual machine, as far as can be seen.
func isVirtualMachine(h *hostfs.FS, dir string) bool {
	if dir != "" {
		if _, err := os.Stat(h.Path(path.Join(dir, share.Zone))); err == nil {
			return true
		}
	}
	if vsock.IsGuest() {
		return true
	}
	b, err := h.ReadFile("/proc/cpuinfo") // x86's bit 31 of CPUID 1 ECX
	return err == nil && bytes.Contains(b, []byte(" hypervisor"))
}

// meter is the meter, as far as it is known when it is opened.
func (hm *hostMeter) meter() power.Meter {
	m := power.Meter{Name: HostName, Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: hostEvery, Step: 1}
	if hm.plain {
		m.Every, m.ErrorPPM = plainEvery, plainErrorPPM
	}
	return m
}

// firstTimeout is how long opening waits for a first share.
const firstTimeout = 300 * time.Millisecond

// readFirst looks for a share once by each channel, for a moment.
func (hm *hostMeter) readFirst() {
	ctx, stop := context.WithTimeout(context.Background(), firstTimeout)
	defer stop()
	found := make(chan struct{}, 2)
	look := func(f func()) {
		go func() {
			f()
			found <- struct{}{}
		}()
	}
	tries := 0
	if hm.dir != "" {
		tries++
		look(func() { hm.pollDir() })
	}
	if hm.dial != nil {
		tries++
		look(func() {
			if err := hm.receive(ctx, 1); err != nil {
				hm.setError(viaStream, err)
			}
		})
	}
	for range tries {
		select {
		case <-found:
		case <-ctx.Done():
		}
	}
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[viaFile]
	hm.plain = c.has && c.share == nil && !hm.channels[viaStream].has
}

// now is CLOCK_BOOTTIME, ns; 0 where it cannot be read, which it always can.
func (hm *hostMeter) now() int64 {
	t, err := hm.host.Boottime()
	if err != nil {
		return 0
	}
	return t
}

// takeShare takes a share that came by a channel. The error says why it is refused.
func (hm *hostMeter) takeShare(by int, m *share.Message) error {
	if theirs := validUUID(m.Guest); theirs != "" && hm.uuid != "" && theirs != hm.uuid {
		return fmt.Errorf("the share is of the virtual machine %s, and this one is %s: %w", theirs, hm.uuid, fault.ErrConflict)
	}
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[by]
	c.err, c.refused = "", false
	if c.share != nil && c.share.Epoch == m.Epoch && m.N <= c.share.N {
		return nil // it is known, or came late
	}
	moved, pace := now, c.interval
	if l := hm.latest(m.Epoch); l != nil && m.N <= l.share.N {
		moved, pace = l.changedAt, l.interval // it came by the other channel before
	} else if l != nil {
		pace = m.At - l.share.At
	}
	share := m.Share
	c.share, c.value, c.has, c.changedAt, c.interval = &share, share.Energy(), true, moved, pace
	hm.seen = true
	return nil
}

// latest returns the channel by which the newest share of an epoch came; nil where none
// did.
func (hm *hostMeter) latest(epoch string) (l *channel) {
	for i := range hm.channels {
		if c := &hm.channels[i]; c.share != nil && c.share.Epoch == epoch && (l == nil || c.share.N > l.share.N) {
			l = c
		}
	}
	return l
}

// takePlain takes what a counter alone shows, in uJ.
func (hm *hostMeter) takePlain(uJ int64) {
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[viaFile]
	if c.share != nil && c.isFresh(now) {
		return // the share is not there for a moment
	}
	c.err, c.refused = "", false
	if c.has && c.share == nil && c.value == uJ {
		return
	}
	c.share, c.value, c.has, c.changedAt, c.interval = nil, uJ, true, now, 0
	hm.seen = true
}

// A refusal is an error about something that came.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// setError keeps why nothing comes by a channel.
func (hm *hostMeter) setError(by int, err error) {
	text := err.Error()
	_, bad := errors.AsType[refusal](err)
	hm.mu.Lock()
	defer hm.mu.Unlock()
	hm.channels[by].err, hm.channels[by].refused = text, bad
}

// isFresh reports whether what came by a channel can still be gone by.
func (c *channel) isFresh(now int64) bool {
	limit := max(staleFor, min(3*c.interval, 3*int64(time.Minute)))
	if c.share == nil {
		limit = plainStaleFor
	}
	return c.has && now-c.changedAt <= limit
}

// read gives what came last. It never waits.
func (hm *hostMeter) read(now int64) power.Reading {
	hm.mu.Lock()
	defer hm.mu.Unlock()
	for i := range hm.channels {
		if c := &hm.channels[i]; c.isFresh(now) {
			return power.Reading{Meter: hm.index, At: now, Value: c.value, Share: c.share}
		}
	}
	return power.Reading{Meter: hm.index, At: now, Err: hm.problem()}
}

// problem says why there is no share. The text changes only when the reason does.
func (hm *hostMeter) problem() string {
	text := ""
	for i := range hm.channels {
		c := &hm.channels[i]
		why := c.err
		if c.has && why == "" {
			why = "the share does not move any more"
		}
		switch {
		case c.name == "" || why == "":
		case text == "":
			text = c.name + ": " + why
		default:
			text += "; " + c.name + ": " + why
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
	if s.hostMeter == nil || s.hostMeter.dial == nil {
		return
	}
	for {
		select {
		case s.hostMeter.acks <- a:
			return
		default:
		}
		select {
		case <-s.hostMeter.acks:
		default:
		}
	}
}

// pollEvery is the time between two looks into the directory, and pollEmptyEvery
// where nothing is in it.
const pollEvery, pollEmptyEvery = 500 * time.Millisecond, 10 * time.Second

// run looks for shares until ctx ends.
func (hm *hostMeter) run(ctx context.Context) {
	var ways sync.WaitGroup
	if hm.dial != nil {
		ways.Go(func() { hm.keepConnected(ctx) })
	}
	if hm.dir != "" {
		ways.Go(func() {
			for {
				wait := pollEvery
				if !hm.isStreaming() && !hm.pollDir() {
					wait = pollEmptyEvery
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

// isStreaming reports whether shares come by connection.
func (hm *hostMeter) isStreaming() bool {
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	return hm.channels[viaStream].isFresh(now)
}

// pollDir reads the directory once, and reports whether something is there.
func (hm *hostMeter) pollDir() bool {
	err := hm.readDir()
	if err != nil {
		hm.setError(viaFile, err)
	}
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

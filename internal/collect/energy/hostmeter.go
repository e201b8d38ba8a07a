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

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/sleep"
)

// HostName is the name of the meter with the host's share for this virtual machine.
const HostName = "host"

// DefaultShares is the directory of the host's share, at the same path as for Scaphandre.
const DefaultShares = "/var/scaphandre"

// DefaultVSock reports whether a virtual machine connects to its host by AF_VSOCK: unless
// METE_HOST_VSOCK is false.
func DefaultVSock(getenv func(string) string) bool {
	on, err := strconv.ParseBool(getenv("METE_HOST_VSOCK"))
	return on || err != nil
}

const (
	// staleFor is the minimum age at which an unchanged share is stale, in ns. A host with
	// longer ticks gets three of them.
	staleFor = 5 * int64(time.Second)
	// plainStaleFor is the same for a plain counter such as Scaphandre's, which is written
	// every few seconds and does not move while nothing runs.
	plainStaleFor = 60 * int64(time.Second)
	// hostEvery is the maximum age of a share when the next one arrives, in ns; plainEvery
	// that of a plain counter.
	hostEvery, plainEvery = int64(time.Second), 10 * int64(time.Second)
	// plainErrorPPM is the assumed error of a plain counter, which states none: four times
	// RAPL's, since the share is apportioned too.
	plainErrorPPM = 200_000
)

// hostMeter is the meter with the host's share for this virtual machine. Shares arrive by
// two channels, a connection and a directory; the connection is preferred while shares
// arrive by it.
type hostMeter struct {
	host  *hostfs.FS
	clock func() (int64, error) // CLOCK_BOOTTIME of host, ns
	index int
	uuid  string // of this machine; "" if unknown
	dir   string // "" if none
	dial  func(context.Context) (net.Conn, error)
	acks  chan energyshare.Ack

	mu       sync.Mutex
	channels [channelCount]channel
	plain    bool // only a plain counter existed when it was opened
	seen     bool // a share or a counter has ever been received
}

// The channels by which shares arrive, by preference.
const (
	viaStream = iota
	viaFile
	channelCount // how many there are
)

// A channel is the state of one channel.
type channel struct {
	name      string
	share     *power.Share // nil without a share, or with a plain counter
	value     int64        // uJ
	has       bool         // value is valid
	changedAt int64        // when the share last changed, ns of CLOCK_BOOTTIME
	interval  int64        // ns between two shares, by the host's clock
	err       string       // why nothing arrives; "" if shares arrive
	refused   bool         // the latest message was refused
}

// openHostMeter returns the meter if this is a virtual machine or the directory has entries
// already, else nil. isGuest is true if this machine has an address for AF_VSOCK.
func openHostMeter(h *hostfs.FS, cfg Config, isGuest bool) *hostMeter {
	hm := &hostMeter{host: h, clock: h.Boottime, dir: cfg.Shares, acks: make(chan energyshare.Ack, 1)}
	switch {
	case cfg.Dial != nil:
		hm.dial = cfg.Dial
	case cfg.VSock:
		hm.dial = func(ctx context.Context) (net.Conn, error) { return dialHost(ctx, vsock.Dial) }
	}
	if hm.dial == nil && hm.dir == "" || !h.Live() || cfg.Dial == nil && !isGuest && !isVirtualMachine(h, hm.dir) {
		return nil
	}
	hm.channels[viaStream] = channel{name: "vsock", err: "not connected yet"}
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

// dialHost connects to the agent of the host, at a port at which no ordinary user of the host can
// listen. It does not use a process that answers at a port that is open to all.
func dialHost(ctx context.Context, dial func(context.Context, vsock.Addr, time.Duration) (net.Conn, error)) (net.Conn, error) {
	c, err := dial(ctx, vsock.Addr{CID: vsock.Host, Port: energyshare.Port}, dialLimit)
	if !errors.Is(err, fault.ErrUnavailable) {
		return c, err
	}
	open, openErr := dial(ctx, vsock.Addr{CID: vsock.Host, Port: energyshare.OpenPort}, dialLimit)
	if openErr != nil {
		return nil, err
	}
	_ = open.Close() // nothing is read
	return nil, refusal{fmt.Errorf("the host answers at port %d, where any of its users can listen, and not at port %d: update mete-agent on the host, or give it CAP_NET_BIND_SERVICE: %w",
		energyshare.OpenPort, energyshare.Port, err)}
}

// validUUID returns a machine's UUID, "" if it is malformed or a placeholder.
func validUUID(uuid string) string {
	if !energyshare.IsUUID(uuid) || strings.Trim(uuid, "0-") == "" || strings.Trim(uuid, "f-") == "" {
		return ""
	}
	return uuid
}

// isVirtualMachine reports whether this seems to be a virtual machine.
func isVirtualMachine(h *hostfs.FS, dir string) bool {
	if dir != "" {
		if _, err := os.Stat(h.Path(path.Join(dir, energyshare.Zone))); err == nil {
			return true
		}
	}
	b, err := h.ReadFile("/proc/cpuinfo") // x86's bit 31 of CPUID 1 ECX
	return err == nil && bytes.Contains(b, []byte(" hypervisor"))
}

// meter describes the meter as known when it is opened.
func (hm *hostMeter) meter() power.Meter {
	m := power.Meter{Name: HostName, Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: hostEvery, Step: 1}
	if hm.plain {
		m.Every, m.ErrorPPM = plainEvery, plainErrorPPM
	}
	return m
}

// firstTimeout is how long opening waits for the first share.
const firstTimeout = 300 * time.Millisecond

// readFirst waits briefly for a first share by each channel.
func (hm *hostMeter) readFirst() {
	ctx, stop := context.WithTimeout(context.Background(), firstTimeout)
	var ways sync.WaitGroup
	if hm.dir != "" {
		ways.Go(func() { hm.pollDir() })
	}
	if hm.dial != nil {
		ways.Go(func() {
			if err := hm.receive(ctx, true); err != nil {
				hm.setError(viaStream, err)
			}
		})
	}
	go func() {
		defer stop()
		ways.Wait()
	}()
	<-ctx.Done()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[viaFile]
	hm.plain = c.has && c.share == nil && !hm.channels[viaStream].has
}

// now returns CLOCK_BOOTTIME in ns.
func (hm *hostMeter) now() int64 {
	t, _ := hm.clock() // cannot fail on a running machine
	return t
}

// takeShare stores a share received by a channel. The error is the reason to refuse it.
func (hm *hostMeter) takeShare(by int, m *energyshare.Message) error {
	if guest := validUUID(m.Guest); guest != "" && hm.uuid != "" && guest != hm.uuid {
		return fmt.Errorf("the share is for the virtual machine %s, but this one is %s: %w", guest, hm.uuid, fault.ErrConflict)
	}
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[by]
	c.err, c.refused = "", false
	if c.share != nil && c.share.Epoch == m.Epoch && m.N <= c.share.N {
		return nil // duplicate or late
	}
	moved, pace := now, c.interval
	if l := hm.latest(m.Epoch); l != nil && m.N <= l.share.N {
		moved, pace = l.changedAt, l.interval // the other channel delivered it first
	} else if l != nil {
		pace = m.At - l.share.At
	}
	share := m.Share
	c.share, c.value, c.has, c.changedAt, c.interval = &share, share.Energy(), true, moved, pace
	hm.seen = true
	return nil
}

// latest returns the channel with the newest share of an epoch; nil if there is none.
func (hm *hostMeter) latest(epoch string) (l *channel) {
	for i := range hm.channels {
		if c := &hm.channels[i]; c.share != nil && c.share.Epoch == epoch && (l == nil || c.share.N > l.share.N) {
			l = c
		}
	}
	return l
}

// takePlain stores the value of a plain counter, in uJ.
func (hm *hostMeter) takePlain(uJ int64) {
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	c := &hm.channels[viaFile]
	if c.share != nil && c.isFresh(now) {
		return // the share file is missing only for a moment
	}
	c.err, c.refused = "", false
	if c.has && c.share == nil && c.value == uJ {
		return
	}
	c.share, c.value, c.has, c.changedAt = nil, uJ, true, now
	hm.seen = true
}

// A refusal is an error about a received message.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// setError stores why nothing arrives by a channel.
func (hm *hostMeter) setError(by int, err error) {
	text := err.Error()
	_, bad := errors.AsType[refusal](err)
	hm.mu.Lock()
	defer hm.mu.Unlock()
	hm.channels[by].err, hm.channels[by].refused = text, bad
}

// isFresh reports whether the latest value of a channel is still usable.
func (c *channel) isFresh(now int64) bool {
	limit := max(staleFor, min(3*c.interval, 3*int64(time.Minute)))
	if c.share == nil {
		limit = plainStaleFor
	}
	return c.has && now-c.changedAt <= limit
}

// read returns the latest value. It never blocks.
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

// problem returns why there is no share. The text changes only with the reason.
func (hm *hostMeter) problem() string {
	text := ""
	for i := range hm.channels {
		c := &hm.channels[i]
		why := c.err
		if c.has && why == "" {
			why = "the share does not change any more"
		}
		switch {
		case why == "":
		case text == "":
			text = c.name + ": " + why
		default:
			text += "; " + c.name + ": " + why
		}
	}
	if text == "" {
		return "no share received yet"
	}
	return text
}

// Ack reports to the host what this machine booked up to one of its shares. It never
// blocks: while the host does not receive, only the latest one is kept.
func (s *Source) Ack(a energyshare.Ack) {
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

// pollEvery is the interval for reading the directory, pollEmptyEvery while it is empty.
const pollEvery, pollEmptyEvery = 500 * time.Millisecond, 10 * time.Second

// run receives shares until ctx ends.
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
	case <-time.After(time.Second): // do not wait longer for a hanging file system
	}
}

// isStreaming reports whether shares arrive by connection.
func (hm *hostMeter) isStreaming() bool {
	now := hm.now()
	hm.mu.Lock()
	defer hm.mu.Unlock()
	return hm.channels[viaStream].isFresh(now)
}

// pollDir reads the directory once, and reports whether it has a share or a counter.
func (hm *hostMeter) pollDir() bool {
	err := hm.readDir()
	if err != nil {
		hm.setError(viaFile, err)
	}
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

package energy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
)

const someUUID = "6f1c3f0e-7a52-4c1b-9d2e-0a1b2c3d4e5f"

// message returns the n-th share of a machine.
func message(uuid string, n int64) energyshare.Message {
	return energyshare.Message{Name: "web", VCPUs: 2, Share: power.Share{Guest: uuid, Epoch: "EPOCH", N: n * 1000, At: n * 1e9, Active: n * 3e6, Idle: n * 1e6, Error: n, Modelled: n}}
}

// put replaces a file, as a host does.
func put(t *testing.T, text string, parts ...string) {
	t.Helper()
	name := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(name+".new", []byte(text), 0o644), os.Rename(name+".new", name)); err != nil {
		t.Fatal(err)
	}
}

func putShare(t *testing.T, dir string, m energyshare.Message) {
	t.Helper()
	put(t, fmt.Sprintln(m.Energy()), dir, energyshare.ZoneEnergy)
	put(t, string(energyshare.Append(nil, &m)), dir, energyshare.File)
}

// openHost opens this machine with only the host's share; nothing follows the shares unless the
// test does. It reads as of the arrival of the latest share, so that none is stale.
func openHost(t *testing.T, cfg Config) (*Source, func() power.Reading) {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Powercap = t.TempDir() // no meters of this machine
	put(t, "", cfg.Powercap, "nothing")
	s, err := Open(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), h.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, func() power.Reading {
		t.Helper()
		rs, err := s.Read(nil)
		if err != nil || len(rs) != len(s.Meters()) {
			t.Fatalf("%+v, %v", rs, err)
		}
		for _, r := range rs {
			if s.Meters()[r.Meter].From == power.Host {
				return s.hostMeter.read(lastMoved(s))
			}
		}
		return power.Reading{Err: "no meter"}
	}
}

// lastMoved returns when the latest share arrived.
func lastMoved(s *Source) int64 {
	s.hostMeter.mu.Lock()
	defer s.hostMeter.mu.Unlock()
	return max(s.hostMeter.channels[viaStream].changedAt, s.hostMeter.channels[viaFile].changedAt)
}

// gets reports whether a reading is the n-th share.
func gets(r power.Reading, uuid string, n int64) bool {
	want := message(uuid, n).Share
	return r.Err == "" && r.Share != nil && *r.Share == want && r.Value == want.Energy()
}

// Shares in files are found at opening, followed, and not used once they are stale.
func TestHostFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putShare(t, dir, message(someUUID, 1))
	s, read := openHost(t, Config{Shares: dir})
	ms := s.Meters()
	want := power.Meter{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: 1e9, Step: 1}
	if m := ms[len(ms)-1]; m != want {
		t.Errorf("meter %+v, want %+v", m, want)
	}
	var first power.Reading
	testkit.Eventually(t, "the share that exists", func() bool { first = read(); return gets(first, someUUID, 1) })
	putShare(t, dir, message(someUUID, 2))
	s.hostMeter.pollDir()
	if r := read(); !gets(r, someUUID, 2) {
		t.Errorf("the next share: %+v", r)
	}
	if !gets(first, someUUID, 1) {
		t.Error("an earlier reading has changed")
	}
	if st := s.hostMeter.status(lastMoved(s)); !st.Seen || st.From != dir || st.Guest != someUUID || st.N != 2000 || st.Err != "" || st.Age != 0 {
		t.Errorf("%+v", st)
	}
	putShare(t, dir, message(someUUID, 1)) // late
	s.hostMeter.pollDir()
	if r := read(); !gets(r, someUUID, 2) {
		t.Errorf("an older share: %+v", r)
	}
	putShare(t, dir, message(someUUID, 3))
	s.hostMeter.pollDir()
	if r := read(); !gets(r, someUUID, 3) {
		t.Errorf("a newer share: %+v", r)
	}
	if r := s.hostMeter.read(lastMoved(s) + staleFor); !gets(r, someUUID, 3) {
		t.Errorf("%d ns later: %+v", staleFor, r)
	}
	if r := s.hostMeter.read(lastMoved(s) + staleFor + 1); !strings.HasSuffix(r.Err, "does not change any more") || r.Share != nil {
		t.Errorf("%+v", r)
	}
	putShare(t, dir, message(someUUID, 4))
	s.hostMeter.pollDir()
	if r := read(); !gets(r, someUUID, 4) {
		t.Errorf("the shares continue: %+v", r)
	}
}

// A malformed file is refused with a reason, and later shares are used.
func TestHostRefuses(t *testing.T) {
	dir := t.TempDir()
	putShare(t, dir, message(someUUID, 1))
	s := &Source{hostMeter: newHostMeter(t, dir, nil)}
	poll := func(what string) HostShare {
		t.Helper()
		if !s.hostMeter.pollDir() {
			t.Errorf("%s: the directory has nothing", what)
		}
		st, ok := s.HostShare()
		if !ok {
			t.Fatal("no host share")
		}
		return st
	}
	n := int64(1)
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"no JSON", func() { put(t, "hello", dir, energyshare.File) }, "invalid"},
		{"a later version", func() { put(t, `{"version":9}`, dir, energyshare.File) }, "version 9"},
		{"negative energy", func() {
			m := message(someUUID, 9)
			put(t, strings.Replace(string(energyshare.Append(nil, &m)), `"27000000"`, `"-1"`, 1), dir, energyshare.File)
		}, "active_uj"},
		{"a pipe", func() {
			if err := errors.Join(os.Remove(filepath.Join(dir, energyshare.File)), unix.Mkfifo(filepath.Join(dir, energyshare.File), 0o644)); err != nil {
				t.Fatal(err)
			}
		}, "not a file"},
		{"not a number", func() {
			put(t, "12x", dir, energyshare.ZoneEnergy)
			if err := os.Remove(filepath.Join(dir, energyshare.File)); err != nil {
				t.Fatal(err)
			}
		}, "not a number"},
	} {
		c.do()
		if st := poll(c.what); !strings.HasPrefix(st.Refused, dir+": ") || !strings.Contains(st.Refused, c.want) {
			t.Errorf("%s: %+v, want one refused as %s", c.what, st, c.want)
		}
		n++
		putShare(t, dir, message(someUUID, n))
		if st := poll(c.what); st.Refused != "" || st.N != n*1000 {
			t.Errorf("%s, then a valid share: %+v", c.what, st)
		}
	}
}

// The share of another machine is refused on every channel.
func TestHostOtherMachine(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	for _, c := range []struct {
		mine, theirs string
		ok           bool
	}{
		{someUUID, someUUID, true}, {someUUID, "0" + someUUID[1:], false}, {"", someUUID, true}, {someUUID, "", true},
		{someUUID, "00000000-0000-0000-0000-000000000000", true},
	} {
		hm := &hostMeter{host: h, clock: h.Boottime, uuid: c.mine}
		m := message(c.theirs, 1)
		for by := range hm.channels {
			err := hm.decode(by, energyshare.Append(nil, &m))
			if (err == nil) != c.ok || !c.ok && (!errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), someUUID)) {
				t.Errorf("%q takes the share of %q: %v", c.mine, c.theirs, err)
			}
			if r := hm.read(hm.now()); !c.ok && (r.Err == "" || r.Share != nil) {
				t.Errorf("%+v", r)
			}
		}
	}
}

// A plain counter, as Scaphandre's, works as a counter.
func TestHostPlain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, "12345\n", dir, energyshare.ZoneEnergy)
	s, read := openHost(t, Config{Shares: dir})
	testkit.Eventually(t, "the counter", func() bool { r := read(); return r.Err == "" && r.Value == 12345 && r.Share == nil })
	put(t, "99999\n", dir, energyshare.ZoneEnergy)
	s.hostMeter.pollDir()
	if r := read(); r.Value != 99999 {
		t.Errorf("the counter changes: %+v", r)
	}
	putShare(t, dir, message("", 5)) // mete was installed on the host meanwhile
	s.hostMeter.pollDir()
	if r := read(); !gets(r, "", 5) {
		t.Errorf("then a share: %+v", r)
	}
}

// A plain counter states neither its error nor when the next value comes: both are assumed.
func TestHostMeter(t *testing.T) {
	t.Parallel()
	want := power.Meter{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: 1e9, Step: 1}
	if m := (&hostMeter{}).meter(); m != want {
		t.Errorf("of shares: %+v, want %+v", m, want)
	}
	want.Every, want.ErrorPPM = 10e9, 200_000
	if m := (&hostMeter{plain: true}).meter(); m != want {
		t.Errorf("of a plain counter: %+v, want %+v", m, want)
	}
}

// A missing directory is retried and blocks nothing.
func TestHostDirectoryAppears(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	s, read := openHost(t, Config{Shares: dir, Dial: func(context.Context) (net.Conn, error) { return nil, fault.ErrUnavailable }})
	testkit.Eventually(t, "why there is no share", func() bool {
		r := read()
		return strings.Contains(r.Err, "no such file") && strings.Contains(r.Err, "unavailable")
	})
	if st, ok := s.HostShare(); !ok || st.Seen || st.Refused != "" || st.Err == "" {
		t.Errorf("%+v", st)
	}
	putShare(t, dir, message(someUUID, 1))
	s.hostMeter.pollDir()
	if r := read(); !gets(r, someUUID, 1) {
		t.Errorf("once it exists: %+v", r)
	}
}

// Without channels there is no host meter.
func TestHostNone(t *testing.T) {
	s, read := openHost(t, Config{})
	if r := read(); r.Err != "no meter" {
		t.Errorf("%+v", r)
	}
	if _, ok := s.HostShare(); ok {
		t.Error("a host share without a channel")
	}
	s.Ack(energyshare.Ack{Epoch: "E"}) // does nothing
}

// A guest takes shares only from a port of its host at which no ordinary user can listen. If another
// one answers it says what to do.
func TestHostPorts(t *testing.T) {
	for _, c := range []struct {
		name   string
		listen []uint32
		taken  bool
		err    string
	}{
		{"an agent", []uint32{979}, true, ""},
		{"an agent that serves older guests too", []uint32{979, 9799}, true, ""},
		{"an older agent, or any user", []uint32{9799}, false, "update mete-agent on the host"},
		{"none", nil, false, "unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := hostfs.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Close() }()
			dial := func(_ context.Context, to vsock.Addr, _ time.Duration) (net.Conn, error) {
				if to.CID != vsock.Host || !slices.Contains(c.listen, to.Port) {
					return nil, fault.ErrUnavailable
				}
				ours, theirs := net.Pipe()
				go func() {
					m := message(someUUID, 7)
					_, _ = ours.Write(energyshare.Append(nil, &m)) // fails if the meter does not read
				}()
				return theirs, nil
			}
			hm := &hostMeter{host: h, clock: h.Boottime, acks: make(chan energyshare.Ack), dial: func(ctx context.Context) (net.Conn, error) { return dialHost(ctx, dial) }}
			hm.channels[viaStream].name = "vsock"
			if err := hm.receive(t.Context(), true); err != nil {
				hm.setError(viaStream, err)
			}
			st := hm.status(hm.now())
			if st.Seen != c.taken || !strings.Contains(st.Err, c.err) || (st.Refused != "") != (len(c.listen) > 0 && !c.taken) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A streamHost is a host that accepts connections: it counts them, and records each line
// that it receives.
type streamHost struct {
	*net.UnixListener
	t    *testing.T
	mu   sync.Mutex
	conn net.Conn
	open atomic.Int32
	acks chan energyshare.Ack
}

func newStreamHost(t *testing.T) *streamHost {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	h := &streamHost{UnixListener: l, t: t, acks: make(chan energyshare.Ack, 2000)} // more than a test sends
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.conn = c
			h.mu.Unlock()
			h.open.Add(1)
			go func() {
				for sc := bufio.NewScanner(c); sc.Scan(); {
					if a, err := energyshare.DecodeAck(sc.Bytes()); err == nil {
						h.acks <- a
					}
				}
				h.open.Add(-1)
			}()
		}
	}()
	return h
}

func (h *streamHost) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", h.Addr().String())
}

func (h *streamHost) say(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		_, _ = h.conn.Write([]byte(text)) // the meter reconnects by itself
	}
}

func (h *streamHost) give(n int64) {
	m := message(someUUID, n)
	h.say(string(energyshare.Append(nil, &m)))
}

// Shares arrive by connection, acknowledgments go back, and a broken connection is
// reestablished. Without a connection files are used.
func TestHostStream(t *testing.T) {
	t.Parallel()
	h, dir := newStreamHost(t), t.TempDir()
	putShare(t, dir, message(someUUID, 1))
	s, read := openHost(t, Config{Shares: dir, Dial: h.dial})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, "the share in files while the connection is silent", func() bool { return gets(read(), someUUID, 1) })
	testkit.Eventually(t, "the meter connects", func() bool { return h.open.Load() == 1 })
	n := int64(10)
	testkit.Eventually(t, "a share arrives", func() bool { h.give(n); return gets(read(), someUUID, n) })
	putShare(t, dir, message(someUUID, 5))
	s.hostMeter.pollDir()
	if st := s.hostMeter.status(lastMoved(s)); st.From != "vsock" || st.N != n*1000 {
		t.Errorf("%+v, want the %d-th by connection", st, n)
	}
	testkit.Eventually(t, "the acknowledgment", func() bool { // one is lost with the connection that brought the first share
		s.Ack(energyshare.Ack{Epoch: "EPOCH", N: n * 1000, Energy: n * 4e6})
		select {
		case a := <-h.acks:
			if a.N != n*1000 || a.Energy != n*4e6 {
				t.Errorf("%+v", a)
			}
			return true
		default:
			return false
		}
	})
	for i := range int64(1000) { // never blocks, and the last one arrives
		s.Ack(energyshare.Ack{Epoch: "EPOCH", N: i})
	}
	testkit.Eventually(t, "the last acknowledgment", func() bool {
		for {
			select {
			case a := <-h.acks:
				if a.N == 999 {
					return true
				}
			default:
				return false
			}
		}
	})
	h.mu.Lock()
	was := h.conn
	_ = was.Close()
	h.mu.Unlock()
	if r := read(); !gets(r, someUUID, n) {
		t.Errorf("the earlier share is gone: %+v", r)
	}
	testkit.Eventually(t, "the meter reconnects", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.conn != was })
	n++
	testkit.Eventually(t, "shares arrive again", func() bool { h.give(n); return gets(read(), someUUID, n) })
}

package energy

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// at sets the clock of a meter.
func (hm *hostMeter) at(d time.Duration) {
	hm.clock = func() (int64, error) { return (time.Hour + d).Nanoseconds(), nil }
}

func (hm *hostMeter) take(t *testing.T, by int, epoch string, n int64, sent time.Duration) {
	t.Helper()
	m := message(someUUID, 1)
	m.Epoch, m.N, m.At = epoch, n, sent.Nanoseconds()
	if err := hm.takeShare(by, &m); err != nil {
		t.Fatal(err)
	}
}

// A share is usable for 5 s or three ticks of its host, at most three minutes; a plain counter for a
// minute after its last change.
func TestFresh(t *testing.T) {
	some := &power.Share{}
	for _, c := range []struct {
		name     string
		share    *power.Share
		interval time.Duration
		until    time.Duration
	}{
		{"the first share", some, 0, 5 * time.Second},
		{"each second", some, time.Second, 5 * time.Second},
		{"each two seconds", some, 2 * time.Second, 6 * time.Second},
		{"each minute", some, time.Minute, 3 * time.Minute},
		{"each hour", some, time.Hour, 3 * time.Minute},
		{"backwards", some, -time.Hour, 5 * time.Second},
		{"plain", nil, 0, time.Minute},
		{"plain after shares", nil, time.Hour, time.Minute},
	} {
		ch := channel{has: true, share: c.share, changedAt: 1e9, interval: c.interval.Nanoseconds()}
		last := 1e9 + c.until.Nanoseconds()
		if !ch.isFresh(1e9) || !ch.isFresh(last) || ch.isFresh(last+1) {
			t.Errorf("%s: not usable for %v", c.name, c.until)
		}
		if ch.has = false; ch.isFresh(1e9) {
			t.Errorf("%s: usable without a value", c.name)
		}
	}
}

// A share that arrives again does not count as new, and one of another epoch does.
func TestTakeShare(t *testing.T) {
	hm := newHostMeter(t, "/shares", nil)
	since := func(d time.Duration) time.Duration {
		return d - time.Duration(hm.channels[viaStream].changedAt-time.Hour.Nanoseconds())
	}
	hm.at(0)
	hm.take(t, viaStream, "A", 5, 100*time.Second)
	hm.at(time.Second)
	hm.setError(viaStream, refusal{fault.ErrInvalid})
	for n := range int64(6) {
		hm.take(t, viaStream, "A", n, 101*time.Second)
	}
	if c := hm.channels[viaStream]; since(time.Second) != time.Second || c.share.N != 5 || c.err != "" || c.refused {
		t.Errorf("after the same share: %+v", c)
	}
	hm.at(4 * time.Second)
	hm.take(t, viaStream, "A", 6, 103*time.Second)
	if c := hm.channels[viaStream]; since(4*time.Second) != 0 || c.interval != 3e9 || c.share.N != 6 {
		t.Errorf("after the next share: %+v", c)
	}
	hm.at(6 * time.Second)
	hm.take(t, viaStream, "B", 1, 0)
	if c := hm.channels[viaStream]; since(6*time.Second) != 0 || c.interval != 3e9 || c.share.N != 1 || c.share.Epoch != "B" {
		t.Errorf("after a share of another epoch: %+v", c)
	}
	hm.at(7 * time.Second)
	hm.take(t, viaFile, "B", 2, 10*time.Second) // newest, but only by the other channel
	hm.at(8 * time.Second)
	hm.take(t, viaStream, "B", 3, 14*time.Second)
	if c := hm.channels[viaStream]; c.interval != 4e9 || since(8*time.Second) != 0 {
		t.Errorf("after a share that follows one of the other channel: %+v", c)
	}
	if l := hm.latest("A"); l != nil {
		t.Errorf("latest of a past epoch: %+v", l)
	}
	if hm.take(t, viaFile, "B", 4, 15*time.Second); hm.latest("B") != &hm.channels[viaFile] {
		t.Errorf("latest: %+v", hm.latest("B"))
	}
}

// A plain counter counts only once no share arrives in files, and is stale if it does not change.
func TestTakePlain(t *testing.T) {
	hm := newHostMeter(t, "/shares", nil)
	c := &hm.channels[viaFile]
	hm.at(0)
	hm.take(t, viaFile, "A", 1, 0)
	hm.at(5 * time.Second)
	hm.takePlain(7)
	if c.share == nil {
		t.Error("a counter replaces a share that is usable")
	}
	hm.at(5*time.Second + 1)
	hm.seen = false
	hm.takePlain(7)
	if c.share != nil || c.value != 7 || !hm.seen || c.changedAt != hm.now() {
		t.Errorf("after a stale share: %+v", c)
	}
	hm.setError(viaFile, refusal{fault.ErrInvalid})
	hm.at(9 * time.Second)
	if hm.takePlain(7); c.changedAt == hm.now() || c.err != "" || c.refused {
		t.Errorf("the same value: %+v", c)
	}
	hm.at(10 * time.Second)
	if hm.takePlain(8); c.changedAt != hm.now() || c.value != 8 {
		t.Errorf("another value: %+v", c)
	}
	hm = newHostMeter(t, "/shares", nil)
	if hm.takePlain(0); !hm.channels[viaFile].has {
		t.Error("a counter at 0 is not taken")
	}
}

// The status tells where shares come from, and for each channel why none arrive.
func TestHostStatus(t *testing.T) {
	hm := newHostMeter(t, "/shares", nil)
	hm.uuid = "0" + someUUID[1:]
	hm.at(0)
	check := func(when string, after time.Duration, want HostShare) {
		t.Helper()
		now := (time.Hour + after).Nanoseconds()
		if st := hm.status(now); st != want {
			t.Errorf("%s: %+v, want %+v", when, st, want)
		}
		if r := hm.read(now); r.Err != want.Err || (r.Share == nil) != (want.Epoch == "") || r.Share != nil && r.Share.N != want.N || r.At != now {
			t.Errorf("%s: reading %+v, want %+v", when, r, want)
		}
	}
	check("at first", 0, HostShare{Guest: hm.uuid, Err: "no share received yet"})
	hm.setError(viaFile, errors.New("no file"))
	check("one channel", 0, HostShare{Guest: hm.uuid, Err: "/shares: no file"})
	hm.setError(viaStream, refusal{errors.New("bad")})
	check("both channels", 0, HostShare{Guest: hm.uuid, Err: "vsock: bad; /shares: no file", Refused: "vsock: bad"})
	hm.setError(viaFile, refusal{errors.New("also bad")})
	check("both refused", 0, HostShare{Guest: hm.uuid, Err: "vsock: bad; /shares: also bad", Refused: "vsock: bad"})
	hm.uuid = ""
	hm.takePlain(3)
	check("a counter", 2*time.Second, HostShare{Seen: true, From: "/shares", Age: 2 * time.Second, Refused: "vsock: bad"})
	hm.take(t, viaStream, "A", 1, 0)
	check("a share", 3*time.Second, HostShare{Seen: true, From: "vsock", Guest: someUUID, Epoch: "A", N: 1, Age: 3 * time.Second})
	hm.setError(viaStream, errors.New("closed"))
	check("a counter after a share", 10*time.Second, HostShare{Seen: true, From: "/shares", Age: 10 * time.Second})
	check("neither", time.Hour, HostShare{Seen: true, Err: "vsock: closed; /shares: the share does not change any more"})
}

// Files are a message in the directory or in its zone, else a counter.
func TestReadDir(t *testing.T) {
	zone := filepath.Join(energyshare.Zone, energyshare.File)
	padded := strings.TrimSuffix(line(3), "\n") + strings.Repeat(" ", energyshare.MaxLine-len(line(3))+1)
	for _, c := range []struct {
		name  string
		files map[string]string
		n     int64
		value int64
		kind  error
	}{
		{"a message", map[string]string{energyshare.File: line(1), zone: line(2), energyshare.ZoneEnergy: "9"}, 1, 4e6, nil},
		{"in the zone", map[string]string{zone: line(2), energyshare.ZoneEnergy: "9"}, 2, 8e6, nil},
		{"the longest message", map[string]string{energyshare.File: padded}, 3, 12e6, nil},
		{"a longer one", map[string]string{energyshare.File: padded + " "}, 0, 0, fault.ErrInvalid},
		{"a malformed message before a good one", map[string]string{energyshare.File: "{}", zone: line(2)}, 0, 0, fault.ErrInvalid},
		{"a directory before a good one", map[string]string{energyshare.File + "/x": "", zone: line(2)}, 0, 0, fault.ErrInvalid},
		{"0", map[string]string{energyshare.ZoneEnergy: "0\n"}, 0, 0, nil},
		{"1", map[string]string{energyshare.ZoneEnergy: "1"}, 0, 1, nil},
		{"-1", map[string]string{energyshare.ZoneEnergy: "-1\n"}, 0, 0, fault.ErrInvalid},
		{"2^62", map[string]string{energyshare.ZoneEnergy: "4611686018427387904"}, 0, 1 << 62, nil},
		{"more", map[string]string{energyshare.ZoneEnergy: "4611686018427387905"}, 0, 0, fault.ErrInvalid},
		{"a word", map[string]string{energyshare.ZoneEnergy: "x"}, 0, 0, fault.ErrInvalid},
		{"nothing", nil, 0, 0, fs.ErrNotExist},
	} {
		t.Run(c.name, func(t *testing.T) {
			hm := newHostMeter(t, t.TempDir(), nil)
			for name, text := range c.files {
				put(t, text, hm.dir, name)
			}
			if err := hm.readDir(); !errors.Is(err, c.kind) {
				t.Errorf("%v, want %v", err, c.kind)
			}
			st, ch := hm.status(hm.now()), hm.channels[viaFile]
			if st.N != c.n*1000 || ch.value != c.value || ch.has != (c.kind == nil) {
				t.Errorf("%+v, %+v", st, ch)
			}
			if isEmpty := c.name == "nothing"; hm.pollDir() == isEmpty {
				t.Errorf("the directory has something: %v", !isEmpty)
			}
			if st := hm.status(hm.now()); (st.Err != "") != (c.kind != nil) || (st.Refused != "") != (c.kind == fault.ErrInvalid) {
				t.Errorf("%+v", st)
			}
			if open := opened(t, hm.dir); len(open) > 0 {
				t.Errorf("still open: %q", open)
			}
		})
	}
}

// A file whose reading fails gives that error.
func TestReadFails(t *testing.T) {
	hm := newHostMeter(t, t.TempDir(), nil)
	if err := os.Symlink("/proc/self/mem", filepath.Join(hm.dir, energyshare.File)); err != nil { // nothing is at address 0
		t.Fatal(err)
	}
	if err := hm.readDir(); !errors.Is(err, unix.EIO) || !strings.HasPrefix(err.Error(), hm.dir) {
		t.Errorf("%v, want an input error", err)
	}
}

// opened returns the open files of this process below a directory.
func opened(t *testing.T, dir string) (paths []string) {
	t.Helper()
	const fds = "/proc/self/fd"
	es, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if to, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && strings.HasPrefix(to, dir+"/") {
			paths = append(paths, to)
		}
	}
	return paths
}

// bare returns a running machine that does not look like a virtual one, with some files of /sys.
func bare(t *testing.T, sys map[string]string) *hostfs.FS {
	t.Helper()
	root := t.TempDir()
	for name, text := range sys {
		put(t, text, root, name)
	}
	if err := os.Symlink("/proc/sys", filepath.Join(root, "proc")); err != nil { // without cpuinfo
		t.Fatal(err)
	}
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	if !h.Live() {
		t.Fatal("not a running machine")
	}
	return h
}

// A host meter is opened in a virtual machine with a channel.
func TestOpenHostMeter(t *testing.T) {
	const uuid = "/sys/class/dmi/id/product_uuid"
	dial := func(context.Context) (net.Conn, error) { return nil, fault.ErrUnavailable }
	machine, captured := bare(t, map[string]string{uuid: strings.ToUpper(someUUID) + "\n"}), files(t, map[string]string{"/proc/cpuinfo": "flags : hypervisor\n"})
	vm := bare(t, map[string]string{uuid: "00000000-0000-0000-0000-000000000000", "/d/intel-rapl:0/energy_uj": "1"})
	for _, c := range []struct {
		name   string
		host   *hostfs.FS
		cfg    Config
		guest  bool
		want   bool
		stream bool
		text   string // why there is no share
		uuid   string
	}{
		{name: "no channel", host: machine, guest: true},
		{name: "no virtual machine", host: machine, cfg: Config{Shares: "/d", VSock: true}},
		{name: "a directory", host: machine, cfg: Config{Shares: "/d"}, guest: true, want: true, text: "/d: not read yet", uuid: someUUID},
		{name: "vsock", host: machine, cfg: Config{VSock: true}, guest: true, want: true, stream: true, text: "vsock: not connected yet", uuid: someUUID},
		{name: "both", host: machine, cfg: Config{Shares: "/d", VSock: true}, guest: true, want: true, stream: true, text: "vsock: not connected yet; /d: not read yet", uuid: someUUID},
		{name: "a dialer", host: machine, cfg: Config{Dial: dial}, want: true, stream: true, text: "vsock: not connected yet", uuid: someUUID},
		{name: "a directory of a virtual machine", host: vm, cfg: Config{Shares: "/d"}, want: true, text: "/d: not read yet"},
		{name: "captured", host: captured, cfg: Config{Shares: "/d", Dial: dial}, guest: true},
	} {
		hm := openHostMeter(c.host, c.cfg, c.guest)
		if (hm != nil) != c.want {
			t.Errorf("%s: %+v", c.name, hm)
		}
		if hm == nil || !c.want {
			continue
		}
		if (hm.dial != nil) != c.stream || hm.dir != c.cfg.Shares || hm.uuid != c.uuid || hm.problem() != c.text {
			t.Errorf("%s: %+v, %s", c.name, hm, hm.problem())
		}
		before, err := c.host.Boottime()
		now := hm.now()
		after, err2 := c.host.Boottime()
		if err := errors.Join(err, err2); err != nil || now < before || now > after {
			t.Errorf("%s: clock %d between %d and %d, %v", c.name, now, before, after, err)
		}
		s := &Source{hostMeter: hm}
		s.Ack(energyshare.Ack{N: 1})
		s.Ack(energyshare.Ack{N: 2})
		if c.stream && (len(hm.acks) != 1 || (<-hm.acks).N != 2) || len(hm.acks) > 0 {
			t.Errorf("%s: kept other acknowledgments than the latest one for the host", c.name)
		}
		if c.cfg.Dial != nil {
			if _, err := hm.dial(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
				t.Errorf("%s: the dialer is not used: %v", c.name, err)
			}
		}
	}
}

func TestVirtualMachine(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		dir   string
		want  bool
	}{
		{"no files", nil, "/d", false},
		{"bare", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu vmx\n"}, "/d", false},
		{"x86", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu hypervisor lahf_lm\n"}, "/d", true},
		{"x86 without a directory", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu hypervisor lahf_lm\n"}, "", true},
		{"a share", map[string]string{"/d/intel-rapl:0/energy_uj": "1"}, "/d", true},
		{"no directory", map[string]string{"/intel-rapl:0/energy_uj": "1"}, "", false},
	} {
		if got := isVirtualMachine(files(t, c.files), c.dir); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestValidUUID(t *testing.T) {
	for uuid, valid := range map[string]bool{
		someUUID: true, "": false, someUUID + "0": false, strings.ToUpper(someUUID): false,
		"00000000-0000-0000-0000-000000000000": false, "ffffffff-ffff-ffff-ffff-ffffffffffff": false,
		"00000000-0000-0000-0000-000000000001": true, "ffffffff-ffff-ffff-ffff-fffffffffff0": true,
	} {
		if got := validUUID(uuid); (got != "") != valid || valid && got != uuid {
			t.Errorf("%s: %q", uuid, got)
		}
	}
}

func TestDefaultVSock(t *testing.T) {
	for value, want := range map[string]bool{"": true, "true": true, "1": true, "perhaps": true, "false": false, "0": false} {
		if got := DefaultVSock(func(name string) string { return map[string]string{"METE_HOST_VSOCK": value}[name] }); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

// Both attempts to connect to the host have a limit of two seconds, and the second connection is closed.
func TestDialHost(t *testing.T) {
	ours, theirs := net.Pipe()
	var limits []time.Duration
	_, err := dialHost(t.Context(), func(_ context.Context, to vsock.Addr, limit time.Duration) (net.Conn, error) {
		limits = append(limits, limit)
		if to.Port == energyshare.Port {
			return nil, fault.ErrUnavailable
		}
		return theirs, nil
	})
	if len(limits) != 2 || limits[0] != 2*time.Second || limits[1] != 2*time.Second || !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("limits %v, %v", limits, err)
	}
	if _, ok := errors.AsType[refusal](err); !ok {
		t.Errorf("not refused: %v", err)
	}
	if _, err := ours.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was used")
	}
	_, err = dialHost(t.Context(), func(context.Context, vsock.Addr, time.Duration) (net.Conn, error) { return nil, fault.ErrDenied })
	if !errors.Is(err, fault.ErrDenied) {
		t.Errorf("%v, want denied", err)
	}
}

package energy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// captured returns a machine of testdata.
func captured(t *testing.T, name string) *hostfs.FS {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return hosttest.Unpack(t, b)
}

// live returns this machine.
func live(t *testing.T) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// counters returns a directory with some counters, all at 5.
func counters(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		put(t, fmt.Sprintf("package-%d\n", i), dir, fmt.Sprintf("intel-rapl:%d", i), "name")
		put(t, "5\n", dir, fmt.Sprintf("intel-rapl:%d", i), "energy_uj")
	}
	return dir
}

func closeAll(t *testing.T, s *Source) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

var errClock = errors.New("no clock")

// failing returns a clock that fails once, after n times.
func failing(n int) func() (int64, error) {
	return func() (int64, error) {
		if n--; n == -1 {
			return 0, errClock
		}
		return 1e9, nil
	}
}

// If the clock fails, so does each call that needs it. A failed Open leaves no file open.
func TestClockFails(t *testing.T) {
	h := captured(t, "intel-2s") // five counters and a sensor
	var s *Source
	for n := 0; ; n++ {
		var err error
		if s, err = open(h, Config{}, failing(n)); err == nil {
			if n != 3 {
				t.Errorf("opened with %d times", n)
			}
			break
		}
		if !errors.Is(err, errClock) || s != nil {
			t.Fatalf("with %d times: %v, %v", n, s, err)
		}
		if left := opened(t, h.Path("/")); len(left) > 0 {
			t.Errorf("with %d times: still open: %q", n, left)
		}
	}
	for n := range 6 {
		s.clock = failing(n)
		if rs, err := s.Read(nil); !errors.Is(err, errClock) || len(rs) != max(0, n-1) {
			t.Errorf("Read with %d times: %d readings, %v", n, len(rs), err)
		}
	}
	s.clock = failing(6)
	if rs, err := s.Read(nil); err != nil || len(rs) != 6 {
		t.Errorf("Read: %+v, %v", rs, err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		for n := range 2 {
			s.clock = failing(2 + n)
			if err := s.Run(t.Context()); !errors.Is(err, errClock) {
				t.Errorf("Run: %v", err)
			}
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("sampled once for %v, want each second", took/4)
		}
	})
	closeAll(t, s)
}

// A reading is timed at the middle of the call that reads, one of a sensor at the end of all.
func TestTimes(t *testing.T) {
	s, err := Open(captured(t, "intel-2s"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, s)
	script := func(times ...int64) {
		s.clock = func() (int64, error) {
			now := times[0]
			times = times[1:]
			return now, nil
		}
	}
	script(100, 140)
	if err := s.sampleSensors(); err != nil {
		t.Fatal(err)
	}
	if s.latest[0].At != 120 {
		t.Errorf("sampled at %d, want 120", s.latest[0].At)
	}
	script(1000, 1010, 1030, 1070, 1150, 1310)
	rs, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, r := range rs {
		got = append(got, r.At)
	}
	if want := []int64{1005, 1020, 1050, 1110, 1230, 1310}; !slices.Equal(got, want) {
		t.Errorf("read at %v, want %v", got, want)
	}
	// An old error remains the reason.
	s.latest[0] = power.Reading{Meter: 5, Err: "broken"}
	script(1e12, 1e12, 1e12, 1e12, 1e12, 1e12)
	if rs, err = s.Read(nil); err != nil || rs[5].Err != "broken" {
		t.Errorf("an old error: %+v, %v", rs[5], err)
	}
}

// bmcOf returns a controller with an answer.
func bmcOf(b ...byte) *controller { return &controller{answer: b} }

// A management controller is kept if it answers or may answer later; without a controller there is no
// error.
func TestOpenDCMI(t *testing.T) {
	for _, c := range []struct {
		name    string
		bmc     *controller
		openErr error
		kept    bool
		kind    error
		hint    bool
	}{
		{"answers", bmcOf(answer()...), nil, true, nil, false},
		{"busy", bmcOf(0xc0), nil, true, fault.ErrUnavailable, false},
		{"no such command", bmcOf(0xc1), nil, false, fault.ErrUnsupported, false},
		{"not allowed", bmcOf(0xd4), nil, false, fault.ErrDenied, true},
		{"none", nil, fault.ErrNotFound, false, nil, false},
		{"not permitted", nil, fault.ErrDenied, false, fault.ErrDenied, true},
		{"no descriptors", nil, fault.ErrUnavailable, false, fault.ErrUnavailable, false},
	} {
		s := &Source{host: live(t), meters: make([]power.Meter, 2)}
		var path string
		s.openDCMI("/dev/ipmi0", func(p string) (bmc, error) { path = p; return c.bmc, c.openErr })
		if path != "/dev/ipmi0" || (s.dcmi != nil) != c.kept || len(s.meters) != 2+map[bool]int{true: 1}[c.kept] || c.kept && (s.dcmi.index != 2 || s.meters[2].From != power.IPMI) {
			t.Errorf("%s: %q, kept %v, %+v", c.name, path, s.dcmi, s.meters)
		}
		errs := s.OpenErrors()
		if (len(errs) > 0) != (c.kind != nil) || c.kind != nil && (!errors.Is(errs[0], c.kind) || !strings.HasPrefix(errs[0].Error(), "ipmi/dcmi: ") || strings.Contains(fault.Hint(errs[0]), "/dev/ipmi0") != c.hint) {
			t.Errorf("%s: errors %v, want %v", c.name, errs, c.kind)
		}
		closeAll(t, s)
		closeAll(t, s)
		if c.bmc != nil && c.bmc.closed != 1 {
			t.Errorf("%s: closed %d times", c.name, c.bmc.closed)
		}
	}
}

// A controller is sampled after the sensors.
func TestSampleDCMI(t *testing.T) {
	s, err := Open(captured(t, "acpi"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := bmcOf(answer()...)
	s.openDCMI("/dev/ipmi0", func(string) (bmc, error) { return b, nil })
	s.latest = make([]power.Reading, 2)
	if err := s.sampleSensors(); err != nil || s.latest[0].Value != 212e6 || s.latest[1].Value != 214e6 || s.latest[1].Meter != 1 || s.latest[1].At != 5e9 {
		t.Errorf("%+v, %v", s.latest, err)
	}
	s.clock = failing(2)
	if err := s.sampleSensors(); !errors.Is(err, errClock) {
		t.Errorf("without a clock: %v", err)
	}
	b.err = errors.New("broken")
	if err := s.Close(); !errors.Is(err, b.err) {
		t.Errorf("Close = %v, want the error of the controller", err)
	}
}

// Only a running machine has a controller.
func TestConfiguredIPMI(t *testing.T) {
	for _, c := range []struct {
		name string
		host *hostfs.FS
		ipmi string
		errs int
	}{
		{"no controller", live(t), "/dev/null", 1}, {"none", live(t), "/dev/no-such-ipmi", 0}, {"not configured", live(t), "", 0},
		{"captured", files(t, map[string]string{"/dev/ipmi0": ""}), "/dev/ipmi0", 0},
	} {
		s, err := Open(c.host, Config{IPMI: c.ipmi, Powercap: counters(t, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if errs := s.OpenErrors(); len(errs) != c.errs || c.errs > 0 && !strings.Contains(errs[0].Error(), c.ipmi) {
			t.Errorf("%s: %v", c.name, errs)
		}
		closeAll(t, s)
	}
}

// Each reading names its meter: counters, then the host.
func TestReadingsOfHost(t *testing.T) {
	dir := counters(t, 2)
	s, err := Open(live(t), Config{Powercap: dir, Dial: func(context.Context) (net.Conn, error) { return nil, fault.ErrUnavailable }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, s)
	var rs []power.Reading
	testkit.Eventually(t, "the error of the host's meter", func() bool {
		rs, err = s.Read([]power.Reading{{Value: 77}})
		if err != nil || len(rs) != 4 || rs[0].Value != 77 {
			t.Fatalf("%+v, %v", rs, err)
		}
		return rs[3].Err == "vsock: unavailable"
	})
	for i, r := range rs[1:] {
		if r.Meter != i {
			t.Errorf("reading %d is of meter %d", i, r.Meter)
		}
	}
	if ms := s.Meters(); ms[2].Name != HostName {
		t.Errorf("%+v", ms)
	}
	if n := len(opened(t, dir)); n != 2 {
		t.Errorf("%d open files, want 2", n)
	}
	closeAll(t, s)
	if left := opened(t, dir); len(left) > 0 {
		t.Errorf("open after Close: %q", left)
	}
}

// The interval and the error of a configured directory replace those of RAPL.
func TestConfigured(t *testing.T) {
	for _, c := range []struct {
		cfg        Config
		every, ppm int64
	}{
		{Config{}, 1e6, 50_000}, {Config{Every: time.Second}, 1e9, 50_000}, {Config{ErrorPPM: 1}, 1e6, 1},
	} {
		c.cfg.Powercap = counters(t, 1)
		s, err := Open(live(t), c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if m := s.Meters()[0]; m.Every != c.every || m.ErrorPPM != c.ppm || m.From != power.Powercap || s.Simulated() != "" {
			t.Errorf("%+v: %+v", c.cfg, m)
		}
		closeAll(t, s)
		put(t, "a trial\n", c.cfg.Powercap, power.SimulatedFile)
		if s, err = Open(live(t), c.cfg); err != nil {
			t.Fatal(err)
		}
		if m := s.Meters()[0]; m.Every != c.every || m.From != power.Model || s.Simulated() != "a trial" {
			t.Errorf("%+v: %+v", c.cfg, m)
		}
		closeAll(t, s)
	}
}

// A directory that cannot be read is an error, unlike one that is missing.
func TestUnreadable(t *testing.T) {
	for _, dir := range []string{powercapDir, hwmonDir} {
		h := files(t, nil)
		p := h.Path(dir)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Symlink(filepath.Base(p), p)); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(h, Config{}); err == nil || s != nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	_, err := Open(live(t), Config{Powercap: filepath.Join(t.TempDir(), "none")})
	if !errors.Is(err, fault.ErrNotFound) || !strings.HasPrefix(err.Error(), "powercap: ") || !strings.Contains(fault.Hint(err), "intel-rapl:0/energy_uj") {
		t.Errorf("a missing directory: %v, %q", err, fault.Hint(err))
	}
	if _, err := Open(live(t), Config{NVML: "often"}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an invalid mode: %v", err)
	}
}

// In a container the zones are listed, but their files are those of a mount below /host.
func TestMounted(t *testing.T) {
	h := files(t, map[string]string{
		powercapDir + "/intel-rapl/enabled":         "1\n",
		mountedDir + "/intel-rapl:0/name":           "package-0\n",
		mountedDir + "/intel-rapl:0/energy_uj":      "5\n",
		mountedDir + "/intel-rapl:0:0/name":         "dram\n",
		mountedDir + "/intel-rapl:0:0/energy_uj":    "3\n",
		mountedDir + "/intel-rapl:0/nothing/unused": "",
	})
	if err := os.Symlink("../../devices/virtual/powercap/intel-rapl/intel-rapl:0", h.Path(powercapDir+"/intel-rapl:0")); err != nil {
		t.Fatal(err)
	}
	s, err := Open(h, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, s)
	var names []string
	for _, m := range s.Meters() {
		if m.From == power.Powercap {
			names = append(names, m.Name)
		}
	}
	if fmt.Sprint(names) != "[rapl/package-0 rapl/package-0/dram]" || len(s.OpenErrors()) > 0 {
		t.Errorf("meters %q, errors %v", names, s.OpenErrors())
	}
}

// A file that cannot be opened or vanishes is opened again at most every ten seconds.
func TestReopen(t *testing.T) {
	const sec = int64(time.Second)
	h := files(t, map[string]string{"/d/other": ""})
	m := &fileMeter{host: h, path: "/d/f", index: 3}
	expect := func(at int64, want int64) {
		t.Helper()
		r := m.read(at)
		if r.Meter != 3 || (r.Err == "") != (want > 0) || r.Value != max(want, 0) {
			t.Errorf("after %v: %+v, want %d", time.Duration(at), r, want)
		}
	}
	if m.open(5 * sec) {
		t.Fatal("opened a missing file")
	}
	put(t, "7\n", h.Path("/d/f"))
	expect(15*sec-1, -1)
	expect(15*sec, 7)
	if err := os.Remove(h.Path("/d/f")); err != nil {
		t.Fatal(err)
	}
	expect(40*sec, -1)
	if left := opened(t, h.Path("/d")); len(left) > 0 {
		t.Errorf("still open: %q", left)
	}
	expect(50*sec, -1)
	put(t, "8\n", h.Path("/d/f"))
	expect(50*sec+1, -1)
	expect(60*sec-1, -1)
	expect(60*sec, 8)
	if m.reason != nil {
		t.Errorf("an error remains: %v", m.reason)
	}
	if err := os.Remove(h.Path("/d/f")); err != nil {
		t.Fatal(err)
	}
	expect(100*sec, -1)
	put(t, "9\n", h.Path("/d/f"))
	expect(110*sec-1, -1)
	expect(110*sec, 9)
	m.closeFile()
}

// A file has a number of at most 2^62; another kind of file is not left open.
func TestFileValues(t *testing.T) {
	for text, want := range map[string]int64{"0\n": 0, "4611686018427387904\n": 1 << 62, "4611686018427387905\n": -1, "max": -1, "\n": -1} {
		h := files(t, map[string]string{"/d/f": text})
		m := &fileMeter{host: h, path: "/d/f"}
		if !m.open(0) {
			t.Fatal(m.reason)
		}
		if r := m.read(0); (r.Err != "") != (want < 0) || r.Value != max(want, 0) {
			t.Errorf("%q: %+v", text, r)
		}
		if v, err := m.readValue(); v != max(want, 0) || (err != nil) != (want < 0) {
			t.Errorf("%q: value %d, %v", text, v, err)
		}
		if isErr := m.reason != nil; isErr != (want < 0) {
			t.Errorf("%q: %v", text, m.reason)
		}
		m.closeFile()
	}
	dir := t.TempDir()
	folder := &fileMeter{host: live(t), path: dir}
	if !folder.open(0) {
		t.Fatal(folder.reason)
	}
	if v, err := folder.readValue(); v != 0 || !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: value %d, %v", v, err)
	}
	folder.closeFile()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &fileMeter{host: live(t), path: filepath.Join(dir, "pipe")}
	if m.open(0) || m.file != nil || len(opened(t, dir)) > 0 {
		t.Errorf("a pipe was opened: %q", opened(t, dir))
	}
	// A replaced file is closed.
	p := filepath.Join(dir, "f")
	put(t, "7\n", p)
	m = &fileMeter{host: live(t), path: p}
	m.open(0)
	for i := range int64(3) {
		put(t, fmt.Sprintln(i), p)
		if r := m.read(0); r.Value != i || len(opened(t, dir)) != 1 {
			t.Errorf("%+v, open: %q, want %d and one file", r, opened(t, dir), i)
		}
	}
	m.closeFile()
}

// No file of a search is left open, and of a long line only the beginning is read.
func TestSearch(t *testing.T) {
	h := captured(t, "intel-2s")
	zones, refused, err := powercap(h, powercapDir)
	sensors, err2 := hwmon(h)
	if err := errors.Join(err, err2); err != nil || len(zones) != 5 || len(refused) > 0 || len(sensors) != 1 {
		t.Errorf("%d zones, refused %v, %d sensors, %v", len(zones), refused, len(sensors), err)
	}
	if left := opened(t, h.Path("/")); len(left) > 0 {
		t.Errorf("still open: %q", left)
	}
	h = files(t, map[string]string{"/d/long": strings.Repeat("x", 1<<16), "/d/dir/f": ""})
	if got, err := readWord(h, "/d/long"); err != nil || len(got) < 100 || len(got) > 1000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := readWord(h, "/d/dir"); !errors.Is(err, unix.EISDIR) || !strings.HasPrefix(err.Error(), "/d/dir: ") {
		t.Errorf("a directory: %v", err)
	}
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/x/atomicfile"
)

// zoneWatts is the power of each zone of a tree, dramWatts that of its memory.
const zoneWatts, dramWatts = 10, 5

// A zone is a counter of a tree with constant power.
type zone struct {
	dir   string
	watts int64
	// tell sends a command to the writer and waits until it is done.
	tell func(what string) error
}

// Commands for the writer of zones: stop writing one, continue, and restart its counter.
const still, goOn, restart = "still", "go-on", "restart"

// file returns the path of the counter.
func (z *zone) file() string { return filepath.Join(z.dir, "energy_uj") }

// stop stops writing and puts something in place of the file.
func (z *zone) stop(leave func(file string) error) error {
	if err := z.tell(still); err != nil {
		return err
	}
	return leave(z.file())
}

// plant creates the files beside the counter.
func (z *zone) plant() error {
	if err := os.MkdirAll(z.dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(z.dir, "name"), []byte("package-"+strings.TrimPrefix(filepath.Base(z.dir), "intel-rapl:")+"\n"), 0o644)
}

// mend removes the replacement and continues the counter.
func (z *zone) mend() error {
	if err := z.plant(); err != nil {
		return err
	}
	if err := os.Remove(z.file()); err != nil && !os.IsNotExist(err) {
		return err
	}
	return z.tell(goOn)
}

// writeZones writes the counters of zones, each given as DIR=WATTS, every 10 ms until in ends. Each
// line of in is the number of a zone and a command, which it executes and answers. It is a separate
// process with high priority: a delayed write looks like a stuck counter.
func writeZones(list []string, in io.Reader, out io.Writer) error {
	if err := powersim.RaisePriority(); err != nil {
		return err
	}
	type counter struct {
		file  string
		watts int64
		since time.Time // start of the count
		still bool
	}
	start := time.Now().Add(-time.Minute)
	var counters []counter
	for _, text := range list {
		dir, watts, _ := strings.Cut(text, "=")
		w, err := strconv.ParseInt(watts, 10, 64)
		if err != nil {
			return err
		}
		counters = append(counters, counter{file: (&zone{dir: dir}).file(), watts: w, since: start})
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	tick, answer := time.NewTicker(10*time.Millisecond), "ready"
	for {
		for _, c := range counters {
			if c.still {
				continue
			}
			if err := atomicfile.Overwrite(c.file, fmt.Appendf(nil, "%d\n", int64(time.Since(c.since).Seconds()*1e6)*c.watts)); err != nil {
				return err
			}
		}
		if answer != "" {
			fmt.Fprintln(out, answer)
			answer = ""
		}
		select {
		case line, more := <-lines:
			if !more {
				return nil
			}
			var i int
			var what string
			if _, err := fmt.Sscan(line, &i, &what); err != nil {
				return err
			}
			switch c := &counters[i]; what {
			case still, goOn:
				c.still = what == still
			case restart:
				c.since = time.Now()
			}
			answer = "done"
		case <-tick.C:
		}
	}
}

// text returns a function that writes a text to the file.
func text(s string) func(string) error {
	return func(file string) error { return os.WriteFile(file, []byte(s), 0o644) }
}

// troubles are the faults of the zones of a tree, one each, with the agent's expected message.
var troubles = []struct {
	name, why, err string
	break_         func(z *zone) error
	kept           bool // nothing to repair
}{
	{name: "healthy", break_: func(*zone) error { return nil }, kept: true},
	{"vanishes", "gone", "no such file or directory", func(z *zone) error { return z.stop(func(string) error { return os.RemoveAll(z.dir) }) }, false},
	{"denied", "gone", "permission denied", nil, false}, // denied from the start
	{"goes back", "went back", "reading of [0-9]+ uJ after [0-9]+", func(z *zone) error { return z.tell(restart) }, true},
	{"is not a number", "gone", "not a number", func(z *zone) error { return z.stop(text("ten joules\n")) }, false},
	{"is empty", "gone", "not a number", func(z *zone) error { return z.stop(text("")) }, false},
	{"has too many digits", "gone", "not a number", func(z *zone) error { return z.stop(text(strings.Repeat("9", 30) + "\n")) }, false},
	{"jumps", "jumped", "reading of 900000000000 uJ after [0-9]+", func(z *zone) error { return z.stop(text("900000000000\n")) }, false},
	{"is negative", "jumped", "reading of -5 uJ after [0-9]+", func(z *zone) error { return z.stop(text("-5\n")) }, false},
	{"is a pipe", "gone", "a pipe or a device, not a file", func(z *zone) error {
		return z.stop(func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o644)) })
	}, false},
	{"is a link to itself", "gone", "too many levels of symbolic links", func(z *zone) error {
		return z.stop(func(file string) error { return errors.Join(os.Remove(file), os.Symlink("energy_uj", file)) })
	}, false},
	{"stands still", "stalled", "stuck at [0-9]+ uJ for [0-9.]+m?s", func(z *zone) error { return z.stop(func(string) error { return nil }) }, false},
}

// plantZones creates a tree with a zone per fault, and memory in the first, whose counters run
// until the test ends.
func plantZones(t *testing.T) (dir string, zones []*zone) {
	t.Helper()
	dir = open(t, "/dev/shm") // writes never wait for a disk
	writer := exec.Command("/proc/self/exe")
	for i, what := range troubles {
		z := &zone{dir: filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", i)), watts: zoneWatts}
		top := "262143328850\n"
		if what.name == "goes back" {
			top = "0\n" // its wrap is unknown
		}
		if err := errors.Join(z.plant(), os.WriteFile(filepath.Join(z.dir, "max_energy_range_uj"), []byte(top), 0o644)); err != nil {
			t.Fatal(err)
		}
		zones = append(zones, z)
	}
	dram := &zone{dir: zones[0].dir + ":0", watts: dramWatts}
	if err := errors.Join(dram.plant(), os.WriteFile(filepath.Join(dram.dir, "name"), []byte("dram\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, z := range append(zones, dram) {
		writer.Args = append(writer.Args, fmt.Sprintf("%s=%d", z.dir, z.watts))
	}
	writer.Env = append(os.Environ(), "METE_TEST_MAIN=zones")
	writer.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that its priority applies among all sessions
	var log bytes.Buffer
	writer.Stderr = &log
	in, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), writer.Wait()); err != nil {
			t.Errorf("the writer of zones: %v: %s", err, &log)
		}
	})
	answers := bufio.NewReader(out)
	if _, err := answers.ReadString('\n'); err != nil {
		t.Fatalf("the writer of zones does not start: %v", err)
	}
	for i, what := range troubles {
		zones[i].tell = func(what string) error {
			_, err := fmt.Fprintln(in, i, what)
			if err == nil {
				_, err = answers.ReadString('\n')
			}
			return err
		}
		if what.name == "denied" {
			if err := zones[i].stop(func(file string) error { return os.Chmod(file, 0) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir, zones
}

// open creates a directory that everybody can enter, unlike those of the test, until the test ends.
func open(t *testing.T, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "mete-zones-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A printed is a window of -print: J of all rows by domain, and the quality of the row idle.
type printed struct {
	end     int64 // ns of CLOCK_BOOTTIME
	seconds float64
	joules  map[string]float64
	quality map[string]string
}

// An observer reads the windows of an agent.
type observer struct {
	mu         sync.Mutex
	windows    []printed
	violations int64
	err        error
}

// read reads windows until the agent ends.
func (o *observer) read(out io.Reader) {
	lines := json.NewDecoder(out)
	for {
		var w line
		if err := lines.Decode(&w); err != nil {
			if err != io.EOF {
				o.fail(err)
			}
			return
		}
		p := printed{end: w.End, seconds: float64(w.End-w.Start) / 1e9, joules: map[string]float64{}, quality: map[string]string{}}
		for range w.Rows {
			var r struct {
				Kind          string
				Used, Quality map[string]string
			}
			if err := lines.Decode(&r); err != nil {
				o.fail(err)
				return
			}
			for res, text := range r.Used {
				var v float64
				if _, err := fmt.Sscan(text, &v); err != nil {
					o.fail(err)
				}
				p.joules[res] += v
			}
			if r.Kind == "idle" {
				p.quality = r.Quality
			}
		}
		o.mu.Lock()
		o.windows = append(o.windows, p)
		o.violations += w.Balance.Violations
		o.mu.Unlock()
	}
}

func (o *observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = errors.Join(o.err, err)
}

// steady returns when the third window in a row without a modelled package ended, after an instant;
// 0 if not yet.
func (o *observer) steady(from int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	row := 0
	for _, w := range o.windows {
		if row++; w.end < from || w.quality["energy_package"] != "apportioned" {
			row = 0
		}
		if row == 3 {
			return w.end
		}
	}
	return 0
}

// between sums the windows that end between two instants.
func (o *observer) between(from, to int64) (sum printed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum = printed{joules: map[string]float64{}, quality: map[string]string{}}
	for _, w := range o.windows {
		if w.end < from || w.end > to {
			continue
		}
		sum.seconds += w.seconds
		for res, v := range w.joules {
			sum.joules[res] += v
		}
		for res, q := range w.quality {
			if was := sum.quality[res]; was != "" && was != q {
				q = "mixed"
			}
			sum.quality[res] = q
		}
	}
	return sum
}

func now(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// TestMetersInTrouble breaks the meters in every way at once and repairs them later. The agent,
// which runs as an unprivileged user, keeps running, reports each fault with a hint, bridges the
// gap with a model and says so, and uses the other meters.
func TestMetersInTrouble(t *testing.T) {
	testkit.Stage(t, "timing", "compares the power of meters with real time and load")
	hosttest.Need(t, "root", "procfs")
	t.Parallel()
	dir, zones := plantZones(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(open(t, ""), "agent")
	if err := os.WriteFile(agent, self, 0o755); err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	const window = 2 * time.Second
	c := exec.Command(agent, "-print", "-powercap", dir, "-tick", "500ms", "-window", window.String(), "-reader", "files")
	c.Env, c.Dir = append(s.env, "METE_TEST_MAIN=1"), dir
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, w := io.Pipe()
	var o observer
	var reading sync.WaitGroup
	reading.Go(func() { o.read(out) })
	p := s.startTo(w, "agent", c)
	p.waitOutput("msg=measuring")
	// A stuck counter is detected by the machine's load, which is constant: this test takes what
	// other processes leave.
	for range runtime.NumCPU() {
		busy := exec.Command("/proc/self/exe")
		busy.Env = []string{"METE_TEST_MAIN=busy"}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = busy.Process.Kill(), busy.Wait() })
	}

	begin := now(t)
	time.Sleep(6 * window)
	broken := now(t)
	for i, what := range troubles {
		if what.break_ != nil {
			if err := what.break_(zones[i]); err != nil {
				t.Fatalf("%s: %v", what.name, err)
			}
		}
	}
	for i, what := range troubles {
		if what.why != "" {
			p.waitOutput(fmt.Sprintf(`level=WARN msg="energy meter is not used.*" meter=rapl/package-%d why="?%s"? err=".*%s.*" hint=".+"`, i, what.why, what.err))
		}
	}
	time.Sleep(5 * window)
	mended := now(t)
	for i, what := range troubles {
		if what.name == "denied" {
			if err := errors.Join(os.Chmod(zones[i].file(), 0o644), zones[i].tell(goOn)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if what.kept {
			continue
		}
		if err := zones[i].mend(); err != nil {
			t.Fatalf("%s: %v", what.name, err)
		}
	}
	for i, what := range troubles {
		if what.why != "" {
			p.waitOutput(fmt.Sprintf(`level=INFO msg="energy meter is used again" meter=rapl/package-%d was="?%s"? for=`, i, what.why))
		}
	}
	// Excess of the model over the counters is subtracted first.
	again, steady := now(t), int64(0)
	testkit.Eventually(t, "no package is modelled any more", func() bool {
		steady = o.steady(again)
		return steady != 0
	})
	time.Sleep(10*time.Second + window)
	end := now(t)
	p.stop()
	_ = w.Close() // of a pipe
	reading.Wait()
	if o.err != nil || o.violations > 0 {
		t.Errorf("%v, %d violations", o.err, o.violations)
	}
	if log := p.log.String(); !strings.Contains(log, `level=WARN msg="an energy meter cannot be read" err="rapl/package-2: `) || !strings.Contains(log, "CAP_DAC_READ_SEARCH") {
		t.Error("it does not say at its start what is denied and what to grant")
	}

	all := float64(len(zones) * zoneWatts)
	const settle = int64(2*window + window/2)
	for _, span := range []struct {
		name     string
		from, to int64
		quality  string
		within   float64
	}{
		{"one denied", begin + settle, broken, "modelled", .1},
		{"all in trouble", broken + settle, mended, "modelled", .2},
		{"mended", steady + 1, end, "apportioned", .05},
		{"all the time", begin + settle, end, "mixed", .05},
	} {
		sum := o.between(span.from, span.to)
		t.Logf("%s: %.1f s, packages %.1f W (%s), memory %.2f W (%s)", span.name, sum.seconds, sum.joules["energy_package"]/sum.seconds, sum.quality["energy_package"],
			sum.joules["energy_dram"]/sum.seconds, sum.quality["energy_dram"])
		if w := sum.joules["energy_package"] / sum.seconds; sum.seconds == 0 || w < all*(1-span.within) || w > all*(1+span.within) || sum.quality["energy_package"] != span.quality {
			t.Errorf("%s: packages %.1f W, %s; want %.0f W within %.0f %%, %s", span.name, w, sum.quality["energy_package"], all, 100*span.within, span.quality)
		}
		if w := sum.joules["energy_dram"] / sum.seconds; w < dramWatts*.9 || w > dramWatts*1.1 || sum.quality["energy_dram"] != "apportioned" {
			t.Errorf("%s: memory %.2f W, %s; want %d W, apportioned: it was never in trouble", span.name, w, sum.quality["energy_dram"], dramWatts)
		}
	}
}

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
)

// zoneWatts is the power of each zone of a tree, and dramWatts that of its memory.
const zoneWatts, dramWatts = 10, 5

// A zone is one counter of a tree. Its power never changes.
type zone struct {
	dir   string
	watts int64
	// tell has the writer do something, and returns when that is done.
	tell func(what string) error
}

// What the writer of zones is told: to write nothing of one, to write it again, and to
// have it show what is used from now on.
const still, goOn, anew = "still", "go-on", "anew"

// file is the file with the counter.
func (z *zone) file() string { return filepath.Join(z.dir, "energy_uj") }

// stop stops writing, and leaves something in place of the file.
func (z *zone) stop(leave func(file string) error) error {
	if err := z.tell(still); err != nil {
		return err
	}
	return leave(z.file())
}

// plant makes what is there beside the counter.
func (z *zone) plant() error {
	if err := os.MkdirAll(z.dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(z.dir, "name"), []byte("package-"+strings.TrimPrefix(filepath.Base(z.dir), "intel-rapl:")+"\n"), 0o644)
}

// mend removes what is there, and goes on where the counter would be.
func (z *zone) mend() error {
	if err := z.plant(); err != nil {
		return err
	}
	if err := os.Remove(z.file()); err != nil && !os.IsNotExist(err) {
		return err
	}
	return z.tell(goOn)
}

// writeZones writes the counters of zones, each given as DIR=WATTS, every 10 ms until
// in ends. It does what each line of in says, as the number of a zone and what the
// writer is told, and answers it. It is a process of its own, which takes the CPU
// before others: what is not written for a while stands still.
func writeZones(list []string, in io.Reader, out io.Writer) error {
	if err := powersim.RaisePriority(); err != nil {
		return err
	}
	type counter struct {
		file  string
		watts int64
		since time.Time // it shows what was used since
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
			// In one piece, and 20 digits as a shorter number would leave some of a
			// longer one.
			f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o644)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(f, "%020d\n", int64(time.Since(c.since).Seconds()*1e6)*c.watts)
			if err = errors.Join(err, f.Close()); err != nil {
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
			case anew:
				c.since = time.Now()
			}
			answer = "done"
		case <-tick.C:
		}
	}
}

// text leaves a text in the file.
func text(s string) func(string) error {
	return func(file string) error { return os.WriteFile(file, []byte(s), 0o644) }
}

// troubles are what befalls the zones of a tree, one each, with what the agent
// says of it.
var troubles = []struct {
	name, why, err string
	break_         func(z *zone) error
	kept           bool // there is nothing to mend
}{
	{name: "healthy", break_: func(*zone) error { return nil }, kept: true},
	{"vanishes", "gone", "no such file or directory", func(z *zone) error { return z.stop(func(string) error { return os.RemoveAll(z.dir) }) }, false},
	{"denied", "gone", "permission denied", nil, false}, // from the start
	{"goes back", "went back", "it shows [0-9]+ uJ after [0-9]+", func(z *zone) error { return z.tell(anew) }, true},
	{"is no number", "gone", "not a number", func(z *zone) error { return z.stop(text("ten joules\n")) }, false},
	{"is empty", "gone", "not a number", func(z *zone) error { return z.stop(text("")) }, false},
	{"has too many digits", "gone", "not a number", func(z *zone) error { return z.stop(text(strings.Repeat("9", 30) + "\n")) }, false},
	{"jumps", "jumped", "it shows 900000000000 uJ after [0-9]+", func(z *zone) error { return z.stop(text("900000000000\n")) }, false},
	{"is negative", "jumped", "it shows -5 uJ after [0-9]+", func(z *zone) error { return z.stop(text("-5\n")) }, false},
	{"is a pipe", "gone", "a pipe or a device, not a file", func(z *zone) error {
		return z.stop(func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o644)) })
	}, false},
	{"is a link to itself", "gone", "too many levels of symbolic links", func(z *zone) error {
		return z.stop(func(file string) error { return errors.Join(os.Remove(file), os.Symlink("energy_uj", file)) })
	}, false},
	{"stands still", "stalled", "it stands at [0-9]+ uJ for [0-9.]+m?s", func(z *zone) error { return z.stop(func(string) error { return nil }) }, false},
}

// plantZones makes a tree of a zone for each trouble, and memory in the first, and
// lets its counters count until the test ends.
func plantZones(t *testing.T) (dir string, zones []*zone) {
	t.Helper()
	dir = open(t, "/dev/shm") // writing waits for no disk
	writer := exec.Command("/proc/self/exe")
	for i, what := range troubles {
		z := &zone{dir: filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", i)), watts: zoneWatts}
		top := "262143328850\n"
		if what.name == "goes back" {
			top = "0\n" // it is not known to wrap
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
	writer.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // its priority counts among all
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
			if err := os.Chmod(zones[i].file(), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir, zones
}

// open makes a directory that everybody can enter, which the test's own are not, until
// the test ends.
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

// A printed is what a window of -print shows of one domain: J of all rows, and the
// quality of the row idle.
type printed struct {
	end     int64 // ns of CLOCK_BOOTTIME
	seconds float64
	joules  map[string]float64
	quality map[string]string
}

// An observer reads the windows of an agent as they come.
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

// steady is when the third window in a row ended of which no package was modelled, of
// those that end after an instant; 0 where there is none yet.
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

// Everything befalls the meters at once that can, and is mended later. The agent,
// which runs as a user without rights, lives, says of each meter what is wrong and
// what to do, fills the gap from a model and says so, and goes on with the others.
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
	p.says("msg=measuring")
	// What stands still is told by the load that the machine has, which is always the
	// same: what others leave is taken.
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
			p.says(fmt.Sprintf(`level=WARN msg="energy meter is not used.*" meter=rapl/package-%d why="?%s"? err=".*%s.*" hint=".+"`, i, what.why, what.err))
		}
	}
	time.Sleep(5 * window)
	mended := now(t)
	for i, what := range troubles {
		if what.name == "denied" {
			if err := os.Chmod(zones[i].file(), 0o644); err != nil {
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
			p.says(fmt.Sprintf(`level=INFO msg="energy meter is used again" meter=rapl/package-%d was="?%s"? for=`, i, what.why))
		}
	}
	// What was modelled beyond what they counted meanwhile is taken off first.
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

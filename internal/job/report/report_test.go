package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// build returns the report of a job of which everything is known.
func build() *report.Report {
	r := &report.Report{
		ID: "01k5x3v7qz8r9s0t1v2w3x4y5z", Name: "nightly", Labels: map[string]string{"team": "web", "env": "ci"},
		Command:  []string{"make", "-j8", "CFLAGS=-O2 -g", "it's"},
		Started:  time.Date(2026, 3, 1, 2, 0, 0, 5, time.UTC),
		Ended:    time.Date(2026, 3, 1, 2, 0, 12, 345678905, time.UTC),
		ExitCode: 143, Signal: "SIGTERM", CPUs: 4, Reader: "bpf", Group: "/user/mete-run-01k5x3v7qz8r9s0t1v2w3x4y5z",
		LivesOn: []report.Process{{PID: 4711, Name: "dae\x1bmon"}},
		Meter:   report.Meter{CPU: 31_000_000, MemoryPeak: 11 << 20},
	}
	r.Put(report.Wall, 12_345_678_900, usage.Measured)
	r.Put(report.CPU, 23_456_789_012, usage.Measured)
	r.Put(report.CPUUser, 20_000_000_000, usage.Apportioned)
	r.Put(report.CPUSystem, 3_456_789_012, usage.Apportioned)
	r.Put(report.CPUThrottled, 0, usage.Measured)
	r.Put(report.MemoryAverage, 123_456_789, usage.Measured)
	r.Put(report.MemoryPeak, 234_567_890, usage.Measured)
	r.Put(report.AnonAverage, 100_000_000, usage.Measured)
	r.Put(report.AnonPeak, 200_000_000, usage.Measured)
	r.Put(report.FileAverage, 23_000_000, usage.Measured)
	r.Put(report.FilePeak, 33_000_000, usage.Measured)
	r.Put(report.DiskRead, 1_572_864, usage.Measured)
	r.Put(report.DiskWritten, 1<<53+1, usage.Measured)
	r.Put(report.NetworkRx, 0, usage.Measured)
	r.Put(report.NetworkTx, 0, usage.Measured)
	r.Put(report.Processes, 1234, usage.Measured)
	r.Put(report.PIDsPeak, 17, usage.Measured)
	r.Put(report.OOMKills, 1, usage.Measured)
	r.Put(report.MachineCPU, 49_382_715_600, usage.Measured)
	r.Put(report.Energy, 88_123_456, usage.Modelled)
	r.Put(report.EnergyError, 35_300_000, usage.Modelled)
	r.Put(report.EnergyIdle, 240_000_000, usage.Modelled)
	r.Put(report.EnergyIdleError, 96_000_001, usage.Modelled)
	r.EnergySource = "a curve of machines like it, scaled to 4 threads"
	return r
}

// follow is a job measured as a process tree.
func follow() *report.Report {
	r := &report.Report{
		ID: "01k5x3v7qz8r9s0t1v2w3x4y60", Name: "true", Command: []string{"/bin/true"},
		Started: time.Date(2026, 3, 1, 2, 0, 0, 0, time.UTC), Ended: time.Date(2026, 3, 1, 2, 0, 0, 0, time.UTC),
		CPUs: 1, Reader: "tree", Notes: []string{"no control group for the job (/sys/fs/cgroup: permission denied): its processes are followed instead"},
	}
	r.Put(report.Wall, 812_345, usage.Measured)
	r.Put(report.CPU, 700_000, usage.Apportioned)
	r.Put(report.MemoryAverage, 512, usage.Apportioned)
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func TestForms(t *testing.T) {
	for name, r := range map[string]*report.Report{"build": build(), "follow": follow()} {
		golden(t, name+".txt", r.Text())
		golden(t, name+".json", r.JSON())
		golden(t, name+".csv", report.CSV(r))
	}
}

// TestKeys checks that all keys are present, whatever is absent.
func TestKeys(t *testing.T) {
	var m map[string]any
	if err := json.Unmarshal(new(report.Report).JSON(), &m); err != nil {
		t.Fatal(err)
	}
	for k := range strings.FieldsSeq(`wall_seconds cpu_seconds cpu_user_seconds cpu_system_seconds memory_average_bytes
		memory_peak_bytes disk_read_bytes disk_written_bytes network_rx_bytes network_tx_bytes processes energy_joules energy_error_joules
		energy_idle_joules energy_idle_error_joules energy_average_watts`) {
		v, ok := m[k]
		if !ok || v != nil {
			t.Errorf("%s = %v, %v, want null", k, v, ok)
		}
		if q := m["quality"].(map[string]any)[k]; q != "absent" {
			t.Errorf("quality of %s = %v, want absent", k, q)
		}
	}
	if m["exit_code"] != 0.0 {
		t.Errorf("exit_code = %v, want 0", m["exit_code"])
	}
}

func TestTextHoldsNoControls(t *testing.T) {
	r := build()
	r.Name, r.Command, r.Notes = "a\x1b[2J", []string{"x\ny\u202e\xff"}, []string{"n\r"}
	r.EnergySource = "s\x1b\n"
	for _, c := range r.Text() {
		if c < ' ' && c != '\n' || c == 0x7f {
			t.Fatalf("text holds %q:\n%s", c, r.Text())
		}
	}
}

// draw returns a random report.
func draw(t *rapid.T) *report.Report {
	word := rapid.String()
	var random [10]byte
	copy(random[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "random"))
	r := &report.Report{
		ID:       report.NewID(rapid.Int64Range(0, 1<<48-1).Draw(t, "ms"), random),
		Name:     word.Draw(t, "name"),
		Labels:   rapid.MapOf(word, word).Draw(t, "labels"),
		Command:  rapid.SliceOfN(word, 1, 4).Draw(t, "command"),
		Started:  time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "start"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(),
		ExitCode: rapid.IntRange(0, 255).Draw(t, "exit"),
		CPUs:     rapid.IntRange(0, 4096).Draw(t, "cpus"),
		Reader:   "files", EnergySource: word.Draw(t, "source"),
		Notes:   rapid.SliceOfN(word, 1, 3).Draw(t, "notes"),
		LivesOn: []report.Process{},
		Meter:   report.Meter{CPU: rapid.Int64Min(0).Draw(t, "meter"), MemoryPeak: rapid.Int64Min(0).Draw(t, "rss")},
	}
	r.Ended = r.Started.Add(time.Second)
	for k := range r.Figures {
		if q := usage.Quality(rapid.IntRange(0, 3).Draw(t, "quality")); q != usage.Absent {
			r.Put(report.Key(k), rapid.Int64Min(0).Draw(t, "amount"), q)
		}
	}
	return r
}

// TestRoundTrip checks that JSON is decoded to the same report, to the last nanosecond.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := draw(t)
		got, err := report.Parse(want.JSON())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
	})
}

// TestCSV checks that each row has as many fields as the header, whatever their content.
func TestCSV(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, err := csv.NewReader(bytes.NewReader(report.CSV(draw(t), draw(t)))).ReadAll()
		if err != nil || len(rows) != 3 || len(rows[1]) != len(rows[0]) {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := string(build().JSON())
	for name, b := range map[string]string{
		"empty":      "",
		"cut":        good[:len(good)/2],
		"no object":  "[]",
		"other":      "{}",
		"newer":      strings.Replace(good, `"format": 1`, `"format": 2`, 1),
		"bad id":     strings.Replace(good, "01k5x3v7qz8r9s0t1v2w3x4y5z", "../../../../etc/passwd", 1),
		"text":       strings.Replace(good, ": 12.3456789", `: "soon"`, 1),
		"two signs":  strings.Replace(good, ": 12.3456789", `: "1.-5"`, 1),
		"too large":  strings.Replace(good, ": 12.3456789", ": 1e300", 1),
		"no exit":    strings.Replace(good, `"exit_code": 143`, `"exit_code": null`, 1),
		"no quality": strings.Replace(good, `"cpu_seconds": "measured"`, `"cpu_seconds": "guessed"`, 1),
	} {
		if r, err := report.Parse([]byte(b)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: Parse = %v, %v, want invalid", name, r, err)
		}
	}
	// Other programs may have rewritten it.
	r, err := report.Parse([]byte(strings.Replace(good, ": 12.3456789", ": 1.23456789e1", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := r.Get(report.Wall); v != 12_345_678_900 || !ok {
		t.Errorf("wall = %d, %v, want 12345678900", v, ok)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(build().JSON())
	f.Add(follow().JSON())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := report.Parse(b)
		if err != nil {
			return
		}
		r.Text()
		report.CSV(r)
		again, err := report.Parse(r.JSON())
		if err != nil {
			t.Fatalf("%v\n%s", err, r.JSON())
		}
		if again.Figures != r.Figures {
			t.Errorf("figures changed: %v, %v", r.Figures, again.Figures)
		}
	})
}

// TestNewID checks that IDs are valid and sort by time.
func TestNewID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64Range(0, 1<<48-1).Draw(t, "a"), rapid.Int64Range(0, 1<<48-1).Draw(t, "b")
		ia, ib := report.NewID(a, [10]byte{255, 255}), report.NewID(b, [10]byte{})
		if got := report.Time(ia).UnixMilli(); got != a {
			t.Fatalf("Time(NewID(%d)) = %d", a, got)
		}
		if !report.ValidID(ia) || a < b && ia >= ib {
			t.Fatalf("NewID(%d) = %s, NewID(%d) = %s", a, ia, b, ib)
		}
	})
	// The layout is that of a ULID: ten characters of time, sixteen random ones.
	if got := report.NewID(1<<48-1, [10]byte{}); got != "7zzzzzzzzz0000000000000000" {
		t.Errorf("NewID(2^48-1) = %s", got)
	}
	for _, s := range []string{"", "01k5x3v7qz8r9s0t1v2w3x4y5", "01k5x3v7qz8r9s0t1v2w3x4y5Z", "01k5x3v7qz8r9s0t1v2w3x4y/z", "01k5x3v7qz8r9s0t1v2w3x4yiz"} {
		if report.ValidID(s) {
			t.Errorf("ValidID(%q) = true", s)
		}
	}
}

func TestQuote(t *testing.T) {
	if got, want := report.Quote([]string{"a", "", "b c", "it's", "$x"}), `a '' 'b c' 'it'\''s' '$x'`; got != want {
		t.Errorf("Quote = %s, want %s", got, want)
	}
}

func TestFill(t *testing.T) {
	var r report.Report
	r.Fill(&report.Measurement{Wall: 3e9, Notes: []string{"n"}})
	m := report.Metered{Span: 2e9, AnonPeak: 60, FilePeak: 80, IdleEnergy: 40, IdleEnergyError: 4, MachineCPU: 7e9, CPUs: 4}
	for res, amount := range map[usage.Resource]int64{usage.CPU: 5, usage.MemoryPeak: 900, usage.Memory: 900, usage.MemoryAnon: 100, usage.EnergyError: 3} {
		m.Use.Put(res, amount, usage.Measured)
	}
	m.Use.Put(usage.CPUUser, 2, usage.Apportioned)
	m.Use.Put(usage.MemoryFile, 140, usage.Apportioned)
	m.Use.Put(usage.EnergyPackage, 20, usage.Apportioned)
	m.Use.Put(usage.EnergyRest, 10, usage.Modelled)
	r.FillUse(&m)
	want := report.Report{CPUs: 4, Notes: []string{"n"}}
	want.Put(report.Wall, 3e9, usage.Measured)
	want.Put(report.CPU, 5, usage.Measured)
	want.Put(report.CPUUser, 2, usage.Apportioned)
	want.Put(report.MemoryAverage, 450, usage.Measured) // byte-seconds in two seconds
	want.Put(report.MemoryPeak, 900, usage.Measured)
	want.Put(report.AnonAverage, 50, usage.Measured)
	want.Put(report.AnonPeak, 60, usage.Measured)
	want.Put(report.FileAverage, 70, usage.Apportioned)
	want.Put(report.FilePeak, 80, usage.Apportioned)
	want.Put(report.MachineCPU, 7e9, usage.Measured)
	want.Put(report.Energy, 30, usage.Modelled) // of all domains, as good as the worst
	want.Put(report.EnergyError, 3, usage.Modelled)
	want.Put(report.EnergyIdle, 40, usage.Modelled)
	want.Put(report.EnergyIdleError, 4, usage.Modelled)
	if d := cmp.Diff(want, r); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestCSVFormula checks that a spreadsheet takes no job's name for a formula, and that it does not control a terminal.
func TestCSVFormula(t *testing.T) {
	r := build()
	r.Name, r.Command = "=cmd|calc!A1", []string{"echo", "\x1b[2J"}
	got := string(report.CSV(r))
	if !strings.Contains(got, ",'=cmd|calc!A1,") || strings.Contains(got, "\x1b") {
		t.Error(got)
	}
}

// TestOutOfMemory checks that the first line says that memory ran out, with the limit, and that the limit
// survives the JSON form.
func TestOutOfMemory(t *testing.T) {
	for _, c := range []struct {
		kills, limit int64
		signal       string
		code         int
		want         string
	}{
		{1, 64 << 20, "SIGKILL", 137, "killed: out of memory (limit 64.0 MiB), SIGKILL (exit 137)"},
		{1, 0, "SIGKILL", 137, "killed: out of memory, SIGKILL (exit 137)"},
		{1, 64 << 20, "", 3, "out of memory (limit 64.0 MiB): 1 process killed; exit 3"},
		{2, 0, "SIGTERM", 143, "out of memory: 2 processes killed; ended by SIGTERM (exit 143)"},
		{0, 64 << 20, "SIGKILL", 137, "ended by SIGKILL (exit 137)"},
	} {
		r := follow()
		r.Signal, r.ExitCode, r.MemoryLimit = c.signal, c.code, c.limit
		r.Put(report.OOMKills, c.kills, usage.Measured)
		r, err := report.Parse(r.JSON())
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := strings.Cut(string(r.Text()), "\n"); got != "true: "+c.want {
			t.Errorf("%q, want %q", got, "true: "+c.want)
		}
	}
}

// TestStillRunning checks what is said of processes that the command left running.
func TestStillRunning(t *testing.T) {
	r := follow()
	r.LivesOn = []report.Process{{PID: 4711, Name: "sleep"}}
	const here = "1 process (sleep (4711)): use from now on is not in this report"
	if got := r.Survivors(); got != here {
		t.Errorf("without an agent: %q", got)
	}
	r.InLedgerByName = new(bool)
	if got := r.Survivors(); got != here {
		t.Errorf("with an agent that does not know: %q", got)
	}
	*r.InLedgerByName = true
	if got := r.Survivors(); got != here+"; the ledger books it to the job" {
		t.Errorf("with an agent: %q", got)
	}
}

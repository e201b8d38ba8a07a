package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// open returns a bench in the fixture's directory.
func open(t *testing.T) *bench {
	t.Helper()
	return openIn(t, "testdata/fixture")
}

func openIn(t *testing.T, dir string) *bench {
	t.Helper()
	t.Chdir(dir)
	b, err := newBench(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// loadOne returns a package of the fixture.
func loadOne(t *testing.T, b *bench, dir string) *target {
	t.Helper()
	all, err := b.load(dir)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
}

// TestMutants checks all changes of a package, and which of them compile.
func TestMutants(t *testing.T) {
	p := loadOne(t, open(t), ".")
	var got []string
	for _, m := range p.mutants {
		line := m.String()
		if p.check(m) != nil {
			line += " (invalid)"
		}
		got = append(got, line)
	}
	want := strings.Split(strings.TrimSpace(`
fixture.go:24: swapped operands: have - used -> (used) - (have)
fixture.go:28: negated condition: n < len(text) -> !(n < len(text))
fixture.go:28: off by one: n < len(text) -> n <= len(text)
fixture.go:28: swapped operands: n < len(text) -> (len(text)) < (n)
fixture.go:29: removed statement: n++ -> (nothing)
fixture.go:37: negated condition: err != nil -> !(err != nil)
fixture.go:37: dropped error: { return 0, fmt.Errorf("%q, character %d: %w", s, len(s)-1, err) } -> {}
fixture.go:38: dropped error: fmt.Errorf("%q, character %d: %w", s, len(s)-1, err) -> nil
fixture.go:38: off by one: 0 -> 1
fixture.go:41: negated condition: n == 99 -> !(n == 99)
fixture.go:41: off by one: 99 -> 100
fixture.go:43: negated condition: n > 99 -> !(n > 99)
fixture.go:43: off by one: n > 99 -> n >= 99
fixture.go:43: swapped operands: n > 99 -> (99) > (n)
fixture.go:43: off by one: 99 -> 100
fixture.go:44: dropped error: errors.New("too large") -> nil (invalid)
fixture.go:44: off by one: 0 -> 1
fixture.go:51: negated condition: f(x) && x < 0.5 -> !(f(x) && x < 0.5)
fixture.go:51: swapped operands: x < 0.5 -> (0.5) < (x)
fixture.go:52: removed statement: defer f(x) -> (nothing)
room.go:13: removed statement: known[n] = true -> (nothing)
room.go:10: off by one: 0 -> 1
`), "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mutants (-want +have):\n%s", diff)
	}
}

// findMutant returns the mutant of a line with a kind.
func findMutant(t *testing.T, p *target, line int, kind string) *mutant {
	t.Helper()
	for _, m := range p.mutants {
		if m.Line == line && m.Kind == kind {
			return m
		}
	}
	t.Fatalf("line %d has no %s", line, kind)
	return nil
}

// TestResults checks the result of each sort of mutant, and that no file is changed.
func TestResults(t *testing.T) {
	b := open(t)
	p := loadOne(t, b, ".")
	for _, c := range []struct {
		line int
		kind string
		want result
	}{
		{24, kindSwapped, killed},
		{38, kindNoError, killed},
		{44, kindNoError, invalid},
		{51, kindSwapped, survived},
	} {
		if got, err := b.test(p, findMutant(t, p, c.line, c.kind)); got != c.want || err != nil {
			t.Errorf("line %d, %s: %d, %v, want %d", c.line, c.kind, got, err, c.want)
		}
	}
	if cpu := p.suites[0].runs[0].cpu; cpu <= b.minimum || cpu > b.minimum+3*time.Minute {
		t.Errorf("the tests may use %v of CPU time", cpu)
	}
	// However long the limit is, this one is not done. No time is left where the process stops before it begins.
	for _, limit := range []time.Duration{100 * time.Millisecond, 0} {
		p.suites[0].runs[0].limit = limit
		if got, err := b.test(p, findMutant(t, p, 29, kindRemoved)); got != hung || err != nil {
			t.Errorf("an endless loop within %v: %d, %v", limit, got, err)
		}
	}
	for path, before := range p.sources {
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s has changed: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.ctx = ctx
	cancel()
	if got, err := b.test(p, findMutant(t, p, 24, kindSwapped)); err == nil {
		t.Errorf("after an interrupt: %d", got)
	}
	p.suites[0].runs, b.ctx = nil, t.Context()
	t.Setenv("FIXTURE_FAILS", "1")
	if got, err := b.test(p, findMutant(t, p, 24, kindSwapped)); err == nil || !strings.Contains(err.Error(), "fail without any change") {
		t.Errorf("tests that fail: %d, %v", got, err)
	}
}

// TestSuites checks that a package is tested by its own tests, and then by those of packages above
// it that import it.
func TestSuites(t *testing.T) {
	b := open(t)
	all, err := b.load("./...")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range all {
		for _, s := range p.suites {
			got[p.path] += s.path + " "
		}
	}
	want := map[string]string{"fixture": "fixture ", "fixture/part": "fixture ", "fixture/part/deep": "fixture/part/deep fixture "}
	if !cmp.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	p := loadOne(t, b, "./part/deep")
	for line, want := range map[int]result{5: killed, 8: killed, 11: survived} {
		if got, err := b.test(p, findMutant(t, p, line, kindSwapped)); got != want || err != nil {
			t.Errorf("line %d: %d, %v, want %d", line, got, err, want)
		}
	}
	if len(p.suites[0].runs) == 0 || len(p.suites[1].runs) == 0 || p.suites[0].dir == p.suites[1].dir {
		t.Errorf("%+v, %+v", p.suites[0], p.suites[1])
	}
}

// TestPostgres checks that tests that need PostgreSQL run, after the others, where it is installed
// and the caller has not chosen the stages.
func TestPostgres(t *testing.T) {
	installed, err := os.Executable() // any file will do
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		server, stage string
		want          result
	}{{installed, "", killed}, {installed + ".absent", "", survived}, {installed, "accuracy", survived}, {"", "postgres", killed}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Setenv("METE_STAGE", c.stage)
			t.Setenv("FIXTURE_STAGE", c.stage) // of the tests at the top
			b := open(t)
			b.postgres = c.server
			p := loadOne(t, b, "./part/deep")
			if got, err := b.test(p, findMutant(t, p, 14, kindSwapped)); got != c.want || err != nil {
				t.Errorf("%d, %v, want %d", got, err, c.want)
			}
		})
	}
}

// TestIsHung checks that a program hangs if it used more CPU time than it may, or nearly none for a
// minute.
func TestIsHung(t *testing.T) {
	flat := make([]time.Duration, idleLooks+1)
	busy := slices.Clone(flat)
	busy[idleLooks] = idleLooks * watchEvery / 100
	for name, c := range map[string]struct {
		looks []time.Duration
		limit time.Duration
		want  bool
	}{
		"within":   {[]time.Duration{1, 5}, 5, false},
		"beyond":   {[]time.Duration{1, 6}, 5, true},
		"no limit": {[]time.Duration{time.Hour}, 0, false},
		"waits":    {flat, time.Hour, true},
		"not long": {flat[1:], time.Hour, false},
		"busy":     {busy, time.Hour, false},
		"again":    {append(slices.Clone(busy), busy[idleLooks]), time.Hour, false},
	} {
		if got := isHung(c.looks, c.limit); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestRun checks the reports, and that a package without tests kills nothing.
func TestRun(t *testing.T) {
	t.Chdir("testdata/fixture")
	minimum := time.Hour
	run := func(args ...string) (string, bool) {
		t.Helper()
		c, err := parseFlags(args)
		if err != nil {
			t.Fatal(err)
		}
		c.minimum = minimum
		var out strings.Builder
		ok, err := c.run(t.Context(), &out, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), ok
	}
	out, ok := run("./untested", "-seed", "3")
	const half = `survived untested/untested.go:5: `
	if want := "./untested, seed 3: 0/2 killed, 0 of them hung\n"; ok || !strings.HasSuffix(out, want) || !strings.Contains(out, half+"swapped operands: n / 2 -> (2) / (n)\n") || !strings.Contains(out, half+"off by one: 2 -> 3\n") {
		t.Errorf("%t %s", ok, out)
	}
	first, rest, _ := strings.Cut(out, "\n")
	earlier := filepath.Join(t.TempDir(), "earlier")
	if err := os.WriteFile(earlier, []byte("0/2 killed \r\x1b[K"+first), 0o600); err != nil { // with the progress
		t.Fatal(err)
	}
	if again, _ := run("./untested", "-again", earlier); !strings.HasPrefix(again, first+"\n") || !strings.Contains(again, "0/1 killed") || rest == "" {
		t.Errorf("of %q: %s", first, again)
	}
	if out, ok = run("./untested", "-want", "0", "-o", "json"); !ok {
		t.Error("none has to be killed, and too few were")
	}
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Total != 2 || r.Killed != 0 || len(r.Survivors) != 2 || r.Survivors[0].Line != 5 || r.Survivors[0].Kind == "" {
		t.Errorf("%v %s", err, out)
	}
	minimum = time.Second // there may be an endless loop among them
	if out, _ = run("./...", "-n", "4", "-seed", "7"); !strings.Contains(out, "/4 killed, ") {
		t.Error(out)
	}
	c := &config{pattern: "./nothing"}
	if ok, err := c.run(t.Context(), io.Discard, io.Discard); ok || err == nil {
		t.Errorf("a package that does not exist: %t, %v", ok, err)
	}
}

// TestDraw checks that a seed gives one order, and that packages are drawn by their size.
func TestDraw(t *testing.T) {
	draw := func(seed uint64) (names []string) {
		var all []*target
		for _, size := range []int{10, 90, 900} {
			p := &target{statements: size}
			for i := range size {
				p.mutants = append(p.mutants, &mutant{File: fmt.Sprint(size), Line: i})
			}
			all = append(all, p)
		}
		all = append(all, &target{path: "empty", statements: 1000})
		for d := newDraw(all, seed); ; {
			_, m := d.next()
			if m == nil {
				return names
			}
			names = append(names, fmt.Sprintf("%s:%d", m.File, m.Line))
		}
	}
	one := draw(1)
	if !cmp.Equal(one, draw(1)) || cmp.Equal(one, draw(2)) {
		t.Error("the order is not that of the seed")
	}
	count, seen := map[string]int{}, map[string]bool{}
	for i, name := range one {
		if seen[name] {
			t.Errorf("%s is drawn twice", name)
		}
		if seen[name] = true; i < 200 {
			count[strings.SplitN(name, ":", 2)[0]]++
		}
	}
	if len(one) != 1000 || count["900"] < 160 || count["90"] < 5 || count["90"] > 40 {
		t.Errorf("%d drawn, of the first 200: %v", len(one), count)
	}
}

func TestEnough(t *testing.T) {
	for _, c := range []struct {
		killed, total int
		want          bool
	}{{57, 60, true}, {56, 60, false}, {19, 20, true}, {18, 20, false}, {1, 1, true}, {0, 1, false}} {
		if r := (&report{Killed: c.killed, Total: c.total}); r.enough(57) != c.want {
			t.Errorf("%d of %d: %t", c.killed, c.total, !c.want)
		}
	}
}

func TestFlags(t *testing.T) {
	c, err := parseFlags([]string{"./x", "-seed", "7", "-n=5"})
	if err != nil || c.pattern != "./x" || c.seed != 7 || c.n != 5 || c.want != 57 || c.json {
		t.Errorf("%+v, %v", c, err)
	}
	for _, args := range [][]string{{}, {"a", "b"}, {"a", "-n", "0"}, {"a", "-o", "yaml"}} {
		if c, err := parseFlags(args); err == nil {
			t.Errorf("%q: %+v", args, c)
		}
	}
}

// TestNames checks that a file outside the current directory has its whole path as its name.
func TestNames(t *testing.T) {
	b := open(t)
	b.wd = filepath.Join(b.wd, "untested")
	if p := loadOne(t, b, "."); !filepath.IsAbs(p.mutants[0].File) {
		t.Errorf("a file outside the directory is named %s", p.mutants[0].File)
	}
}

// TestRegressions checks the outcome of each sort of regression.
func TestRegressions(t *testing.T) {
	t.Chdir("testdata/fixture")
	run := func(minimum time.Duration, args ...string) (string, bool) {
		t.Helper()
		c, err := parseFlags(append([]string{"-regressions", "../regressions"}, args...))
		if err != nil {
			t.Fatal(err)
		}
		c.minimum = minimum
		var out strings.Builder
		ok, err := c.runRegressions(t.Context(), &out, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), ok
	}
	outcomes := func(text string) map[string]outcome {
		t.Helper()
		var list []outcome
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		by := map[string]outcome{}
		for _, o := range list {
			by[o.Name] = o
		}
		return by
	}
	out, ok := run(time.Hour, "-o", "json", "code-is-ambiguous", "code-is-gone", "crashes", "does-not-compile", "fails-anyway", "no-such-test", "noticed", "skipped", "skipped-without-need", "unnoticed")
	if ok {
		t.Error("some are not noticed, and all is well")
	}
	got := outcomes(out)
	for name, want := range map[string][2]string{
		"code-is-ambiguous":    {outcomeBroken, "has these lines 4 times"},
		"code-is-gone":         {outcomeBroken, "no longer has these lines"},
		"crashes":              {outcomeCrashed, ""},
		"does-not-compile":     {outcomeBroken, "with the change it does not compile"},
		"fails-anyway":         {outcomeBroken, "without the change the test does not pass:"},
		"no-such-test":         {outcomeBroken, "the package has no such test"},
		"noticed":              {outcomeFailed, ""},
		"skipped":              {outcomeNotRun, "needs another machine\n"},
		"skipped-without-need": {outcomeBroken, "without the change the test does not pass:"},
		"unnoticed":            {outcomePassed, "the test does not notice"},
	} {
		o, known := got[name]
		if !known || o.Outcome != want[0] || !strings.HasPrefix(o.Detail, want[1]) && !strings.Contains(o.Detail, want[1]) || want[1] == "" && o.Detail != "" {
			t.Errorf("%s: %q %s; want %q", name, o.Outcome, o.Detail, want)
		}
	}
	if o := got["noticed"]; o.What != "The difference has the wrong sign." || o.Package != "./" || o.Test != "TestLeft/five_less_three" || len(o.Files) != 1 || o.Files[0] != "fixture.go" {
		t.Errorf("%+v", o)
	}
	// However long it is, the endless loop is not done.
	out, ok = run(100*time.Millisecond, "-o", "json", "hangs")
	if o := outcomes(out)["hangs"]; !ok || o.Outcome != outcomeHung {
		t.Errorf("%t %+v", ok, o)
	}
	if out, ok = run(time.Hour, "noticed", "skipped"); !ok || !strings.HasSuffix(out, "\n1 of 2 regressions noticed, 1 not run here\n") || !strings.HasPrefix(out, "noticed  ./ TestLeft/five_less_three  failed") {
		t.Errorf("%t %s", ok, out)
	}
	t.Setenv("FIXTURE_STAGE", "nowhere")
	if out, _ = run(time.Hour, "fails-anyway"); !strings.Contains(out, outcomePassed) {
		t.Errorf("its stage is not set: %s", out)
	}
	c := &config{regressions: "../regressions", names: []string{"unknown", "noticed"}}
	if _, err := c.runRegressions(t.Context(), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "no unknown.diff") {
		t.Errorf("a name that does not exist: %v", err)
	}
}

// TestParseRegression checks the form of files.
func TestParseRegression(t *testing.T) {
	const head = "It is\nwrong.\n\ntest: ./x TestX/a\nneeds: root\nstage: vm\n\n"
	r, err := parseRegression("n", head+"--- a.go\n@@\n one\n-two\n@@\n+three\n\n\tfour\n--- b.js\n@@\n-x\n+y\n")
	want := []hunk{{"a.go", "one\ntwo\n", "one\n"}, {"a.go", "\nfour\n", "three\n\nfour\n"}, {"b.js", "x\n", "y\n"}}
	if err == nil {
		t.Errorf("a line that begins with a tab: %+v", r)
	}
	r, err = parseRegression("n", head+"--- a.go\n@@\n one\n-two\n@@\n+three\n\n four\n\n--- b.js\n@@\n-x\n+y\n")
	if err != nil || r.what != "It is wrong." || r.dir != "./x" || r.test != "TestX/a" || r.needs != "root" || r.stage != "vm" || !cmp.Equal(r.hunks, want, cmp.AllowUnexported(hunk{})) {
		t.Errorf("%+v, %v", r, err)
	}
	for name, text := range map[string]string{
		"nothing":        "",
		"no test":        "Wrong.\n\nneeds: root\n\n--- a.go\n@@\n-x\n",
		"no description": "test: ./x TestX\n\n--- a.go\n@@\n-x\n",
		"other setting":  "Wrong.\n\ntest: ./x TestX\nneed: root\n\n--- a.go\n@@\n-x\n",
		"no package":     "Wrong.\n\ntest: TestX\n\n--- a.go\n@@\n-x\n",
		"no piece":       "Wrong.\n\ntest: ./x TestX\n",
		"no @@":          head + "--- a.go\n-x\n",
		"no change":      head + "--- a.go\n@@\n x\n",
		"only new lines": head + "--- a.go\n@@\n+x\n",
	} {
		if r, err := parseRegression("n", text); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestOwnRegressions checks that each regression of this project fits the code, is Go afterwards,
// and names a test that exists. Whether that test fails is for the gate's stage regressions.
func TestOwnRegressions(t *testing.T) {
	all, err := readRegressions("regressions", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		changed, err := r.apply("../..")
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		for path, source := range changed {
			if _, err := parser.ParseFile(token.NewFileSet(), path, source, 0); filepath.Ext(path) == ".go" && err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
		files, err := filepath.Glob(filepath.Join("../..", r.dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(r.test, "/")
		if !slices.ContainsFunc(files, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && bytes.Contains(text, []byte("\nfunc "+name+"(t *testing.T)"))
		}) {
			t.Errorf("%s: %s has no %s", r.name, r.dir, name)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A regression is a change that undoes one fix, and the test that has to notice it.
type regression struct {
	name  string // of its file, without .diff
	what  string // the defect that it puts back
	dir   string // of the test's package, such as ./internal/model/batch
	test  string // TestX or TestX/case
	needs string // what the test needs of the machine; empty: nothing that may be missing
	stage string // of the test, empty for the default gate
	hunks []hunk
}

// A hunk replaces one piece of a file, whole lines.
type hunk struct{ file, before, after string }

// readRegressions reads the *.diff files of a directory, or of those the named ones, in the
// order of their names.
func readRegressions(dir string, names []string) ([]*regression, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.diff"))
	if err != nil {
		return nil, err
	}
	var all []*regression
	var errs []error
	unknown := slices.Clone(names)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".diff")
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		unknown = slices.DeleteFunc(unknown, func(n string) bool { return n == name })
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r, err := parseRegression(name, string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, r)
	}
	if len(unknown) > 0 {
		errs = append(errs, fmt.Errorf("%s has no %s.diff", dir, strings.Join(unknown, ".diff, no ")))
	}
	if len(files) == 0 {
		errs = append(errs, fmt.Errorf("%s has no *.diff", dir))
	}
	return all, errors.Join(errs...)
}

var isTest = regexp.MustCompile(`^Test\w*(/[^ ]+)?$`)

// parseRegression reads the text of a file: a paragraph that says what is wrong, settings, and
// pieces of files in the form of a diff without line numbers.
func parseRegression(name, text string) (*regression, error) {
	r := &regression{name: name}
	head, diff, _ := strings.Cut(text, "\n--- ")
	what, settings, _ := strings.Cut(head, "\n\n")
	r.what = strings.Join(strings.Fields(what), " ")
	for line := range strings.Lines(settings) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case key == "":
		case ok && key == "test":
			r.dir, r.test, _ = strings.Cut(value, " ")
		case ok && key == "needs":
			r.needs = value
		case ok && key == "stage":
			r.stage = value
		default:
			return r, fmt.Errorf("%q is not a setting; there are test, needs and stage", strings.TrimSpace(line))
		}
	}
	if r.what == "" || !strings.HasPrefix(r.dir, "./") || !isTest.MatchString(r.test) {
		return r, errors.New(`the file begins with what is wrong, an empty line, and "test: ./PACKAGE TestName"`)
	}
	for part := range strings.SplitSeq(diff, "\n--- ") {
		file, hunks, _ := strings.Cut(part, "\n")
		for i, lines := range strings.Split("\n"+hunks, "\n@@\n") {
			if i == 0 {
				if strings.TrimSpace(lines) != "" {
					return r, fmt.Errorf("%s: the line after --- is @@", file)
				}
				continue
			}
			h := hunk{file: file}
			for line := range strings.Lines(lines) {
				sign, line := line[0], strings.TrimSuffix(line[1:], "\n")+"\n"
				switch sign {
				case ' ':
					h.before, h.after = h.before+line, h.after+line
				case '-':
					h.before += line
				case '+':
					h.after += line
				case '\n':
					h.before, h.after = h.before+"\n", h.after+"\n"
				default:
					return r, fmt.Errorf("%s: a line begins with %q instead of a space, - or +", file, sign)
				}
			}
			if h.before == "" || h.before == h.after {
				return r, fmt.Errorf("%s: a piece changes nothing, or does not say where", file)
			}
			r.hunks = append(r.hunks, h)
		}
	}
	if len(r.hunks) == 0 {
		return r, errors.New("there is no piece of a file: --- FILE, @@, and lines that begin with a space, - or +")
	}
	return r, nil
}

// apply returns the changed files of the tree below root.
func (r *regression) apply(root string) (map[string][]byte, error) {
	changed := map[string][]byte{}
	for _, h := range r.hunks {
		path := filepath.Join(root, h.file)
		source, ok := changed[path]
		if !ok {
			var err error
			if source, err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
		// A piece is whole lines.
		switch n := bytes.Count(append([]byte("\n"), source...), []byte("\n"+h.before)); n {
		case 1:
		case 0:
			return nil, fmt.Errorf("%s no longer has these lines; adapt the regression, or delete it with the code:\n%s", h.file, h.before)
		default:
			return nil, fmt.Errorf("%s has these lines %d times; add lines around them:\n%s", h.file, n, h.before)
		}
		changed[path] = bytes.Replace(append([]byte("\n"), source...), []byte("\n"+h.before), []byte("\n"+h.after), 1)[1:]
	}
	return changed, nil
}

// The outcomes of a regression.
const (
	outcomeFailed  = "failed"  // the test fails, as it should
	outcomeCrashed = "crashed" // the test's process ends early
	outcomeHung    = "hung"    // the test ran for much longer than without the change
	outcomeNotRun  = "not run" // the machine lacks what the test needs
	outcomePassed  = "PASSED"  // the test does not notice
	outcomeBroken  = "BROKEN"  // nothing could be learned
)

// An outcome is what the test says about a regression.
type outcome struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Files   []string `json:"files"`
	Package string   `json:"package"`
	Test    string   `json:"test"`
	Outcome string   `json:"outcome"`
	Seconds float64  `json:"seconds"`          // that the test ran with the change
	Detail  string   `json:"detail,omitempty"` // of what is not as it should be
}

func (o *outcome) good() bool {
	return o.Outcome == outcomeFailed || o.Outcome == outcomeCrashed || o.Outcome == outcomeHung
}

// runRegressions tests each regression. It reports whether every test that could run noticed.
func (c *config) runRegressions(ctx context.Context, out, progress io.Writer) (bool, error) {
	all, err := readRegressions(c.regressions, c.names)
	if err != nil {
		return false, err
	}
	b, err := newBench(ctx, c.minimum)
	if err != nil {
		return false, err
	}
	defer b.close()
	byDir := map[string][]*regression{}
	for _, r := range all {
		byDir[r.dir] = append(byDir[r.dir], r)
	}
	found := map[*regression]*outcome{}
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		g, err := newRegressionGroup(b, byDir[dir])
		if err != nil {
			return false, err
		}
		for _, r := range byDir[dir] {
			fmt.Fprintf(progress, "\r\x1b[K%d/%d %s ", len(found)+1, len(all), r.name)
			if found[r], err = g.try(r); err != nil {
				return false, err
			}
		}
	}
	fmt.Fprint(progress, "\r\x1b[K")
	var outcomes []*outcome
	noticed, notRun := 0, 0
	for _, r := range all {
		o := found[r]
		outcomes = append(outcomes, o)
		switch {
		case o.good():
			noticed++
		case o.Outcome == outcomeNotRun:
			notRun++
		}
	}
	ok := noticed+notRun == len(all)
	if c.json {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return ok, e.Encode(outcomes)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, o := range outcomes {
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%.1f s\n", o.Name, o.Package, o.Test, o.Outcome, o.Seconds)
	}
	if err := w.Flush(); err != nil {
		return false, err
	}
	for _, o := range outcomes {
		if o.Detail != "" {
			fmt.Fprintf(out, "\n%s: %s\n%s\n", o.Name, o.What, strings.TrimSpace(o.Detail))
		}
	}
	_, err = fmt.Fprintf(out, "%d of %d regressions noticed, %d not run here\n", noticed, len(all), notRun)
	return ok, err
}

// A regressionGroup is the regressions that the tests of one package have to notice.
type regressionGroup struct {
	*bench
	changes map[*regression]change
	errs    map[*regression]error // why there is no change
	numbers map[*regression]int   // of the changes in the program
	program string
	err     error              // of building it
	tests   map[string]testRun // without a change, by environment and name
}

// newRegressionGroup builds the tests once for all changes that one program can hold.
func newRegressionGroup(b *bench, all []*regression) (*regressionGroup, error) {
	g := &regressionGroup{bench: b, changes: map[*regression]change{}, errs: map[*regression]error{}, numbers: map[*regression]int{}, program: filepath.Join(b.dir, "without")}
	var together []*regression
	var changes []change
	for _, r := range all {
		c, err := r.apply(b.wd)
		if g.changes[r], g.errs[r] = c, err; err == nil {
			together, changes = append(together, r), append(changes, c)
		}
	}
	overlay, numbers, err := b.combine(changes)
	if err != nil {
		return nil, err
	}
	for i, r := range together {
		g.numbers[r] = numbers[i]
	}
	g.prepare(all[0].dir, overlay)
	return g, b.ctx.Err()
}

// prepare builds the tests without a change, or with all that the overlay holds.
func (g *regressionGroup) prepare(dir, overlay string) {
	g.tests = map[string]testRun{}
	g.err = g.build(dir, g.program, overlay)
}

// before runs the test of a regression without a change.
func (g *regressionGroup) before(r *regression) (t testRun, err error) {
	key := r.stage + " " + r.test
	if t, ok := g.tests[key]; ok || g.err != nil {
		return t, g.err
	}
	g.tests[key], err = g.runTest(r, g.program, "", time.Hour)
	return g.tests[key], err
}

// A testRun is the result of one test.
type testRun struct {
	passed, skipped, failed, started, hung bool
	took                                   time.Duration
	output                                 string
}

// try runs the test of a regression, first without the change and then with it.
func (g *regressionGroup) try(r *regression) (*outcome, error) {
	o := &outcome{Name: r.name, What: r.what, Package: r.dir, Test: r.test, Outcome: outcomeBroken}
	for _, h := range r.hunks {
		if !slices.Contains(o.Files, h.file) {
			o.Files = append(o.Files, h.file)
		}
	}
	if err := g.errs[r]; err != nil {
		o.Detail = err.Error()
		return o, nil
	}
	before, err := g.before(r)
	if (err != nil || before.started && !before.passed && !before.skipped) && g.ctx.Err() == nil {
		// It may fail because the program holds changes, although none is chosen.
		clear(g.numbers)
		g.prepare(r.dir, "")
		before, err = g.before(r)
	}
	switch {
	case g.ctx.Err() != nil:
		return nil, g.ctx.Err()
	case err != nil:
		o.Detail = "without the change: " + err.Error()
		return o, nil
	case before.skipped && r.needs != "":
		o.Outcome, o.Detail = outcomeNotRun, "needs "+r.needs+"\n"+before.output
		return o, nil
	case !before.started:
		o.Detail = "the package has no such test"
		return o, nil
	case !before.passed:
		o.Detail = "without the change the test does not pass:\n" + before.output
		return o, nil
	}
	if g.numbers[r] > 0 {
		if err := g.after(r, o, before.took, g.numbers[r]); err != nil || o.good() {
			return o, err
		}
	}
	return o, g.after(r, o, before.took, 0)
}

// after sets the outcome of a regression, whose change the program of the group has under a number, or
// which is built for it.
func (g *regressionGroup) after(r *regression, o *outcome, took time.Duration, number int) error {
	overlay, err := g.overlay("changed", g.changes[r])
	if err != nil {
		return err
	}
	program := withVariant(filepath.Join(g.dir, "with"), number)
	defer func() { _ = os.Remove(program) }()
	if number > 0 {
		err = os.Link(g.program, program)
	} else if err = g.build(r.dir, program, overlay); err != nil && g.ctx.Err() == nil {
		o.Detail = "with the change it does not compile: " + err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	after, err := g.runTest(r, program, overlay, max(g.minimum, 3*took))
	if err != nil {
		return err
	}
	o.Seconds, o.Detail = after.took.Seconds(), ""
	switch {
	case after.failed:
		o.Outcome = outcomeFailed
	case after.hung:
		o.Outcome = outcomeHung
	case after.passed || after.skipped || !after.started:
		o.Outcome, o.Detail = outcomePassed, "the test does not notice:\n"+after.output
	default:
		o.Outcome = outcomeCrashed
	}
	return nil
}

// overlay writes changed files, whose names begin with a prefix, and returns the file that tells
// the go command of them.
func (b *bench) overlay(prefix string, changed map[string][]byte) (string, error) {
	replace := map[string]string{}
	for path, source := range changed {
		file := filepath.Join(b.dir, fmt.Sprintf("%s%d%s", prefix, len(replace), filepath.Ext(path)))
		if err := os.WriteFile(file, source, 0o600); err != nil {
			return "", err
		}
		replace[path] = file
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(b.dir, prefix+".json")
	return file, os.WriteFile(file, text, 0o600)
}

// runTest runs one test. Programs that it builds have the change too.
func (b *bench) runTest(r *regression, program, overlay string, limit time.Duration) (testRun, error) {
	var pattern []string
	for part := range strings.SplitSeq(r.test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	// The limit of the process is longer, so that the test can say what it waits for.
	ctx, cancel := context.WithTimeout(b.ctx, limit+time.Minute)
	defer cancel()
	c := command(ctx, program, "-test.v", "-test.count=1", "-test.paniconexit0", "-test.timeout="+limit.String(), "-test.run="+strings.Join(pattern, "/"))
	c.Dir = filepath.Join(b.wd, r.dir)
	c.Env = append(os.Environ(), "PWD="+c.Dir, "TMPDIR="+filepath.Join(b.dir, "t"), "METE_STAGE="+r.stage)
	if overlay != "" {
		c.Env = append(c.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	began := time.Now()
	err := c.Run()
	t := testRun{took: time.Since(began), hung: ctx.Err() != nil, output: output.String()}
	killGroup(c)
	if b.ctx.Err() != nil {
		return t, b.ctx.Err()
	}
	_, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited && !t.hung {
		return t, err
	}
	t.started = strings.Contains(t.output, "=== RUN   "+r.test+"\n")
	t.skipped = strings.Contains(t.output, "--- SKIP: "+r.test+" (")
	t.failed = strings.Contains(t.output, "--- FAIL: "+r.test+" (")
	t.passed = err == nil && strings.Contains(t.output, "--- PASS: "+r.test+" (")
	t.hung = t.hung || strings.Contains(t.output, "panic: test timed out after ")
	return t, nil
}

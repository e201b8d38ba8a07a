package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A target is a package to be changed.
type target struct {
	path       string
	suites     []*suite // in the order in which they run
	sources    map[string][]byte
	mutants    []*mutant
	statements int

	check func(*mutant) error // whether the package compiles with the change
}

// A suite is the tests of a package. Targets share it.
type suite struct {
	path, dir string
	runs      []way  // none before the first mutant
	program   string // with many mutants; empty: its tests fail with these though none is chosen
}

// A way is how a suite runs.
type way struct {
	flags, env []string
	limit      time.Duration // of its wall time
	cpu        time.Duration // of the CPU time of the program, without its child processes; 0: no limit
	output     io.Writer     // nil: none
}

// Some code is only for PostgreSQL. The tests of it have this word in their names and belong to
// this stage, which the default gate leaves out.
const postgresTests, postgresStage = "PostgreSQL", "METE_STAGE=postgres"

// A result is what the tests say about a mutant.
type result int

const (
	invalid result = iota // it does not compile
	killed
	hung // it ran for much longer than the unchanged code
	survived
)

// A bench builds and runs tests.
type bench struct {
	ctx     context.Context
	minimum time.Duration
	dir     string // for what it makes
	wd      string

	programs int    // with many mutants
	variants string // the overlay with many mutants; empty: none
	postgres string // the program of a PostgreSQL server
}

func newBench(ctx context.Context, minimum time.Duration) (*bench, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	// Tests with processes of other users let these look into directories for temporary files.
	tmp := filepath.Join(dir, "t")
	err = errors.Join(os.Mkdir(tmp, 0o700), os.Chmod(tmp, 0o777|os.ModeSticky), os.Chmod(dir, 0o711))
	return &bench{ctx: ctx, minimum: minimum, dir: dir, wd: wd, postgres: "/usr/lib/postgresql/15/bin/postgres"}, err
}

func (b *bench) close() { _ = os.RemoveAll(b.dir) } // what is left is in the directory for temporary files

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export            string
	GoFiles, TestGoFiles, XTestGoFiles []string
	CgoFiles, Deps                     []string
	DepOnly                            bool
	ImportMap                          map[string]string
	Module                             *struct{ Path string }
}

func (l *listed) tested() bool { return len(l.TestGoFiles)+len(l.XTestGoFiles) > 0 }

// list runs go list.
func (b *bench) list(args ...string) (all []*listed, err error) {
	out, err := b.run("go", append([]string{"list", "-json=ImportPath,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles,CgoFiles,Deps,DepOnly,ImportMap,Module"}, args...)...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		l := new(listed)
		if err := d.Decode(l); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, l)
	}
}

// load finds the packages of a pattern, all their mutants and the tests for these.
func (b *bench) load(pattern string) ([]*target, error) {
	all, err := b.list("-export", "-deps", pattern)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	var found []*listed
	for _, l := range all {
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			found = append(found, l)
		}
	}
	suites, err := b.suites(found)
	if err != nil {
		return nil, err
	}
	var targets []*target
	for _, l := range found {
		if len(l.CgoFiles) > 0 {
			return nil, fmt.Errorf("%s: packages with C code are not supported", l.ImportPath)
		}
		t, err := b.newTarget(l, exports)
		if err != nil {
			return nil, err
		}
		t.suites = suites[l]
		targets = append(targets, t)
	}
	return targets, nil
}

// suites returns the tests for each package: its own, then those of the packages in the
// directories above it, within the module, that import it directly or indirectly.
func (b *bench) suites(packages []*listed) (map[*listed][]*suite, error) {
	above := map[string]*listed{} // by path; nil: a directory without a package
	for _, l := range packages {
		for dir := range parents(l) {
			above[dir] = nil
		}
	}
	if len(above) > 0 {
		all, err := b.list(append([]string{"-e"}, slices.Sorted(maps.Keys(above))...)...)
		if err != nil {
			return nil, err
		}
		for _, l := range all {
			above[l.ImportPath] = l
		}
	}
	known := map[string]*suite{}
	found := map[*listed][]*suite{}
	add := func(l, tests *listed) {
		if !tests.tested() {
			return
		}
		if known[tests.ImportPath] == nil {
			known[tests.ImportPath] = &suite{path: tests.ImportPath, dir: tests.Dir}
		}
		found[l] = append(found[l], known[tests.ImportPath])
	}
	for _, l := range packages {
		add(l, l)
		for dir := range parents(l) {
			if p := above[dir]; p != nil && slices.Contains(p.Deps, l.ImportPath) {
				add(l, p)
			}
		}
	}
	return found, nil
}

// parents returns the import paths of the directories above a package, the nearest first.
func parents(l *listed) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p := l.ImportPath; l.Module != nil && p != l.Module.Path; {
			if p = path.Dir(p); !yield(p) {
				return
			}
		}
	}
}

// newTarget parses and checks a package. exports are the files with the types of all packages.
func (b *bench) newTarget(l *listed, exports map[string]string) (*target, error) {
	t := &target{path: l.ImportPath, sources: map[string][]byte{}}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if mapped, ok := l.ImportMap[path]; ok {
			path = mapped
		}
		return os.Open(exports[path])
	})
	check := func(files []*ast.File, info *types.Info) error {
		_, err := (&types.Config{Importer: imports}).Check(t.path, fset, files, info)
		return err
	}
	var files []*ast.File
	for _, name := range l.GoFiles {
		path := filepath.Join(l.Dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		t.sources[path] = source
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if err := check(files, info); err != nil {
		return nil, err
	}
	for i, file := range files {
		path := filepath.Join(l.Dir, l.GoFiles[i])
		if generated(t.sources[path], file) {
			continue
		}
		name := path
		if short, err := filepath.Rel(b.wd, path); err == nil && filepath.IsLocal(short) {
			name = short
		}
		f := &finder{fset: fset, info: info, source: t.sources[path], path: path, name: name}
		f.find(file)
		t.mutants = append(t.mutants, f.mutants...)
		t.statements += f.statements
	}
	t.check = func(m *mutant) error {
		i := slices.Index(l.GoFiles, filepath.Base(m.path))
		f, err := parser.ParseFile(fset, m.path, m.apply(t.sources[m.path]), parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		changed := slices.Clone(files)
		changed[i] = f
		return check(changed, nil)
	}
	return t, nil
}

// test runs the tests for a mutant, one suite after another until one fails, and then those
// of them that need PostgreSQL, which take longer.
func (b *bench) test(t *target, m *mutant) (result, error) {
	programs := make([]string, len(t.suites))
	for round := range 2 {
		for i, s := range t.suites {
			if s.runs == nil {
				if err := b.measure(s); err != nil {
					return 0, err
				}
			}
			if round >= len(s.runs) {
				continue
			}
			if round == 0 {
				programs[i] = filepath.Join(b.dir, withVariant(fmt.Sprintf("tests%d", i), m.variant))
				defer func() { _ = os.Remove(programs[i]) }()
				if err := b.program(t, s, m, programs[i]); err != nil && b.ctx.Err() == nil {
					return invalid, nil // by a rule that only the compiler has
				} else if err != nil {
					return 0, err
				}
			}
			if r, _, err := b.try(s, programs[i], s.runs[round]); r != survived {
				return r, err
			}
		}
	}
	return survived, nil
}

// change returns the file that a mutant changes.
func (t *target) change(m *mutant) change { return change{m.path: m.apply(t.sources[m.path])} }

// program makes a test program with one mutant.
func (b *bench) program(t *target, s *suite, m *mutant, program string) error {
	if m.variant > 0 && s.program != "" {
		return os.Link(s.program, program)
	}
	overlay, err := b.overlay("changed", t.change(m))
	if err != nil {
		return err
	}
	return b.build(s.path, program, overlay)
}

// measure runs tests without a mutant, and sets how the other runs are done.
func (b *bench) measure(s *suite) error {
	if b.variants != "" {
		program := filepath.Join(b.dir, fmt.Sprintf("variants%d", b.programs))
		b.programs++
		err := b.build(s.path, program, b.variants)
		if err == nil {
			err = b.measureProgram(s, program)
		}
		if s.program = program; err == nil || b.ctx.Err() != nil {
			return err
		}
		s.program = "" // tests of allocations may fail, because functions with mutants are not inlined
	}
	program := filepath.Join(b.dir, "unchanged")
	if err := b.build(s.path, program, ""); err != nil {
		return err
	}
	return b.measureProgram(s, program)
}

// measureProgram sets how a suite runs by what its program does without a mutant.
func (b *bench) measureProgram(s *suite, program string) error {
	var all way
	// Package rapid would draw other values in each run, search for the smallest that fail, and keep
	// them in testdata.
	rapid := []string{"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=0s"}
	if _, err := b.run(program, append(rapid, "-test.list=^$")...); err == nil {
		all.flags = rapid
	}
	runs := []way{all}
	names, err := b.run(program, "-test.list="+postgresTests)
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.postgres); err == nil && os.Getenv("METE_STAGE") == "" && bytes.Contains(names, []byte("Test")) {
		runs = append(runs, way{flags: append(slices.Clone(all.flags), "-test.run="+postgresTests), env: []string{postgresStage}})
	}
	for i := range runs {
		began := time.Now()
		var out bytes.Buffer
		switch r, cpu, err := b.try(s, program, way{flags: runs[i].flags, env: runs[i].env, limit: time.Hour, output: &out}); {
		case err != nil:
			return err
		case r == hung:
			return fmt.Errorf("%s: the tests stand still without any change", s.path)
		case r != survived:
			return fmt.Errorf("%s: the tests fail without any change:\n%s", s.path, &out)
		default:
			// Of two limits, that of CPU time holds on a busy machine too.
			runs[i].limit, runs[i].cpu = max(b.minimum, 10*time.Since(began)), b.minimum+3*cpu
		}
	}
	s.runs = runs
	return nil
}

// build builds the tests of a package, with an overlay unless it is empty.
func (b *bench) build(dir, program, overlay string) error {
	args := []string{"test", "-c", "-ldflags=-s -w", "-o", program}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	_, err := b.run("go", append(args, dir)...)
	return err
}

// try runs a test program, and returns its CPU time if it survives.
func (b *bench) try(s *suite, program string, run way) (result, time.Duration, error) {
	limited, end := context.WithTimeout(b.ctx, run.limit)
	defer end()
	ctx, cancel := context.WithCancel(limited)
	defer cancel()
	c := command(ctx, program, append([]string{"-test.short=false", "-test.count=1", "-test.failfast", "-test.paniconexit0"}, run.flags...)...)
	// Tests that are killed leave their files and processes.
	c.Dir, c.Env = s.dir, append(append(os.Environ(), "PWD="+s.dir, "TMPDIR="+filepath.Join(b.dir, "t")), run.env...)
	c.Stdout, c.Stderr = run.output, run.output
	if err := c.Start(); err != nil {
		if limited.Err() != nil && b.ctx.Err() == nil {
			return hung, 0, nil // its time was over before it began
		}
		return 0, 0, err
	}
	go watch(ctx, c.Process.Pid, run.cpu, cancel)
	err := c.Wait()
	killGroup(c)
	_, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case b.ctx.Err() != nil:
		return 0, 0, b.ctx.Err()
	case ctx.Err() != nil:
		return hung, 0, nil
	case failed:
		return killed, 0, nil
	case err != nil:
		return 0, 0, err
	}
	return survived, c.ProcessState.UserTime() + c.ProcessState.SystemTime(), nil
}

// watchEvery is the time between two looks at a test program, and idleLooks the number of looks within
// which a program that used nearly no CPU time is taken to wait forever: a minute.
const (
	watchEvery = 2 * time.Second
	idleLooks  = 30
)

// watch calls stop when a program has used up its CPU time, or waits forever.
func watch(ctx context.Context, pid int, limit time.Duration, stop func()) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var looks []time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var at unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|2), &at) != nil { // the clock of the CPU time of a process
			return // it has ended
		}
		if looks = append(looks, time.Duration(at.Nano())); isHung(looks, limit) {
			stop()
			return
		}
	}
}

// isHung reports whether a program hangs, by its CPU time at each look.
func isHung(looks []time.Duration, limit time.Duration) bool {
	last := len(looks) - 1
	if limit > 0 && looks[last] > limit {
		return true
	}
	return last >= idleLooks && looks[last]-looks[last-idleLooks] < idleLooks*watchEvery/100
}

// run returns the output of a program, whose error has its messages.
func (b *bench) run(name string, args ...string) ([]byte, error) {
	c := command(b.ctx, name, args...)
	var out, messages bytes.Buffer
	c.Stdout, c.Stderr = &out, &messages
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &messages)
	}
	return out.Bytes(), nil
}

// command returns a command that is killed with its child processes when ctx ends.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

// killGroup ends what a command has left running.
func killGroup(c *exec.Cmd) {
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // none is left as a rule
	}
}

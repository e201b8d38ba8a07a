// Command gate checks the whole project: before every commit with -fast, and
// whole in CI.
//
//	go run ./tools/gate [-fast] [-only STAGE,...] [-list]
//
// Stages run in order and all of them run, whatever fails; the output of a
// failing one is shown in full. The exit code is 1 if any failed, 2 for a wrong
// command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A stage is one check.
type stage struct {
	name string
	what string // for -list
	full bool   // left out by -fast
	// budget is the wall time that the stage should need on two idle cores
	// with warm caches. Being over it is shown. As wall time says more of the
	// neighbours than of the code, it alone fails nothing: CPU time of three
	// budgets does.
	budget time.Duration
	run    func(*shell) error
}

// A skip is why a stage could not be run here. It fails nothing.
type skip string

func (s skip) Error() string { return string(s) }

// errHangs ends a stage that would never end by itself.
var errHangs = errors.New("stopped after ten times its budget")

// A result is how a stage went.
type result struct {
	stage
	err       error
	wall, cpu time.Duration
}

func main() {
	var (
		fast = flag.Bool("fast", false, "only what every commit needs")
		only = flag.String("only", "", "only these `stages`, with commas between")
		list = flag.Bool("list", false, "list the stages and end")
	)
	flag.Parse()
	chosen, err := choose(stages(), *fast, *only)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err == nil {
		err = toRoot()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gate: %v\n", err)
		os.Exit(2)
	}
	if *list {
		for _, s := range chosen {
			fmt.Printf("%-10s %s\n", s.name, s.what)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	failed := run(ctx, chosen, os.Stdout)
	stop()
	if failed > 0 {
		os.Exit(1)
	}
}

// choose keeps of all the stages that are wanted, and fails on a name that there is not.
func choose(all []stage, fast bool, only string) ([]stage, error) {
	if only == "" {
		return slices.DeleteFunc(all, func(s stage) bool { return fast && s.full }), nil
	}
	names := strings.Split(only, ",")
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s stage) bool { return s.name == name }) {
			return nil, fmt.Errorf("no stage %q; -list shows them", name)
		}
	}
	return slices.DeleteFunc(all, func(s stage) bool { return !slices.Contains(names, s.name) }), nil
}

// toRoot makes the module's root the working directory.
func toRoot() error {
	sh := shell{ctx: context.Background()}
	mod, err := sh.output("go", "env", "GOMOD")
	if err != nil {
		return err
	}
	dir, ok := strings.CutSuffix(strings.TrimSpace(mod), "/go.mod")
	if !ok {
		return errors.New("not inside the module")
	}
	return os.Chdir(dir)
}

// run runs the stages, prints how they went and returns how many failed.
func run(ctx context.Context, stages []stage, out io.Writer) (failed int) {
	results := make([]result, 0, len(stages))
	for _, s := range stages {
		fmt.Fprintf(out, "== %s: %s\n", s.name, s.what)
		start := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, max(10*s.budget, 10*time.Minute), errHangs)
		sh := shell{ctx: limited}
		err := s.run(&sh)
		cancel()
		r := judge(s, err, time.Since(start), sh.cpu)
		if r.failed() {
			failed++
			fmt.Fprint(out, sh.out.String())
		}
		fmt.Fprintln(out, r)
		results = append(results, r)
		if ctx.Err() != nil {
			fmt.Fprintln(out, "interrupted")
			failed = max(failed, 1)
			break
		}
	}
	fmt.Fprintln(out, "\n== summary")
	skipped := 0
	for _, r := range results {
		fmt.Fprintln(out, r)
		if r.skipped() {
			skipped++
		}
	}
	if skipped > 0 {
		fmt.Fprintf(out, "%d skipped\n", skipped)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", len(results)-skipped-min(failed, len(results)), failed)
	return failed
}

// judge holds a stage's times against its budget.
func judge(s stage, err error, wall, cpu time.Duration) result {
	if err == nil && cpu > 3*s.budget {
		err = fmt.Errorf("took %v of CPU time, more than three times its budget of %v", round(cpu), s.budget)
	}
	return result{stage: s, err: err, wall: wall, cpu: cpu}
}

func (r result) skipped() bool {
	_, ok := errors.AsType[skip](r.err)
	return ok
}

func (r result) failed() bool { return r.err != nil && !r.skipped() }

// String is a result's line: verdict, name, times, and why.
func (r result) String() string {
	verdict := "ok  "
	switch {
	case r.failed():
		verdict = "FAIL"
	case r.skipped():
		verdict = "skip"
	}
	line := fmt.Sprintf("%s %-10s %6s wall %6s cpu, budget %s", verdict, r.name, round(r.wall), round(r.cpu), r.budget)
	if r.wall > r.budget {
		line += " OVER"
	}
	if r.err != nil {
		line += ": " + r.err.Error()
	}
	return line
}

func round(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

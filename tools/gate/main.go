// Command gate checks the whole project.
//
//	go run ./tools/gate            the checks before a change lands, also run by CI
//	go run ./tools/gate -fast      the checks before a commit: changed packages and their direct importers
//	go run ./tools/gate -all       everything: load, races, other programs, virtual machines, benchmarks
//	go run ./tools/gate -stage A,B only these stages
//	go run ./tools/gate -slow 5    the same on a fifth of the machine's CPU time
//	go run ./tools/gate -list      the stages; with -all all of them
//
// Stages run in order and all of them run, whatever fails; the output of a
// failing one is shown in full. The verdict depends on results alone, never on
// time: a stage's budget is shown beside its times, and one limit on the whole
// run ends what hangs. The exit code is 1 if a stage failed, 2 for a wrong
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
	when schedule
	// budget is the wall time that the stage should need on two idle cores with warm
	// caches. It is displayed but not enforced, because wall time depends on other load of
	// the machine too.
	budget time.Duration
	needs  []string // Debian packages
	run    func(*shell) error
}

// schedule is the smallest run that includes a stage.
type schedule uint8

const (
	commit  schedule = iota // in every run
	landing                 // left out by -fast
	release                 // runs with -all only
)

// A skip is the reason why a stage cannot run here. It is not a failure.
type skip string

func (s skip) Error() string { return string(s) }

// A result is the outcome of a stage.
type result struct {
	stage
	err       error
	wall, cpu time.Duration
}

// Time limits of a whole run, after which it counts as hanging. CI ends a run after 90
// minutes without output.
const (
	limit    = 85 * time.Minute
	allLimit = 12 * time.Hour
)

func main() { os.Exit(gate()) }

func gate() int {
	var (
		fast = flag.Bool("fast", false, "only the checks before a commit")
		all  = flag.Bool("all", false, "all stages")
		only = flag.String("stage", "", "only these `stages`, separated by commas")
		slow = flag.Float64("slow", 1, "run on 1/`N` of the machine's CPU time (needs root)")
		list = flag.Bool("list", false, "list the stages and exit")
	)
	flag.Parse()
	wrong := func(err error) int {
		fmt.Fprintf(os.Stderr, "gate: %v\n", err)
		return 2
	}
	if flag.NArg() > 0 {
		return wrong(fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	chosen, err := choose(stages(), *fast, *all, *only)
	if err == nil {
		err = prepare()
	}
	if err != nil {
		return wrong(err)
	}
	if *list {
		for _, s := range chosen {
			fmt.Printf("%-14s %s\n", s.name, s.what)
		}
		return 0
	}
	if *slow != 1 {
		end, err := slowDown(*slow)
		if err != nil {
			return wrong(fmt.Errorf("-slow %g: %w", *slow, err))
		}
		defer end()
	}
	longest := limit
	if *all || *only != "" {
		longest = allLimit
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the gate hangs: stopped after %v", longest))
	defer cancel()
	packages, err := scope(ctx, *fast)
	if err != nil {
		return wrong(err)
	}
	if failed := run(ctx, chosen, packages, os.Stdout); failed > 0 {
		return 1
	}
	return 0
}

// choose selects the stages to run, and fails on an unknown name.
func choose(all []stage, fast, every bool, only string) ([]stage, error) {
	if only == "" {
		widest := landing
		switch {
		case fast && every:
			return nil, errors.New("-fast and -all exclude each other")
		case fast:
			widest = commit
		case every:
			widest = release
		}
		return slices.DeleteFunc(all, func(s stage) bool { return s.when > widest }), nil
	}
	names := strings.Split(only, ",")
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s stage) bool { return s.name == name }) {
			return nil, fmt.Errorf("no stage %q; -all -list shows them", name)
		}
	}
	return slices.DeleteFunc(all, func(s stage) bool { return !slices.Contains(names, s.name) }), nil
}

// prepare changes to the module's root, and sets flags of the go command that keep paths
// and commits out of its builds, so that its cache is valid in other directories and after
// a commit.
func prepare() error {
	sh := shell{ctx: context.Background()}
	out, err := sh.output("go", "env", "GOMOD", "GOFLAGS")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, sh.out.String())
	}
	mod, flags, _ := strings.Cut(out, "\n")
	dir, ok := strings.CutSuffix(mod, "/go.mod")
	if !ok {
		return errors.New("not inside the module")
	}
	return errors.Join(os.Chdir(dir), os.Setenv("GOFLAGS", strings.TrimSpace(strings.TrimSpace(flags)+" -trimpath -buildvcs=false")))
}

// run runs the stages over the packages, prints the results and returns the number of
// failures.
func run(ctx context.Context, stages []stage, packages []string, out io.Writer) (failed int) {
	results := make([]result, 0, len(stages))
	start := time.Now()
	for _, s := range stages {
		fmt.Fprintf(out, "== %s: %s\n", s.name, s.what)
		began := time.Now()
		sh := shell{ctx: ctx, packages: packages, progress: out}
		err := install(&sh, s.needs)
		if err == nil {
			err = s.run(&sh)
		}
		r := result{stage: s, err: err, wall: time.Since(began), cpu: sh.cpu}
		if r.failed() {
			failed++
			fmt.Fprint(out, sh.out.String())
		}
		fmt.Fprintln(out, r)
		results = append(results, r)
		if ctx.Err() != nil {
			fmt.Fprintf(out, "stopped: %v\n", context.Cause(ctx))
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
	fmt.Fprintf(out, "%v in all\n", round(time.Since(start)))
	if skipped > 0 {
		fmt.Fprintf(out, "%d skipped\n", skipped)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", len(results)-skipped-min(failed, len(results)), failed)
	return failed
}

func (r result) skipped() bool {
	_, ok := errors.AsType[skip](r.err)
	return ok
}

func (r result) failed() bool { return r.err != nil && !r.skipped() }

// String returns a result's line: verdict, name, times, and the reason.
func (r result) String() string {
	verdict := "ok  "
	switch {
	case r.failed():
		verdict = "FAIL"
	case r.skipped():
		verdict = "skip"
	}
	line := fmt.Sprintf("%s %-14s %8s wall %8s cpu, budget %s", verdict, r.name, round(r.wall), round(r.cpu), r.budget)
	if r.wall > r.budget {
		line += " OVER"
	}
	if r.err != nil {
		line += ": " + r.err.Error()
	}
	return line
}

func round(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

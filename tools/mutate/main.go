// Command mutate measures how much the tests of a package notice:
//
//	go run ./tools/mutate ./internal/model/batch -seed 1
//
// It draws changes of the package's Go files at random, each of which makes one small mistake,
// and runs tests with each: the package's own, and if these notice nothing, those of the packages in
// the directories above it that import it. A change that no test notices survives and is
// printed. The exit code is 1 if too many survive. A pattern that ends in /... draws from all
// its packages, in proportion to their statements. Tests that need PostgreSQL run last, if
// it is installed and METE_STAGE is not set.
//
//	go run ./tools/mutate -regressions ./tools/mutate/regressions [NAME...]
//
// It undoes each fix of which the directory has a regression, and expects that the test of
// the regression fails.
//
// No file of the tree is changed: the go command gets each change as an overlay. The tests run
// with the rights of the user, and a mistake may be in code that removes files or kills
// processes: test such packages as a user with few rights.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxData is how much memory, in bytes, a test may allocate: a mistake in a loop may allocate
// without end.
const maxData = 4 << 30

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := parseFlags(os.Args[1:])
	if err == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: maxData, Max: maxData})
	}
	var passed bool
	switch {
	case err != nil:
	case c.regressions != "":
		passed, err = c.runRegressions(ctx, os.Stdout, os.Stderr)
	default:
		passed, err = c.run(ctx, os.Stdout, os.Stderr)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	case !passed:
		os.Exit(1)
	}
}

// A config is what the command line says.
type config struct {
	pattern string
	seed    uint64
	n       int // number of mutants
	want    int // of 60 mutants, how many have to be killed
	json    bool
	again   string        // a file with the output of an earlier run
	minimum time.Duration // the shortest time limit of a test run

	regressions string   // a directory: test these instead of mutants
	names       []string // of regressions; none: all
}

// parseFlags reads a command line, whose flags may follow the package.
func parseFlags(args []string) (*config, error) {
	c := &config{minimum: 10 * time.Second}
	var patterns []string
	var output string
	set := flag.NewFlagSet("mutate", flag.ContinueOnError)
	set.Uint64Var(&c.seed, "seed", 1, "seed of the draw: the same seed draws the same mutants of the same code")
	set.IntVar(&c.n, "n", 60, "number of mutants")
	set.IntVar(&c.want, "want", 57, "of 60 mutants, how many have to be killed")
	set.StringVar(&c.again, "again", "", "a file with the output of an earlier run: test only the survivors in it")
	set.StringVar(&output, "o", "text", "output: text or json")
	set.StringVar(&c.regressions, "regressions", "", "a directory with regressions: test all of them, or those that are named")
	for {
		if err := set.Parse(args); err != nil {
			return nil, err
		}
		if set.NArg() == 0 {
			break
		}
		patterns = append(patterns, set.Arg(0))
		args = set.Args()[1:]
	}
	if c.regressions != "" && (output == "text" || output == "json") {
		c.names, c.json, c.minimum = patterns, output == "json", 40*time.Second // testkit.Eventually gives up 10 s earlier
		return c, nil
	}
	if len(patterns) != 1 || c.n < 1 || output != "text" && output != "json" {
		return nil, errors.New("usage: mutate PACKAGE [-seed N] [-n 60] [-want 57] [-o text|json] [-again FILE], or mutate -regressions DIR [NAME...] [-o text|json]")
	}
	c.pattern, c.json = patterns[0], output == "json"
	return c, nil
}

// A report is the result of all mutants.
type report struct {
	Package   string   `json:"package"`
	Seed      uint64   `json:"seed"`
	Killed    int      `json:"killed"` // including those that hung
	Total     int      `json:"total"`
	Invalid   int      `json:"invalid"` // drawn, and not counted because they do not compile
	Hung      []mutant `json:"hung"`
	Survivors []mutant `json:"survivors"`
}

// run draws mutants and tests each. It reports whether enough were killed.
func (c *config) run(ctx context.Context, out, progress io.Writer) (bool, error) {
	b, err := newBench(ctx, c.minimum)
	if err != nil {
		return false, err
	}
	defer b.close()
	packages, err := b.load(c.pattern)
	if err != nil {
		return false, err
	}
	if c.again != "" {
		earlier, err := os.ReadFile(c.again)
		if err != nil {
			return false, err
		}
		lines := strings.Split(string(earlier), "\n")
		for _, p := range packages {
			p.mutants = slices.DeleteFunc(p.mutants, func(m *mutant) bool {
				// Where the file has the progress too, a line begins with it.
				return !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, "survived "+m.String()) })
			})
		}
	}
	r := report{Package: c.pattern, Seed: c.seed, Hung: []mutant{}, Survivors: []mutant{}}
	show := func(word string, m *mutant) {
		if !c.json {
			fmt.Fprint(progress, "\r\x1b[K") // the line is for out
			fmt.Fprintf(out, "%s %v\n", word, m)
		}
	}
	var all []drawn
	var changes []change
	for d := newDraw(packages, c.seed); len(all) < c.n; {
		p, m := d.next()
		if m == nil {
			break // there are no more
		}
		if p.check(m) == nil {
			all, changes = append(all, drawn{p, m}), append(changes, p.change(m))
		} else {
			r.Invalid++
		}
	}
	overlay, numbers, err := b.combine(changes)
	if err != nil {
		return false, err
	}
	b.variants = overlay
	for i, d := range all {
		d.variant = numbers[i]
		result, err := b.test(d.target, d.mutant)
		if err != nil {
			return false, err
		}
		r.Total++
		switch result {
		case invalid:
			r.Total--
			r.Invalid++
		case killed:
			r.Killed++
		case hung:
			r.Killed++
			r.Hung = append(r.Hung, *d.mutant)
			show("hung", d.mutant)
		case survived:
			r.Survivors = append(r.Survivors, *d.mutant)
			show("survived", d.mutant)
		}
		fmt.Fprintf(progress, "\r%d/%d killed ", r.Killed, r.Total)
	}
	fmt.Fprint(progress, "\r\x1b[K")
	if r.Total == 0 {
		return false, fmt.Errorf("%s has nothing to change", c.pattern)
	}
	if c.json {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return r.enough(c.want), e.Encode(&r)
	}
	_, err = fmt.Fprintf(out, "%s, seed %d: %d/%d killed, %d of them hung\n", r.Package, r.Seed, r.Killed, r.Total, len(r.Hung))
	return r.enough(c.want), err
}

// enough reports whether want of 60 mutants, in proportion, were killed.
func (r *report) enough(want int) bool { return 60*r.Killed >= want*r.Total }

// A drawn mutant and its package.
type drawn struct {
	*target
	*mutant
}

// A draw takes mutants of packages at random, none twice.
type draw struct {
	rand     *rand.Rand
	packages []*target
}

// newDraw returns a draw of all mutants. It depends on nothing but the code and the seed.
func newDraw(packages []*target, seed uint64) *draw {
	d := &draw{rand: rand.New(rand.NewPCG(seed, 0))}
	for _, p := range packages {
		if len(p.mutants) == 0 {
			continue
		}
		d.rand.Shuffle(len(p.mutants), func(i, j int) { p.mutants[i], p.mutants[j] = p.mutants[j], p.mutants[i] })
		d.packages = append(d.packages, p)
	}
	return d
}

// next returns the next mutant and its package, and nil if none is left. A package is drawn in
// proportion to its statements.
func (d *draw) next() (*target, *mutant) {
	sum := 0
	for _, p := range d.packages {
		sum += p.statements
	}
	if sum == 0 {
		return nil, nil
	}
	at := d.rand.IntN(sum)
	for i, p := range d.packages {
		if at -= p.statements; at >= 0 {
			continue
		}
		m := p.mutants[0]
		if p.mutants = p.mutants[1:]; len(p.mutants) == 0 {
			d.packages = append(d.packages[:i:i], d.packages[i+1:]...)
		}
		return p, m
	}
	panic("mutate: the sum of all parts is too large")
}

package torture

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
)

// Faults of the wall clock. The real clock is shared, so the agent is built with a time.Now
// that adds an offset from a file.

// replaceClock writes the changed files of package time to dir, and returns their paths by
// the source files that they replace or add.
func replaceClock(t *testing.T, dir string) map[string]string {
	pkg := sourceDir(t, "time")
	source := filepath.Join(pkg, "time.go")
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const now = "sec, nsec, mono := runtimeNow()\n"
	if n := strings.Count(string(b), now); n != 1 {
		t.Fatalf("%s: %d occurrences of %q, want 1: time.Now has changed", source, n, now)
	}
	replaced := strings.Replace(string(b), now, now+"\tsec, nsec = skewed(sec, nsec)\n", 1)
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"time.go": replaced, "skew.go": skewSource} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]string{source: at("time.go"), filepath.Join(pkg, "skew.go"): at("skew.go")}
}

// skewSource maps the file into memory, because Now must not block.
const skewSource = `package time

import (
	"syscall"
	"unsafe"
)

// skew is the offset of wall time in ns: the first eight bytes of the file named by
// METE_TORTURE_CLOCK, or nil.
var skew *int64

func init() {
	name, _ := syscall.Getenv("METE_TORTURE_CLOCK")
	if name == "" {
		return
	}
	f, err := open(name)
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(int(f), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	closefd(f)
	skew = (*int64)(unsafe.Pointer(&b[0]))
}

func skewed(sec int64, nsec int32) (int64, int32) {
	if skew == nil {
		return sec, nsec
	}
	all := int64(nsec) + *skew
	sec, all = sec+all/1e9, all%1e9
	if all < 0 {
		sec, all = sec-1, all+1e9
	}
	return sec, int32(all)
}
`

// A wallClock is the clock of the agent's machine.
type wallClock struct {
	path  string    // file of the offset
	due   time.Time // time of the next change
	skews []skew    // all offsets so far, in order
}

// A skew is the offset of a clock from a time on.
type skew struct {
	from time.Time
	by   time.Duration
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// steps are the sizes of offsets. A server accepts offsets up to walltime.Tolerance; the
// margins allow for its own inaccuracy.
var steps = []struct {
	name        string
	least, most time.Duration
}{
	{"clock seconds off", time.Second, walltime.Tolerance - 20*time.Second},
	{"clock hours off", walltime.Tolerance + 20*time.Second, 30 * time.Hour},
	{"clock years off", 200 * day, 50 * year},
}

// setClock sets the offset of the clock.
func (r *rig) setClock(by time.Duration) {
	r.t.Helper()
	f, err := os.OpenFile(r.clock.path, os.O_WRONLY|os.O_CREATE, 0o600)
	r.must(err)
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by)))
	r.must(errors.Join(err, f.Close()))
	r.clock.skews = append(r.clock.skews, skew{time.Now(), by})
}

// turn sets a correct clock wrong, or a wrong one right.
func (r *rig) turn() {
	if n := len(r.clock.skews); n > 0 && r.clock.skews[n-1].by != 0 {
		r.setClock(0)
		r.clock.due = time.Now().Add(time.Duration(500+r.rnd.IntN(2000)) * time.Millisecond)
		return
	}
	i := 0
	if r.faults[steps[1].name] < r.faults[steps[0].name] {
		i = 1
	}
	r.step(i)
}

// misdate sets the clock to a wrong year before the agent starts.
func (r *rig) misdate() { r.step(2) }

// step sets an offset of one of the steps, ahead or behind.
func (r *rig) step(i int) {
	s := steps[i]
	by := s.least + time.Duration(r.rnd.Int64N(int64(s.most-s.least)))
	if r.rnd.IntN(2) == 0 {
		by = -by
	}
	r.faults[s.name]++
	r.setClock(by)
	r.clock.due = time.Now().Add(time.Duration(1000+r.rnd.IntN(1500)) * time.Millisecond)
}

// settling bounds the time until a starting program has read the clock, and the delay of the
// request by which a server judges a clock.
const settling = 4 * time.Second

// placed returns the times without an agent from the gaps in the ledger, each of which may be
// off by the offset of the clock.
func (c *checker) placed(told []span) (away []span) {
	slack := c.slack()
	caused := make([]bool, len(told))
	for _, d := range c.down {
		found, longest := false, time.Duration(0)
		for i, s := range told {
			if s.covers(d, slack) || s.covers(d, settling) || slices.ContainsFunc(c.clock.during(d.to, d.to.Add(settling)), func(by time.Duration) bool {
				return by.Abs() < walltime.Tolerance && span{s.from.Add(-by), s.to.Add(-by)}.covers(d, slack)
			}) {
				found, caused[i] = true, true
				longest = max(longest, s.to.Sub(s.from))
			}
		}
		if !found {
			c.t.Errorf("the agent was away from %v to %v, and no gap says so", d.from, d.to)
		}
		// The length is exact, whatever the position.
		away = append(away, span{d.to.Add(-longest), d.from.Add(longest)})
	}
	for i, s := range told {
		if !caused[i] {
			c.t.Errorf("gap %v to %v: an agent ran at that time", s.from, s.to)
		}
	}
	return away
}

// covers reports whether d lies within s, with slack at both ends.
func (s span) covers(d span, slack time.Duration) bool {
	return !s.from.After(d.from.Add(slack)) && !s.to.Before(d.to.Add(-slack)) && s.to.Sub(s.from) >= d.to.Sub(d.from)
}

// during returns the offsets of the clock within a time.
func (w *wallClock) during(from, to time.Time) (bys []time.Duration) {
	for i, s := range w.skews {
		if s.from.Before(to) && (i == len(w.skews)-1 || w.skews[i+1].from.After(from)) {
			bys = append(bys, s.by)
		}
	}
	return bys
}

// shifts checks that the ledger records corrections of the clock, each for an actual offset.
func (c *checker) shifts() {
	n := 0
	c.rows(func(scan func(...any) error) {
		var by int64
		_ = scan(&by)
		n++
		if !slices.ContainsFunc(c.clock.skews, func(s skew) bool { return (s.by + time.Duration(by)).Abs() <= settling }) {
			c.t.Errorf("clock corrected by %v, but it never had this offset", time.Duration(by))
		}
	}, "SELECT by_ns FROM shift")
	c.t.Logf("%d changes of the clock, %d corrections", len(c.clock.skews), n)
	if n < leastShifts {
		c.t.Errorf("%d corrections of the clock, want at least %d", n, leastShifts)
	}
	for p, line := range map[*child]string{c.agent: "wall clock moved", c.server: "the clock of a node is wrong"} {
		b, err := os.ReadFile(p.log.Name())
		c.must(err)
		if !strings.Contains(string(b), line) {
			c.t.Errorf("log of the %s lacks: %s", p.name, line)
		}
	}
}

// clockErrors are log errors that a clock years ahead causes, because all certificates have
// ended by it.
var clockErrors = []string{"cannot renew this machine's identity", "server denies this machine", "cannot renew the certificate"}

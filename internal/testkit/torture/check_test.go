package torture

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"mete.dev/mete/internal/model/usage"
)

// slack is the tolerance of wall times in the ledger: windows follow the wall clock only once
// it is off by half a second.
func (r *rig) slack() time.Duration {
	return 50*time.Millisecond + 2*time.Duration(offset()-r.offset).Abs()
}

// check compares the ledger with the kernel's counters and checks its consistency.
func (r *rig) check() {
	t := r.t
	defer func() { t.Log(r.describe()) }()
	db := r.open(r.dsn)
	defer func() { _ = db.Close() }() // only read
	c := &checker{rig: r, db: db}
	r.folded(db)
	c.tables()
	c.balance()
	away := c.gaps()
	c.cpu(c.apart(away))
	if !r.v.again { // what a gap took of a level, or of a disk's use, is not known
		c.memory(away)
		c.disk(away)
	}
	c.folds()
	c.streams()
	if r.v.again {
		c.once()
	}
	if r.v.clock {
		c.shifts()
	}
	if r.core != nil {
		r.above(c, c.apart(away))
	}
	c.logs()
	r.enough()
	r.verify(r.dsn)
	if r.core != nil {
		r.verify(r.coreDSN)
	}
}

// verify runs mete check on a ledger, as it is.
func (r *rig) verify(dsn string) {
	r.t.Helper()
	out, err := exec.Command(filepath.Join(r.bin, "mete"), "check", dsn, "-o", "json").Output()
	var told struct {
		Nodes, Days, Defects int
		Findings             []struct{ Kind, Text string }
	}
	if jsonErr := json.Unmarshal(out, &told); jsonErr != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		r.t.Errorf("mete check %s: %v, %v\n%s", dsn, err, jsonErr, out)
		return
	}
	bad := err != nil || told.Defects > 0 || told.Nodes == 0 || told.Days == 0
	for _, f := range told.Findings { // a warning too: all is sent
		bad = bad || f.Kind != "conflict" || !r.v.again
	}
	if bad {
		r.t.Errorf("mete check %s: %v\n%s", dsn, err, out)
	}
	r.t.Logf("mete check: %d nodes, %d days, %d findings", told.Nodes, told.Days, len(told.Findings))
}

// open opens a ledger.
func (r *rig) open(dsn string) *sql.DB {
	driver := "sqlite"
	if strings.HasPrefix(dsn, "postgres:") {
		driver = "pgx"
	}
	db, err := sql.Open(driver, dsn)
	r.must(err)
	return db
}

// readOnly is the data source of the ledger for reading beside the server.
func (r *rig) readOnly() string {
	if r.v.postgres {
		return r.dsn
	}
	return "file:" + r.dsn + "?mode=ro"
}

type checker struct {
	*rig
	db      *sql.DB
	minutes []string // tables of workload minutes
	lost    bool     // the agent missed births or deaths of groups
}

// rows calls f for each row.
func (c *checker) rows(f func(scan func(...any) error), query string) {
	c.t.Helper()
	rows, err := c.db.Query(query)
	c.must(err)
	for rows.Next() {
		f(func(to ...any) error {
			c.t.Helper()
			c.must(rows.Scan(to...))
			return nil
		})
	}
	c.must(rows.Err())
	c.must(rows.Close())
}

// tables finds the tables of minutes.
func (c *checker) tables() {
	c.rows(func(scan func(...any) error) {
		var day int64
		_ = scan(&day)
		c.minutes = append(c.minutes, "minute_"+time.Unix(day*60, 0).UTC().Format("20060102"))
	}, "SELECT day FROM kept ORDER BY day")
	if len(c.minutes) == 0 {
		c.t.Fatal("the ledger has no minutes")
	}
}

// all returns a FROM clause of all minutes.
func (c *checker) all(prefix string) string {
	var parts []string
	for _, m := range c.minutes {
		parts = append(parts, "SELECT * FROM "+prefix+m)
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ") AS m"
}

// gaps returns the times without an agent according to the ledger, and checks them.
func (c *checker) gaps() (away []span) {
	slack := c.slack()
	c.rows(func(scan func(...any) error) {
		var from, to int64
		var reason, detail string
		_ = scan(&from, &to, &reason, &detail)
		s := span{time.Unix(0, from), time.Unix(0, to)}
		if reason == usage.Forgotten.String() && c.reign.n > 0 {
			return // true when the agent reported it
		}
		away = append(away, s)
		if reason != usage.Unwatched.String() && (reason != usage.Overlapped.String() || !c.v.again) {
			c.t.Errorf("gap %v to %v without a cause: %s %s", s.from, s.to, reason, detail)
		}
	}, "SELECT from_ns, to_ns, reason, detail FROM gap ORDER BY from_ns")
	if c.v.again {
		return away // a removed window takes its gaps along
	}
	if len(away) >= c.agent.lives {
		c.t.Errorf("%d gaps, but the agent started only %d times", len(away), c.agent.lives)
	}
	if c.v.clock {
		return c.placed(away)
	}
	for _, d := range c.down {
		if !slices.ContainsFunc(away, func(s span) bool {
			return !s.from.After(d.from.Add(slack)) && !s.to.Before(d.to.Add(-slack))
		}) {
			c.t.Errorf("no gap for the time without an agent from %v to %v", d.from, d.to)
		}
	}
	return away
}

// apart returns a function that reports whether a life must be exact by its path: it ended
// while an agent ran, or did not end.
func (c *checker) apart(away []span) func(life) bool {
	slack := c.slack()
	return func(l life) bool {
		if c.v.again {
			return false // a group may have lived through a gap: the groups above it show that
		}
		return l.from.IsZero() || c.v.reader != "files" && !slices.ContainsFunc(away, func(s span) bool {
			return l.to.After(s.from.Add(-slack)) && l.from.Before(s.to.Add(slack))
		})
	}
}

// cpu compares CPU time by group. exact reports whether a life must be exact by its path.
func (c *checker) cpu(exact func(life) bool) {
	booked := map[string]int64{}
	c.rows(func(scan func(...any) error) {
		var path string
		var ns int64
		_ = scan(&path, &ns)
		booked[path] = ns
	}, "SELECT w.path, CAST(sum(m.cpu) AS bigint) FROM "+c.all("")+" JOIN workload w ON w.id = m.workload WHERE w.path LIKE '"+c.fleet.top+"%' GROUP BY w.path")
	below := func(path string) (sum int64) {
		for p, ns := range booked {
			if p == path || strings.HasPrefix(p, path+"/") {
				sum += ns
			}
		}
		return sum
	}
	for _, p := range c.fleet.lasting() {
		want, err := c.fleet.usage(p)
		c.must(err)
		if got, lacks := below(p), c.mayLack(p); got > want || got < want-lacks {
			c.t.Errorf("%s: %d ns booked, kernel counted %d: %+d, of which gaps explain %d", p, got, want, got-want, lacks)
		}
	}
	// By path: groups that ended while an agent ran are exact, and no group has more than it
	// used.
	want, clear := map[string]int64{}, map[string]bool{}
	for _, l := range c.fleet.lives {
		if _, ok := want[l.path]; !ok {
			clear[l.path] = true
		}
		want[l.path] += l.ns
		if !exact(l) || c.lost && !l.from.IsZero() {
			clear[l.path] = false
		}
	}
	judged, bad := 0, 0
	for p, ns := range want {
		got := below(p)
		if clear[p] {
			judged++
		}
		if got > ns || clear[p] && got != ns {
			if bad++; bad <= 20 {
				c.t.Errorf("%s: %d ns booked, kernel counted %d: %+d (ended while an agent ran: %v)", p, got, ns, got-ns, clear[p])
			}
		}
	}
	c.t.Logf("%d groups with %d lives, %d groups ended while an agent ran; %.3f CPU s", len(want), len(c.fleet.lives), judged, float64(below(c.fleet.top))/1e9)
	if c.v.reader != "files" && !c.v.clock && !c.v.drill && !c.v.again && !c.lost && judged < 50 {
		c.t.Errorf("only %d of %d groups ended while an agent ran", judged, len(want))
	}
}

// balance checks that the parts of each minute sum to its whole and skew.
func (c *checker) balance() {
	for _, w := range usage.Wholes {
		for _, m := range c.minutes {
			c.rows(func(scan func(...any) error) {
				var minute, whole, parts int64
				_ = scan(&minute, &whole, &parts)
				if whole != parts {
					c.t.Errorf("%s of minute %d: whole plus skew is %d, sum of parts %d", w, minute, whole, parts)
				}
			}, fmt.Sprintf("SELECT n.minute, n.whole_%[1]s + n.skew_%[1]s, (SELECT CAST(sum(m.%[1]s) AS bigint) FROM %[2]s m JOIN workload w ON w.id = m.workload WHERE m.minute = n.minute AND w.node = n.node) FROM node_%[2]s n", w, m))
		}
	}
	c.rows(func(scan func(...any) error) {
		var violations, lost int64
		_ = scan(&violations, &lost)
		if violations > 0 {
			c.t.Errorf("%d violations", violations)
		}
		if c.lost = lost > 0; c.lost {
			c.t.Logf("the agent missed %d births or deaths of groups: no group is exact by its path", lost)
		}
	}, "SELECT CAST(sum(violations) AS bigint), CAST(sum(lost) AS bigint) FROM "+c.all("node_"))
}

// folds checks that hours, days and groups of days have the same sums as the minutes.
func (c *checker) folds() {
	usage.All.Each(func(res usage.Resource) {
		if res.Detail().Kind == usage.Peak {
			return
		}
		for _, node := range []string{"", "node_"} {
			sums := map[string]amount{}
			for name, from := range map[string]string{"minutes": c.all(node), "hours": node + "hour", "days": node + "day"} {
				sums[name] = c.sum(fmt.Sprintf("SELECT CAST(sum(%[1]s >> 32) AS bigint), CAST(sum(%[1]s & 4294967295) AS bigint) FROM %[2]s", res, from))
			}
			if node == "" {
				sums["groups"] = c.sum(fmt.Sprintf("SELECT CAST(sum(%[1]s_hi) AS bigint), CAST(sum(%[1]s_lo) AS bigint) FROM group_day", res))
			}
			for name, s := range sums {
				if s != sums["minutes"] {
					c.t.Errorf("%s%s: %s have %v, minutes %v", node, res, name, s, sums["minutes"])
				}
			}
		}
	})
}

// An amount is hi * 2^32 + lo, with lo below 2^32.
type amount struct{ hi, lo int64 }

func (c *checker) sum(query string) (a amount) {
	c.rows(func(scan func(...any) error) {
		var hi, lo sql.NullInt64
		_ = scan(&hi, &lo)
		a = amount{hi.Int64 + lo.Int64>>32, lo.Int64 & (1<<32 - 1)}
	}, query)
	return a
}

// streams checks that each batch of a stream was accepted once and none is in quarantine.
func (c *checker) streams() {
	c.rows(func(scan func(...any) error) {
		var id []byte
		var next, batches, last int64
		_ = scan(&id, &next, &batches, &last)
		if batches != next-1 || last != next-1 {
			c.t.Errorf("stream %x: next is %d, with %d batches up to %d", id, next, batches, last)
		}
	}, "SELECT s.id, s.next, (SELECT count(*) FROM batch b WHERE b.stream = s.id), (SELECT coalesce(max(number), 0) FROM batch b WHERE b.stream = s.id) FROM stream s")
	c.rows(func(scan func(...any) error) {
		var number int64
		_ = scan(&number)
		if !c.v.again { // a restored agent uses numbers again
			c.t.Errorf("batch %d is in quarantine: another one was accepted under its number", number)
		}
	}, "SELECT number FROM aside")
}

// expected are log errors that the faults cause.
var expected = []string{"the spool rejects windows", "no space left on device", "database or disk is full", "disk I/O error (4874)", "disk I/O error (8714)",
	"MiB of disk are free",          // of the metrics
	"Loading on-disk chunks failed", // of the metrics: what was not synced when the power failed
	"mete: error: interrupted"}      // a signal ended a server while it started

// logs checks that the logs have no unexpected errors.
func (c *checker) logs() {
	known := expected
	if c.v.clock {
		known = slices.Concat(expected, clockErrors)
	}
	for _, p := range c.children() {
		f, err := os.Open(p.log.Name())
		c.must(err)
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line := lines.Text()
			bad := strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "mete: error:") ||
				strings.HasPrefix(line, "mete-agent: error:") || strings.Contains(line, "spool is damaged")
			if bad && !slices.ContainsFunc(known, func(e string) bool { return strings.Contains(line, e) }) {
				c.t.Errorf("%s: %s", p.name, line)
			}
		}
		c.must(lines.Err())
		c.must(f.Close())
	}
}

// Package check looks for contradictions within a ledger.
package check

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// maxListed limits how many findings of each kind are listed; all are counted.
const maxListed = 100

// A Checker checks a ledger for consistency.
type Checker struct{ db *db.DB }

func New(database *db.DB) *Checker { return &Checker{database} }

// A Finding is something that a check found.
type Finding struct {
	Kind     string // of the check, see [Checker.Run]
	Warning  bool   // it may be in order
	Node     string // its id, "" if the finding is about none
	Name     string // of the node
	Workload string // its short id in hexadecimal, "" if the finding is about none
	From, To int64  // minutes since 1970; To is 0 if the finding has no time
	Resource string // column of the amounts, "" if there are none
	Have     string // what is stored
	Want     string // what it should be
	Text     string
}

func (f Finding) String() string {
	parts := []string{f.Kind}
	if f.Node != "" {
		who := "node " + f.Node
		if f.Name != "" {
			who = fmt.Sprintf("node %s (%s)", f.Name, f.Node)
		}
		if f.Workload != "" {
			who += ", workload " + f.Workload
		}
		parts = append(parts, who)
	}
	if f.To != 0 {
		parts = append(parts, schema.FormatMinute(f.From))
	}
	return strings.Join(append(parts, f.Text), ": ")
}

// A Result is what a check found.
type Result struct {
	Schema           int // version
	Nodes, Workloads int64
	Days             []int64 // first minutes of the days that have rows
	Findings         []Finding
	Counts           map[string]int // findings by kind, also those not listed
	Defects          int            // findings other than warnings, also those not listed
}

// Total returns the number of findings, also those not listed.
func (r *Result) Total() (n int) {
	for _, k := range r.Counts {
		n += k
	}
	return n
}

// Progress is how far a check is.
type Progress struct {
	Step        string // that begins
	Done, Total int    // steps
}

// Check returns one line for each defect that Run finds.
func (c *Checker) Check(ctx context.Context) (lines []string, err error) {
	result, err := c.Run(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range result.Findings {
		if !f.Warning {
			lines = append(lines, f.String())
		}
	}
	return lines, nil
}

// Run checks the ledger. Kinds of findings:
//
//   - file: SQLite finds a damaged table
//   - balance: for each node and minute (or hour or day, where only these are kept), whole + skew is
//     the sum of the rows
//   - classes: network traffic by class is at most all of it, in the same rows
//   - connections: those of an hour can be read, and have at most its network traffic
//   - hour, day: a row is the sum of the finer ones, where these are kept
//   - groups: those of a day sum to the day's rows
//   - orphan: each row refers to rows that exist
//   - place: each row is in the table and under the minute where readers look for it
//   - booked: the booked ranges of a kernel run neither overlap nor adjoin
//   - stream: the batches of a stream agree with its mark
//   - conflict (warning): a batch contradicted a booked one and was put aside
//   - clusters (warning): the same time of a kernel is booked in two clusters
//   - name: two nodes of a cluster have one name
//   - share, nested: what hosts give their guests, and which nodes are guests
//   - gap (warning): a gap ends before it begins
//   - foreign: a node belongs to the server that its rows are from
//
// It reads step by step, each from one snapshot, and blocks no writer. Rows of a server below may be
// out of balance while it sends: that is a warning. progress is called before each step, if it is
// not nil.
func (c *Checker) Run(ctx context.Context, progress func(Progress)) (*Result, error) {
	run := &checkRun{result: &Result{Schema: db.SchemaVersion(), Counts: map[string]int{}}, incomplete: map[int64]bool{}}
	var tables []string
	err := c.view(ctx, run, "finding the tables", func() (err error) {
		tables, err = run.Tables()
		return err
	})
	if err != nil {
		return nil, err
	}
	type step struct {
		name  string
		check func() error
	}
	var steps []step
	if c.db.IsSQLite() {
		for _, t := range tables {
			steps = append(steps, step{"table " + t, func() error { return run.checkFile(t) }})
		}
	}
	steps = append(steps,
		step{"nodes", run.checkNodes}, step{"tables of minutes", run.checkPlaces}, step{"references", run.checkReferences},
		step{"streams", run.checkStreams}, step{"booked ranges", run.checkBooked}, step{"clusters", run.checkClusters},
		step{"shares", run.checkShares}, step{"guests", run.checkNested}, step{"versions", run.checkVersions}, step{"gaps", run.checkGaps}, step{"days", run.findDays})
	for i := 0; i < len(steps); i++ {
		if progress != nil {
			progress(Progress{steps[i].name, i, len(steps)})
		}
		if err := c.view(ctx, run, "checking "+steps[i].name, steps[i].check); err != nil {
			return nil, err
		}
		if i+1 == len(steps) && steps[i].name == "days" {
			for _, day := range run.result.Days {
				steps = append(steps, step{schema.FormatMinute(day)[:len("2006-01-02")], func() error { return run.checkDay(day) }})
			}
		}
	}
	return run.result, nil
}

// view calls f while run has a snapshot. A damaged file is a finding, so that other steps follow.
func (c *Checker) view(ctx context.Context, run *checkRun, what string, f func() error) error {
	err := c.db.View(ctx, func(v *db.View) error {
		run.View, run.prepared = v, map[string]*sql.Stmt{}
		return f()
	})
	if db.IsDamage(err) {
		run.add(Finding{Kind: "file", Text: fmt.Sprintf("%s: %v", what, err)})
		return nil
	}
	return db.Wrap(c.db.Fault(err), "%s", what)
}

type checkRun struct {
	*db.View
	result     *Result
	incomplete map[int64]bool       // days that lack a table of minutes
	prepared   map[string]*sql.Stmt // of View, by query
}

// add counts a finding, and lists it unless there are many of its kind.
func (c *checkRun) add(f Finding) {
	if !f.Warning {
		c.result.Defects++
	}
	if c.result.Counts[f.Kind]++; c.result.Counts[f.Kind] <= maxListed {
		c.result.Findings = append(c.result.Findings, f)
	}
}

// A fault is a finding of a key whose name is not looked up yet.
type fault struct {
	id int64
	Finding
}

// faults are at most maxListed faults, and how many more there are.
type faults struct {
	list []fault
	more int
}

func (f *faults) add(id int64, what Finding) {
	if len(f.list) < maxListed {
		f.list = append(f.list, fault{id, what})
	} else {
		f.more++
	}
}

// findDays finds the days that have rows.
func (c *checkRun) findDays() error {
	for day := int64(0); ; day += schema.DayMinutes {
		var err error
		if day, err = c.nextDay(day); err != nil || day == schema.MaxKey {
			return err
		}
		c.result.Days = append(c.result.Days, day)
	}
}

// nextDay returns the first day from the given one on that has rows.
func (c *checkRun) nextDay(from int64) (int64, error) {
	day, err := db.FirstMinute(c.Ctx, c.SQL, from, schema.UsageLayout.HourTable(), schema.NodeLayout.HourTable(), schema.UsageLayout.DayTable(), schema.NodeLayout.DayTable(), "group_day", "connections")
	if err != nil {
		return day, err
	}
	if day < schema.MaxKey {
		day -= day % schema.DayMinutes
	}
	for _, d := range c.Days {
		if d >= from {
			return min(day, d), nil
		}
	}
	return day, nil
}

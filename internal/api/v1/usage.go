package v1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// formatVersion is the number of the JSON form; a reader of a higher one than it knows
// must not guess.
const formatVersion = 1

// A Usage is what was used in a range, in groups. Groups, rest and idle energy that was
// divided sum to the total. NestedGroups are of guests and in no sum.
type Usage struct {
	Format        int               `json:"format" doc:"version of this form: a reader must not guess at a higher one"`
	From          time.Time         `json:"from" doc:"start of the sums: earlier than asked where only whole hours or days are kept"`
	To            time.Time         `json:"to"`
	AveragedOver  json.Number       `json:"averages_over_seconds" doc:"length of time over which averages are taken: for how long, within the range, the node that was measured longest was measured"`
	By            []query.Dimension `json:"by" nullable:"false" doc:"the dimensions of the groups"`
	Gaps          int               `json:"gaps" doc:"number of gaps that touch the range"`
	Idle          string            `json:"idle" doc:"policy by which idle energy is divided"`
	Nested        string            `json:"nested" doc:"how nodes that are guests of others are treated"`
	NestedNodes   int               `json:"nested_nodes" doc:"number of nodes that the groups leave out"`
	Groups        []Group           `json:"groups" nullable:"false" doc:"in descending order of CPU time, or of the figure sort"`
	NestedGroups  []Group           `json:"nested_groups" nullable:"false" doc:"groups of guests, which are in no sum"`
	NestedOmitted int               `json:"nested_more" doc:"number of groups of guests beyond the limit"`
	RestGroups    int               `json:"rest_groups" doc:"number of groups beyond the limit"`
	Rest          *Figures          `json:"rest" doc:"what the groups beyond the limit used together"`
	Total         *Figures          `json:"total" line:"own" doc:"the sum of groups and rest"`
	Whole         *Figures          `json:"whole" line:"own" doc:"capacity of the machines: without filters, the total"`
	Every         string            `json:"every,omitempty" doc:"length of the periods, if the question has every"`
	Periods       []Usage           `json:"periods,omitempty" doc:"the same groups in each UTC hour or day of the range, in order: their amounts sum to those of the groups above. The first and the last are cut at the ends of the range"`

	over         time.Duration
	reservedOver time.Duration // of what is reserved; 0 is over
	figures      []figure      // of all groups
}

// A Group is what one group used. In JSON it has a key for each dimension.
type Group struct {
	Keys        []string // in the order of the dimensions; "" is none
	Nodes       int      // number of nodes that it ran on
	First, Last *time.Time
	Figures

	texts map[string]string // what Group was read of: any of its texts by key
}

// Figures are amounts by figure.
type Figures struct {
	Covered unit.Sum // ns, summed over workloads, for how long each was measured

	figures []figure
	amounts []Amount // of figures
}

// An Amount is the value of a figure in its smallest unit: ns, bytes, byte-seconds, uJ,
// uW, or a number of things. One whose quality is Absent is null in JSON.
type Amount struct {
	Value   unit.Sum
	Quality usage.Quality
}

// Get returns the amount of a figure, by its key; one that is absent where f is nil or
// has no such figure.
func (f *Figures) Get(key string) Amount {
	if f != nil {
		for i := range f.figures {
			if f.figures[i].key == key {
				return f.amounts[i]
			}
		}
	}
	return Amount{}
}

// UsageOf makes a Usage with the figures of these keys; nil is all.
func UsageOf(a *query.Answer, keys []string) *Usage {
	u := &Usage{Format: formatVersion, From: a.From.UTC(), To: a.To.UTC(), AveragedOver: json.Number(seconds(a.AveragedOver)), By: a.By, Gaps: a.Gaps,
		Idle: cmp.Or(a.Idle, noPolicy), Nested: cmp.Or(a.Nested, noPolicy), NestedNodes: a.NestedNodes, NestedOmitted: a.NestedOmitted, RestGroups: a.OtherGroups,
		over: a.AveragedOver, figures: figuresOf(keys)}
	sum := Sum(a)
	u.Rest, u.Total, u.Whole = u.totalOf(&a.Other), u.totalOf(&sum), u.totalOf(&a.Capacity)
	u.Groups, u.NestedGroups = u.groupsOf(a.Groups), u.groupsOf(a.NestedGroups)
	return u
}

func (u *Usage) groupsOf(groups []query.Group) []Group {
	n := len(u.figures)
	out, amounts := make([]Group, len(groups)), make([]Amount, n*len(groups))
	for i := range groups {
		g := &groups[i]
		out[i] = Group{Keys: g.Keys, Nodes: g.Nodes, First: timeOrNil(g.First), Last: timeOrNil(g.Last),
			Figures: u.figuresIn(&g.Usage, amounts[i*n:(i+1)*n:(i+1)*n])}
	}
	return out
}

// totalOf returns the figures of a sum; nil if the sum has none.
func (u *Usage) totalOf(t *query.Total) *Figures {
	if t.Present == 0 {
		return nil
	}
	f := u.figuresIn(t, make([]Amount, len(u.figures)))
	return &f
}

// figuresIn puts the figures of a total into amounts.
func (u *Usage) figuresIn(t *query.Total, amounts []Amount) Figures {
	for i := range u.figures {
		amounts[i].Value, amounts[i].Quality = u.figures[i].amount(t, u.overOf(&u.figures[i]))
	}
	return Figures{Covered: t.Covered, figures: u.figures, amounts: amounts}
}

// Over is the length of time over which averages are taken.
func (u *Usage) Over() time.Duration { return u.over }

// OverOf is the length of time over which averages of a figure, by its key, are taken: those of what a pod itself reserves
// have their own.
func (u *Usage) OverOf(key string) time.Duration {
	if f := figureOf(key); f != nil {
		return u.overOf(f)
	}
	return u.over
}

func (u *Usage) overOf(f *figure) time.Duration {
	if f.isReserved() && u.reservedOver > 0 {
		return u.reservedOver
	}
	return u.over
}

// WriteJSON implements [Document]: one object with a line for each group. Amounts are
// decimals of base units; an integer above 2^53, which many readers would round, is a
// string.
func (u *Usage) WriteJSON(w io.Writer) error { return writeDocument(w, u, u.By) }

// Jobs is what each job used.
type Jobs struct {
	From         time.Time   `json:"from"`
	To           time.Time   `json:"to"`
	AveragedOver json.Number `json:"averages_over_seconds" doc:"length of time over which averages are taken: for how long, within the range, the node that was measured longest was measured"`
	Jobs         []Group     `json:"jobs" nullable:"false" doc:"by cluster and name"`
	Page

	usage *Usage
}

// JobsOf makes Jobs of groups by [JobsBy]; next is the cursor of the next page.
func JobsOf(u *Usage, next string) *Jobs {
	return &Jobs{From: u.From, To: u.To, AveragedOver: u.AveragedOver, Jobs: u.Groups, Page: Page{next}, usage: u}
}

// WriteJSON implements [Document].
func (j *Jobs) WriteJSON(w io.Writer) error { return writeDocument(w, j, j.usage.By) }

// WriteCSV implements [Table].
func (j *Jobs) WriteCSV(w io.Writer) error { return j.usage.WriteCSV(w) }

// UnmarshalJSON reads the output of WriteJSON. It skips unknown keys; a missing figure is
// absent. Its errors wrap fault.ErrInvalid.
func (u *Usage) UnmarshalJSON(body []byte) error {
	type plain Usage // without methods
	read := plain{}
	err := json.Unmarshal(body, &read)
	switch {
	case err != nil:
		return fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
	case read.Format < 1 || read.Format > formatVersion:
		return fmt.Errorf("%w answer: format %d is not known, only up to %d", fault.ErrInvalid, read.Format, formatVersion)
	case len(read.By) == 0:
		return fmt.Errorf("%w answer: by is empty", fault.ErrInvalid)
	}
	*u = Usage(read)
	over, err := unit.ParseSum(string(u.AveragedOver), unit.Nanosecond)
	if err != nil {
		return fmt.Errorf("%w answer: averages_over_seconds: %w", fault.ErrInvalid, err)
	}
	u.From, u.To, u.over, u.figures = u.From.UTC(), u.To.UTC(), duration(over), allFigures
	for _, groups := range [][]Group{u.Groups, u.NestedGroups} {
		for i := range groups {
			if err := groups[i].name(u.By); err != nil {
				return fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
			}
		}
	}
	return nil
}

// UnmarshalJSON reads a group; its keys are those of the answer.
func (g *Group) UnmarshalJSON(body []byte) error {
	var row map[string]json.RawMessage
	if err := json.Unmarshal(body, &row); err != nil {
		return err
	}
	*g = Group{texts: map[string]string{}}
	for name, to := range map[string]any{"nodes": &g.Nodes, "first_at": &g.First, "last_at": &g.Last} {
		if v, ok := row[name]; ok {
			if err := json.Unmarshal(v, to); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for name, v := range row {
		if v[0] == '"' && figureOf(name) == nil {
			var text string
			if err := json.Unmarshal(v, &text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			g.texts[name] = text
		}
	}
	return g.read(row)
}

// name gives a group that was read its keys.
func (g *Group) name(by []query.Dimension) error {
	for _, d := range by {
		text, ok := g.texts[string(d)]
		if !ok {
			return fmt.Errorf("a group has no %s", d)
		}
		g.Keys = append(g.Keys, text)
	}
	g.texts = nil
	return nil
}

// UnmarshalJSON reads the figures of a sum.
func (f *Figures) UnmarshalJSON(body []byte) error {
	var row map[string]json.RawMessage
	if err := json.Unmarshal(body, &row); err != nil || row == nil {
		return err
	}
	return f.read(row)
}

// read reads figures out of an object.
func (f *Figures) read(row map[string]json.RawMessage) error {
	quality := map[string]usage.Quality{}
	if v, ok := row["quality"]; ok {
		if err := json.Unmarshal(v, &quality); err != nil {
			return fmt.Errorf("quality: %w", err)
		}
	}
	f.figures, f.amounts = allFigures, make([]Amount, len(allFigures))
	for i := range allFigures {
		g := &allFigures[i]
		v, q := row[g.key], quality[g.key]
		if len(v) == 0 || string(v) == "null" || q == usage.Absent {
			continue
		}
		sum, err := parseNumber(v, g.unit)
		if err != nil {
			return fmt.Errorf("%s: %w", g.key, err)
		}
		f.amounts[i] = Amount{sum, q}
	}
	if v, ok := row["covered_seconds"]; ok {
		if ns, err := unit.Nanosecond.Parse(string(v)); err == nil {
			f.Covered = unit.Sum{}.Add(max(0, ns))
			return nil
		}
		var err error
		if f.Covered, err = parseNumber(v, unit.Nanosecond); err != nil { // more than 64 bits
			return fmt.Errorf("covered_seconds: %w", err)
		}
	}
	return nil
}

func parseNumber(raw json.RawMessage, u unit.Unit) (unit.Sum, error) {
	return unit.ParseSum(strings.Trim(string(raw), `"`), u)
}

// duration converts a sum of nanoseconds, limited to the longest duration.
func duration(s unit.Sum) time.Duration { return time.Duration(s.Int64()) }

// seconds writes a length of time exactly.
func seconds(d time.Duration) string { return unit.Nanosecond.Decimal(int64(d)) }

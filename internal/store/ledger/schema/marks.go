package schema

import "math"

// A marks is the row of table counter: up to where rows are folded, and from
// where they are kept. All are minutes since 1970.
type Marks struct {
	Hour, Day                 int64    // hours and days before it are folded
	MinuteFloor, HourFloor    int64    // minutes and hours before it are gone
	HourProgress, DayProgress Progress // of those that begin at Hour and at Day
}

// A part is how far an hour or a day is folded: the rows of keys before these.
type Progress struct{ Workload, Node int64 }

// Key is the one of the tables of a shape.
func (p *Progress) Key(s *Layout) *int64 {
	if s == NodeLayout {
		return &p.Node
	}
	return &p.Workload
}

// Mark is up to where hours or days are folded.
func (m *Marks) Mark(v Level) (mark int64, p *Progress) {
	if v == Days {
		return m.Day, &m.DayProgress
	}
	return m.Hour, &m.HourProgress
}

// IsFolded reports whether the hour or the day of a row is folded as far as the
// row's key. If so, what is added to the row is to be added there as well.
func (m *Marks) IsFolded(v Level, s *Layout, k RowKey) bool {
	mark, p := m.Mark(v)
	return k.Minute < mark || k.Minute < mark+v.Width() && k.ID < *p.Key(s)
}

// MarkColumns are those of table counter that make the marks, for into.
const MarkColumns = "hour_mark, day_mark, minute_floor, hour_floor, hour_workload, hour_node, day_workload, day_node"

func (m *Marks) Targets() []any {
	return []any{&m.Hour, &m.Day, &m.MinuteFloor, &m.HourFloor, &m.HourProgress.Workload, &m.HourProgress.Node, &m.DayProgress.Workload, &m.DayProgress.Node}
}

// MaxKey is above all keys: the end of a slice that is the last one.
const MaxKey = math.MaxInt64

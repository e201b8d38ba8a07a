package schema

import "math"

// Marks is the row of table counter: how far rows are folded, and from where they are kept. All
// values are minutes since 1970.
type Marks struct {
	Hour, Day                 int64    // hours and days before it are folded
	MinuteFloor, HourFloor    int64    // minutes and hours before it are dropped
	HourProgress, DayProgress Progress // of the hour at Hour and the day at Day
}

// Progress is how far an hour or a day is folded: rows with smaller keys are done.
type Progress struct{ Workload, Node int64 }

// Key returns the progress for the tables of a layout.
func (p *Progress) Key(s *Layout) *int64 {
	if s == NodeLayout {
		return &p.Node
	}
	return &p.Workload
}

// Mark returns how far hours or days are folded.
func (m *Marks) Mark(v Level) (mark int64, p *Progress) {
	if v == Days {
		return m.Day, &m.DayProgress
	}
	return m.Hour, &m.HourProgress
}

// IsFolded reports whether the row's hour or day is folded as far as its key. If so, what is added
// to the row must be added there too.
func (m *Marks) IsFolded(v Level, s *Layout, k RowKey) bool {
	mark, p := m.Mark(v)
	return k.Minute < mark || k.Minute < mark+v.Width() && k.ID < *p.Key(s)
}

// MarkColumns are the columns of table counter that Targets scans.
const MarkColumns = "hour_mark, day_mark, minute_floor, hour_floor, hour_workload, hour_node, day_workload, day_node"

func (m *Marks) Targets() []any {
	return []any{&m.Hour, &m.Day, &m.MinuteFloor, &m.HourFloor, &m.HourProgress.Workload, &m.HourProgress.Node, &m.DayProgress.Workload, &m.DayProgress.Node}
}

// MaxKey is above all keys: the end of the last slice.
const MaxKey = math.MaxInt64

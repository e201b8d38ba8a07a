package read

import (
	"database/sql/driver"
	"math"
	"math/big"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// TestHalves compares sums of halves with math/big.
func TestHalves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sum halves
		want := new(big.Int)
		for _, v := range rapid.SliceOf(rapid.Int64()).Draw(t, "integers") {
			sum.add(split(v))
			want.Add(want, big.NewInt(v))
		}
		if got, ok := sum.total(); ok != (want.Sign() >= 0) || ok && got.String() != want.String() {
			t.Fatalf("%+v is %v, %v, want %v", sum, got, ok, want)
		}
	})
}

// Of a row without content, a block holds nothing; of a present resource it holds the quality.
func TestTakeRow(t *testing.T) {
	want := usage.SetOf(usage.CPU, usage.Memory)
	_, into := usageBlocks.columns(want)
	b := &blockReader{newBlock(usageBlocks, schema.Range{Level: schema.Minutes, From: 1440, To: 1450}, want, 3), into, make([]int64, len(usageBlocks.rules))}
	cpu, both := int64(usage.SetOf(usage.CPU)), int64(usage.SetOf(usage.CPU, usage.Memory))
	for _, row := range [][]driver.Value{ // minute, key, present, rough, rough_high, covered, cpu, memory
		{int64(1441), int64(7), int64(0), int64(0), int64(0), int64(0), int64(9), int64(9)},
		{int64(1442), int64(8), cpu, int64(math.MaxInt64), int64(math.MaxInt64), int64(0), int64(5), int64(0)},
		{int64(1443), int64(9), int64(0), int64(0), int64(0), int64(1), int64(0), int64(0)},
		{int64(1445), int64(8), both | 1<<40, int64(0), int64(3 << 16), int64(30), int64(20), int64(3)},
		{int64(1446), int64(10), int64(1), int64(0), int64(0), int64(0), int64(0), int64(0)},
	} {
		b.takeRow(row)
	}
	if want := []int64{8, 9, 10}; !reflect.DeepEqual(b.keys, want) {
		t.Fatalf("keys %v, want %v", b.keys, want)
	}
	first, end := b.span(0)
	got := []int64{first, end, b.value(blockPresent, 0), b.value(blockUncertainty, 0), b.value(blockUncertaintyHigh, 0), b.value(blockCovered, 0), b.value(blockAmounts+int(usage.CPU), 0), b.value(blockAmounts+int(usage.Memory), 0), b.value(blockCovered, 1)}
	if want := []int64{1442, 1446, both | 1<<40, 3 << (2 * usage.CPU), 3 << 16, 30, 25, 3, 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("the block has %v, want %v", got, want)
	}
}

func TestStateOf(t *testing.T) {
	day := time.Unix(1, 0)
	for _, c := range []struct {
		revoked             time.Time
		booked, heard, live time.Duration
		want                string
	}{
		{day, 0, 0, time.Minute, "revoked"},
		{time.Time{}, time.Minute - 1, time.Hour, time.Minute, "live"},
		{time.Time{}, time.Minute, 0, time.Minute, "behind"},
		{time.Time{}, 2 * time.Minute, 0, 3 * time.Minute, "live"},
		{time.Time{}, time.Hour, 119 * time.Second, time.Minute, "behind"},
		{time.Time{}, time.Hour, behindFor, time.Minute, "silent"},
		{time.Time{}, time.Hour, 121 * time.Second, time.Minute, "silent"},
	} {
		if got := stateOf(c.revoked, c.booked, c.heard, c.live); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A run that has ended is as long as it said, one that goes on lasts until now, and any other, or one
// without a start, as long as it was measured.
func TestSetState(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(minutes float64) time.Time { return now.Add(-time.Duration(minutes * float64(time.Minute))) }
	none := time.Time{}
	const measured = 30 * time.Second
	for name, c := range map[string]struct {
		started, ended, last, through time.Time
		state                         query.RunState
		length                        time.Duration
	}{
		"ended":                    {ago(20), ago(10), ago(9), ago(0), query.Ended, 10 * time.Minute},
		"ended at once":            {ago(20), ago(20), ago(19), ago(0), query.Ended, measured},
		"ended before it started":  {ago(20), ago(30), ago(19), ago(0), query.Ended, measured},
		"ended without a start":    {none, ago(10), ago(9), ago(0), query.Ended, measured},
		"ended after 1 ns":         {ago(20), ago(20).Add(1), ago(19), ago(0), query.Ended, 1},
		"goes on":                  {ago(20), none, ago(3), ago(0), query.Running, 20 * time.Minute},
		"goes on without a start":  {none, none, ago(3), ago(0), query.Running, measured},
		"began after the last one": {ago(1), none, ago(3), ago(1), query.Running, measured},
		"began just before it":     {ago(1), none, ago(3), ago(1).Add(1), query.Running, 1},
		"has no newer rows":        {ago(20), none, ago(3).Add(-1), ago(0), query.EndUnknown, measured},
		"reported just now":        {ago(20), none, ago(6), now.Add(-reportedFor), query.Running, 20*time.Minute - reportedFor},
		"is not reported":          {ago(20), none, ago(6), now.Add(-reportedFor - 1), query.EndUnknown, measured},
		"is not reported at all":   {ago(20), none, ago(6), ago(5.9), query.EndUnknown, measured},
	} {
		r := listedRun{through: c.through, covered: measured.Milliseconds()}
		r.Started, r.Ended, r.Last = c.started, c.ended, c.last
		if r.setState(now); r.State != c.state || r.Length != c.length {
			t.Errorf("%s: %v, %v, want %v, %v", name, r.State, r.Length, c.state, c.length)
		}
	}
	// Measured times saturate.
	r := listedRun{covered: math.MaxInt64}
	if r.setState(now); r.Length != math.MaxInt64 {
		t.Errorf("%v measured", r.Length)
	}
}

// All rows of a workload are in its life, which is short where its ends are known.
func TestLifeOf(t *testing.T) {
	const hour = 600_000 // not folded from here on
	at := func(minute int64) time.Time { return time.Unix(60*minute+59, 0) }
	l := &runList{selection: &selection{v: &db.View{Marks: schema.Marks{Hour: hour}}}, now: at(hour + 100)}
	for name, c := range map[string]struct {
		started, ended int64 // minutes; 0 is unknown
		found, until   int64 // rows of the range
		first, last    int64 // folded rows
		from, to       int64
	}{
		"folded":            {hour - 90, hour - 50, 0, 0, hour - 90, hour - 50, hour - 90, hour - 49},
		"not folded":        {hour + 10, hour + 20, 0, 0, 0, 0, hour + 7, hour + 23},
		"in part":           {hour - 90, hour + 20, 0, 0, hour - 90, hour - 1, hour - 90, hour + 23},
		"without an end":    {hour + 10, 0, 0, 0, 0, 0, hour + 7, hour + 103},
		"without a start":   {0, hour + 20, 0, 0, 0, 0, hour, hour + 23},
		"found before it":   {hour + 30, hour + 40, hour + 5, hour + 6, 0, 0, hour + 5, hour + 43},
		"found after it":    {hour + 30, hour + 40, hour + 70, hour + 72, 0, 0, hour + 27, hour + 72},
		"found in the past": {hour - 80, hour - 70, hour - 60, hour - 50, hour - 60, hour - 51, hour - 60, hour - 50},
		"ended later":       {hour + 10, hour + 900, 0, 0, 0, 0, hour + 7, hour + 103},
		"unknown":           {0, 0, 0, 0, 0, 0, hour, hour + 103},
		"just folded":       {hour - 90, hour - 3, 0, 0, 0, 0, 0, 0},
		"empty":             {hour - 90, hour - 50, 0, 0, 0, 0, 0, 0},
	} {
		var w query.Workload
		if c.started != 0 {
			w.Started = at(c.started)
		}
		if c.ended != 0 {
			w.Ended = at(c.ended)
		}
		if c.found != 0 {
			w.First, w.Last = time.Unix(60*c.found, 0), time.Unix(60*c.until, 0)
		}
		if got := l.lifeOf(&w, c.first, c.last); got.First != c.from || got.Last != c.to {
			t.Errorf("%s: from %d to %d, want %d to %d", name, got.First-hour, got.Last-hour, c.from-hour, c.to-hour)
		}
	}
	l.v.Hour = 0
	if got := l.lifeOf(&query.Workload{}, 0, 0); got.First != 0 || got.Last != hour+103 {
		t.Errorf("of a ledger in which nothing is folded: %v", got)
	}
}

// Idle energy is divided hour by hour, and by days where no hours are kept.
func TestIdleUnits(t *testing.T) {
	const day = schema.DayMinutes
	s := &selection{v: &db.View{Marks: schema.Marks{HourFloor: 11 * day}}}
	r := func(l schema.Level, from, to int64) schema.Range { return schema.Range{Level: l, From: from, To: to} }
	want := []schema.Range{r(schema.Days, 9*day, 10*day), r(schema.Days, 10*day, 11*day)}
	for h := range int64(24) {
		want = append(want, r(schema.Hours, 11*day+h*60, 11*day+h*60+60))
	}
	want = append(want, r(schema.Hours, 12*day, 12*day+60), r(schema.Hours, 12*day+60, 12*day+120),
		r(schema.Minutes, 12*day+130, 12*day+180), r(schema.Minutes, 12*day+180, 12*day+240), r(schema.Minutes, 12*day+240, 12*day+241),
		r(schema.Minutes, 13*day, 13*day+60))
	got := s.idleUnits([]schema.Range{r(schema.Days, 9*day, 12*day), r(schema.Hours, 12*day, 12*day+120), r(schema.Minutes, 12*day+130, 12*day+241), r(schema.Minutes, 13*day, 13*day+60)})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("units\n%v, want\n%v", got, want)
	}
}

// A whole energy is modelled if a part is, and absent if no part has it.
func TestJudgeEnergies(t *testing.T) {
	e := usage.Energies[0]
	total := func(q usage.Quality) (t query.Total) {
		if q != usage.Absent {
			t.Present = usage.SetOf(e)
		}
		t.Quality.Set(e, q)
		return t
	}
	hidden := total(usage.Modelled)
	hidden.Present = 0
	for i, c := range []struct {
		rest  query.Total
		parts []query.Total
		want  usage.Quality
	}{
		{total(usage.Absent), []query.Total{total(usage.Measured), total(usage.Apportioned)}, usage.Measured},
		{total(usage.Absent), []query.Total{total(usage.Measured), total(usage.Modelled), total(usage.Measured)}, usage.Modelled},
		{total(usage.Modelled), []query.Total{total(usage.Measured)}, usage.Modelled},
		{total(usage.Measured), nil, usage.Measured},
		{total(usage.Absent), []query.Total{total(usage.Measured), hidden}, usage.Measured},
		{total(usage.Absent), []query.Total{total(usage.Absent), hidden}, usage.Absent},
	} {
		var groups []query.Group
		for _, p := range c.parts {
			groups = append(groups, query.Group{Usage: p})
		}
		whole := total(usage.Measured)
		if judgeEnergies(groups, c.rest.Quality, &whole); whole.Quality.Get(e) != c.want || whole.Present.Has(e) != (c.want != usage.Absent) {
			t.Errorf("%d: %v, %v; want %v", i, whole.Quality.Get(e), whole.Present, c.want)
		}
	}
}

// A range begins with the minute of its start and ends with that of its last nanosecond; both are limited
// to the years that can be stored.
func TestQueryRange(t *testing.T) {
	v := &db.View{}
	for _, c := range []struct {
		from, to time.Time
		a, b     int64
	}{
		{time.Unix(600, 0), time.Unix(660, 0), 10, 11},
		{time.Unix(659, 999), time.Unix(660, 1), 10, 12},
		{time.Unix(-30, 0), time.Unix(1, 0), 0, 1},
		{time.Unix(-3000, 0), time.Unix(-2000, 0), 0, 0},
		{time.Unix(660, 0), time.Unix(600, 0), 11, 11},
		{time.Unix(0, 0), time.Unix(math.MaxInt32*1000, 0), 0, schema.EndMinute},
		{time.Unix(math.MaxInt32*1000, 0), time.Unix(math.MaxInt32*1000+60, 0), schema.EndMinute, schema.EndMinute},
	} {
		if a, b := queryRange(v, c.from, c.to); a != c.a || b != c.b {
			t.Errorf("%v to %v: %d to %d, want %d to %d", c.from, c.to, a, b, c.a, c.b)
		}
	}
}

// A lookup by key is of one day of minutes or hours, and of a limited number of days.
func TestSplitForKeys(t *testing.T) {
	const day = schema.DayMinutes
	r := func(l schema.Level, from, to int64) schema.Range { return schema.Range{Level: l, From: from, To: to} }
	for i, c := range []struct {
		of     schema.Range
		single bool
		want   []schema.Range
	}{
		{r(schema.Minutes, 10, 300), false, []schema.Range{r(schema.Minutes, 10, 130), r(schema.Minutes, 130, 250), r(schema.Minutes, 250, 300)}},
		{r(schema.Minutes, day-10, day+20), true, []schema.Range{r(schema.Minutes, day-10, day), r(schema.Minutes, day, day+20)}},
		{r(schema.Hours, 60, 2*day), true, []schema.Range{r(schema.Hours, 60, day), r(schema.Hours, day, 2*day)}},
		{r(schema.Days, day, 4*day), false, []schema.Range{r(schema.Days, day, 4*day)}},
		{r(schema.Days, 0, 130*day), false, []schema.Range{r(schema.Days, 0, 120*day), r(schema.Days, 120*day, 130*day)}},
		{r(schema.Days, day, 3*day), true, []schema.Range{r(schema.Days, day, 2*day), r(schema.Days, 2*day, 3*day)}},
	} {
		if got := splitForKeys([]schema.Range{c.of}, c.single); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// The time of a group is never negative.
func TestNanos(t *testing.T) {
	for ms, want := range map[int64]string{0: "0", -5: "0", 1: "1000000", math.MaxInt64: "9223372036854775807000000"} {
		if got := nanos(ms).String(); got != want {
			t.Errorf("%d ms are %s ns, want %s", ms, got, want)
		}
	}
}

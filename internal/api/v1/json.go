package v1

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
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

// answerHead is the part of the JSON form before the sums.
type answerHead struct {
	Format int               `json:"format"`
	From   time.Time         `json:"from"`
	To     time.Time         `json:"to"`
	Over   json.RawMessage   `json:"averages_over_seconds"`
	By     []query.Dimension `json:"by"`
	Gaps   int               `json:"gaps"`
	Idle   string            `json:"idle"` // by what idle energy is divided
	// Nested is what became of guests, and NestedNodes how many the groups are without.
	Nested      string `json:"nested"`
	NestedNodes int    `json:"nested_nodes"`
}

// JSON writes an answer as one object, with a line for each group and a newline
// at its end. Amounts are decimals of base units; what is absent is null; an
// integer above 2^53, which many readers would round, is a string. What the
// groups above the limit used is the rest, the sum of all is the total, and
// the whole is what the machines had. The energy of idle machines stands beside
// the rest where it was divided; else it is in the groups of what is idle. What
// nodes used that are guests of others is in groups of their own, if at all, and in
// no sum.
func JSON(a *query.Answer) []byte { return JSONFields(a, nil) }

// JSONFields is JSON with these figures alone, by their keys; nil is all.
func JSONFields(a *query.Answer, keys []string) []byte {
	only := figuresOf(keys)
	h := marshal(answerHead{formatVersion, a.From.UTC(), a.To.UTC(), seconds(a.AveragedOver), a.By, a.Gaps, cmp.Or(a.Idle, noPolicy), cmp.Or(a.Nested, noPolicy), a.NestedNodes})
	var b bytes.Buffer
	b.Write(h[:len(h)-1])
	b.WriteString(",\"groups\":[")
	writeGroups(&b, a, a.Groups, only)
	b.WriteString("\n],\"nested_groups\":[")
	writeGroups(&b, a, a.NestedGroups, only)
	b.WriteString("\n],\"nested_more\":" + strconv.Itoa(a.NestedOmitted) + ",\"rest_groups\":" + strconv.Itoa(a.OtherGroups) + ",\"rest\":")
	writeTotal(&b, &a.Other, a.AveragedOver, only)
	sum := Sum(a)
	b.WriteString(",\n\"total\":")
	writeTotal(&b, &sum, a.AveragedOver, only)
	b.WriteString(",\n\"whole\":")
	writeTotal(&b, &a.Capacity, a.AveragedOver, only)
	b.WriteString("}\n")
	return b.Bytes()
}

// figuresOf are the figures with these keys; all of them where that is nil.
func figuresOf(keys []string) []figure {
	if keys == nil {
		return figures
	}
	return slices.DeleteFunc(slices.Clone(figures), func(f figure) bool { return !slices.Contains(keys, f.key) })
}

// There may be thousands of groups: what is written of them is put together by hand.
func writeGroups(b *bytes.Buffer, a *query.Answer, groups []query.Group, only []figure) {
	before := b.Len()
	for i := range groups {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n")
		writeGroup(b, a, &groups[i], only)
		if i == 0 { // the others take about as much
			b.Grow(min(b.Len()-before, 4<<10) * len(groups) * 9 / 8)
		}
	}
}

func writeGroup(b *bytes.Buffer, a *query.Answer, g *query.Group, only []figure) {
	b.WriteByte('{')
	for i, d := range a.By {
		writeText(b, string(d))
		b.WriteByte(':')
		writeText(b, g.Keys[i])
		b.WriteByte(',')
	}
	fmt.Fprintf(b, `"nodes":%d,"first_at":%s,"last_at":%s,"wall_seconds":%s,`, g.Nodes, timeJSON(g.First), timeJSON(g.Last), wallSeconds(g))
	writeFigures(b, &g.Usage, a.AveragedOver, only)
	b.WriteByte('}')
}

// writeText writes a string.
func writeText(b *bytes.Buffer, s string) {
	if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
		b.Write(marshal(s))
		return
	}
	b.WriteByte('"')
	b.WriteString(s)
	b.WriteByte('"')
}

// writeTotal writes the figures of a sum that is of no group; null where it has
// none.
func writeTotal(b *bytes.Buffer, t *query.Total, over time.Duration, only []figure) {
	if t.Present == 0 {
		b.WriteString("null")
		return
	}
	b.WriteByte('{')
	writeFigures(b, t, over, only)
	b.WriteByte('}')
}

func writeFigures(b *bytes.Buffer, t *query.Total, over time.Duration, only []figure) {
	qualities := make([]usage.Quality, len(only))
	for i := range only {
		f := &only[i]
		v, q := f.amount(t, over)
		qualities[i] = q
		writeText(b, f.key)
		b.WriteByte(':')
		if q == usage.Absent {
			b.WriteString("null,")
			continue
		}
		b.Write(number(v, f.unit))
		b.WriteByte(',')
	}
	b.WriteString(`"covered_seconds":`)
	b.Write(seconds(t.Covered))
	b.WriteString(`,"quality":{`)
	for i, q := range qualities {
		if i > 0 {
			b.WriteByte(',')
		}
		writeText(b, only[i].key)
		b.WriteByte(':')
		writeText(b, q.String())
	}
	b.WriteByte('}')
}

// wallSeconds is the time from the start of the first minute with use to the end of
// the last one.
func wallSeconds(g *query.Group) json.RawMessage {
	if g.First.IsZero() || g.Last.IsZero() {
		return json.RawMessage("null")
	}
	return seconds(g.Last.Sub(g.First))
}

func seconds(d time.Duration) json.RawMessage {
	return json.RawMessage(unit.Nanosecond.Decimal(int64(d)))
}

func number(v unit.Sum, u unit.Unit) json.RawMessage {
	s := v.Decimal(u)
	if isInteger(u) && v.Compare(unit.Sum{}.Add(1<<53)) > 0 {
		s = strconv.Quote(s)
	}
	return json.RawMessage(s)
}

// isInteger says that decimals of a unit are integers.
func isInteger(u unit.Unit) bool { return u != unit.Nanosecond && u != unit.Microjoule }

func timeJSON(t time.Time) json.RawMessage {
	if t.IsZero() {
		return json.RawMessage("null")
	}
	return json.RawMessage(strconv.Quote(formatTime(t)))
}

// marshal encodes without escaping <, > and &, which names may be full of.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("v1: " + err.Error()) // only plain values come here
	}
	return bytes.TrimSpace(b.Bytes())
}

// Parse reads what JSON wrote. Keys that it does not know are skipped, figures
// that are not there are absent. Its errors wrap fault.ErrInvalid.
func Parse(body []byte) (*query.Answer, error) {
	var h answerHead
	var m struct {
		Groups     []map[string]json.RawMessage `json:"groups"`
		Nested     []map[string]json.RawMessage `json:"nested_groups"`
		NestedMore int                          `json:"nested_more"`
		RestGroups int                          `json:"rest_groups"`
		Rest       map[string]json.RawMessage   `json:"rest"`
		Whole      map[string]json.RawMessage   `json:"whole"`
	}
	for _, v := range []any{&h, &m} {
		if err := json.Unmarshal(body, v); err != nil {
			return nil, fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
		}
	}
	if h.Format < 1 || h.Format > formatVersion {
		return nil, fmt.Errorf("%w answer: format %d is not known, only up to %d", fault.ErrInvalid, h.Format, formatVersion)
	}
	if len(h.By) == 0 {
		return nil, fmt.Errorf("%w answer: by is empty", fault.ErrInvalid)
	}
	a := &query.Answer{From: h.From.UTC(), To: h.To.UTC(), By: h.By, Gaps: h.Gaps, OtherGroups: m.RestGroups,
		NestedNodes: h.NestedNodes, NestedOmitted: m.NestedMore}
	if h.Idle != noPolicy {
		a.Idle = h.Idle
	}
	if h.Nested != noPolicy {
		a.Nested = h.Nested
	}
	over, err := parseNumber(h.Over, unit.Nanosecond)
	if err != nil {
		return nil, fmt.Errorf("%w answer: averages_over_seconds: %w", fault.ErrInvalid, err)
	}
	a.AveragedOver = duration(over)
	for _, part := range []struct {
		rows []map[string]json.RawMessage
		to   *[]query.Group
	}{{m.Groups, &a.Groups}, {m.Nested, &a.NestedGroups}} {
		for _, row := range part.rows {
			g, err := parseGroup(a.By, row)
			if err != nil {
				return nil, fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
			}
			*part.to = append(*part.to, g)
		}
	}
	for _, part := range []struct {
		name string
		row  map[string]json.RawMessage
		to   *query.Total
	}{{"rest", m.Rest, &a.Other}, {"whole", m.Whole, &a.Capacity}} {
		if *part.to, err = parseTotal(part.row); err != nil {
			return nil, fmt.Errorf("%w answer: %s: %w", fault.ErrInvalid, part.name, err)
		}
	}
	return a, nil
}

func parseGroup(by []query.Dimension, row map[string]json.RawMessage) (g query.Group, err error) {
	for _, d := range by {
		var name string
		if v, ok := row[string(d)]; !ok {
			return g, fmt.Errorf("a group has no %s", d)
		} else if err := json.Unmarshal(v, &name); err != nil {
			return g, fmt.Errorf("%s: %w", d, err)
		}
		g.Keys = append(g.Keys, name)
	}
	for name, to := range map[string]any{"nodes": &g.Nodes, "first_at": &g.First, "last_at": &g.Last} {
		if v, ok := row[name]; ok {
			if err := json.Unmarshal(v, to); err != nil {
				return g, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	g.Usage, err = parseTotal(row)
	return g, err
}

func parseTotal(row map[string]json.RawMessage) (t query.Total, err error) {
	if row == nil {
		return t, nil
	}
	quality := map[string]usage.Quality{}
	if v, ok := row["quality"]; ok {
		if err := json.Unmarshal(v, &quality); err != nil {
			return t, fmt.Errorf("quality: %w", err)
		}
	}
	for i := range figures {
		f := &figures[i]
		v, q := row[f.key], quality[f.key]
		if f.kind == LevelAverage || f.kind == EnergySum || f.kind == PowerAverage || len(v) == 0 || string(v) == "null" || q == usage.Absent {
			continue
		}
		sum, err := parseNumber(v, f.unit)
		if err != nil {
			return t, fmt.Errorf("%s: %w", f.key, err)
		}
		switch f.kind {
		case idleEnergy:
			t.Idle, t.IdleQuality = sum, q
			continue
		case idleEnergyError:
			t.IdleError = sum
			continue
		}
		t.Sum[f.res] = sum
		t.Present |= 1 << f.res
		t.Quality.Set(f.res, q)
	}
	if v, ok := row["covered_seconds"]; ok {
		covered, err := parseNumber(v, unit.Nanosecond)
		if err != nil {
			return t, fmt.Errorf("covered_seconds: %w", err)
		}
		t.Covered = duration(covered)
	}
	return t, nil
}

func parseNumber(raw json.RawMessage, u unit.Unit) (unit.Sum, error) {
	return unit.ParseSum(strings.Trim(string(raw), `"`), u)
}

// duration is a sum of nanoseconds as far as one can hold it.
func duration(s unit.Sum) time.Duration {
	if v, err := strconv.ParseInt(s.String(), 10, 64); err == nil {
		return time.Duration(v)
	}
	return 1<<63 - 1
}

package v1

import (
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// chunk is how many bytes are collected before they are written.
const chunk = 64 << 10

// writeDocument writes the struct that v points to as one object. Each group in it,
// which has the dimensions by as keys, is on a line of its own; a field with the tag line
// begins a line.
func writeDocument(w io.Writer, v any, by []query.Dimension) error {
	e := &encoder{w: w, b: make([]byte, 0, chunk+16<<10), prefixes: keyPrefixes(by)}
	e.b = append(e.b, '{')
	e.fields(reflect.ValueOf(v).Elem(), true)
	e.b = append(e.b, "}\n"...)
	e.flush(0)
	return e.err
}

// An encoder collects bytes and writes them in chunks. Its first error stays.
type encoder struct {
	w        io.Writer
	b        []byte
	prefixes []string // of the keys of groups
	err      error
}

// flush writes what is collected where it is more than limit bytes.
func (e *encoder) flush(limit int) {
	if len(e.b) <= limit || e.err != nil {
		return
	}
	_, e.err = e.w.Write(e.b)
	e.b = e.b[:0]
}

// fields appends the fields of a struct, those of an embedded one too.
func (e *encoder) fields(v reflect.Value, first bool) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			e.fields(v.Field(i), first)
			continue
		case !f.IsExported() || key == "-" || options == "omitempty" && v.Field(i).IsZero():
			continue
		case !first:
			e.b = append(e.b, ',')
		}
		if first = false; f.Tag.Get("line") != "" {
			e.b = append(e.b, '\n')
		}
		e.b = append(append(append(e.b, '"'), key...), `":`...)
		switch x := v.Field(i).Interface().(type) {
		case []Group:
			e.groups(x)
		case []Edge:
			e.edges(x)
		case *Figures:
			e.total(x)
		case []Usage:
			e.periods(x)
		default:
			e.b = append(e.b, marshal(x)...)
		}
	}
}

// periods appends the answers of periods.
func (e *encoder) periods(list []Usage) {
	e.objects(len(list), func(i int) { e.fields(reflect.ValueOf(&list[i]).Elem(), true) })
	e.b = append(e.b, ']')
}

// objects appends the begin of a list of n objects, of which one appends the fields.
func (e *encoder) objects(n int, one func(i int)) {
	e.b = append(e.b, '[')
	for i := range n {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.b = append(e.b, "\n{"...)
		one(i)
		e.b = append(e.b, '}')
		e.flush(chunk)
	}
}

func (e *encoder) edges(list []Edge) {
	e.objects(len(list), func(i int) {
		for k, p := range e.prefixes {
			e.b = append(appendText(append(e.b, p...), list[i].Keys[k]), ',')
		}
		e.fields(reflect.ValueOf(&list[i]).Elem(), true)
	})
	e.b = append(e.b, "\n]"...)
}

func (e *encoder) groups(groups []Group) {
	e.b = append(e.b, '[')
	for i := range groups {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		e.b = append(e.b, '\n')
		before := len(e.b)
		e.group(&groups[i])
		if i == 0 {
			grow(e.w, len(groups), len(e.b)-before)
		}
		e.flush(chunk)
	}
	e.b = append(e.b, "\n]"...)
}

// grow reserves space in a buffer for n elements of about the given number of bytes each.
func grow(w io.Writer, n, bytes int) {
	if b, ok := w.(interface{ Grow(int) }); ok {
		b.Grow(n * min(bytes, 4<<10) * 9 / 8)
	}
}

func (e *encoder) group(g *Group) {
	b := append(e.b, '{')
	for i, p := range e.prefixes {
		b = append(appendText(append(b, p...), g.Keys[i]), ',')
	}
	b = append(strconv.AppendInt(append(b, `"nodes":`...), int64(g.Nodes), 10), `,"first_at":`...)
	b = append(appendTime(b, g.First, `"`, "null"), `,"last_at":`...)
	b = append(appendTime(b, g.Last, `"`, "null"), `,"wall_seconds":`...)
	if g.First == nil || g.Last == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, seconds(g.wall())...)
	}
	e.b = append(g.appendJSON(append(b, ',')), '}')
}

// wall is the time from the start of the first minute with use to the end of the last one.
func (g *Group) wall() time.Duration { return g.Last.Sub(*g.First) }

// total appends the figures of a sum; null if f is nil.
func (e *encoder) total(f *Figures) {
	if f == nil {
		e.b = append(e.b, "null"...)
		return
	}
	e.b = append(f.appendJSON(append(e.b, '{')), '}')
}

// appendJSON appends the figures, as parts of an object.
func (f *Figures) appendJSON(b []byte) []byte {
	for i := range f.figures {
		g, a := &f.figures[i], &f.amounts[i]
		b = append(b, g.prefix...)
		switch {
		case a.Quality == usage.Absent:
			b = append(b, "null"...)
		case isInteger(g.unit) && a.Value.Compare(unit.Sum{}.Add(1<<53)) > 0:
			b = append(appendDecimal(append(b, '"'), a.Value, g.unit), '"')
		default:
			b = appendDecimal(b, a.Value, g.unit)
		}
		b = append(b, ',')
	}
	b = append(append(append(b, `"covered_seconds":`...), f.Covered.Decimal(unit.Nanosecond)...), `,"quality":{`...)
	for i := range f.figures {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(append(b, f.figures[i].prefix...), '"'), f.amounts[i].Quality.String()...), '"')
	}
	return append(b, '}')
}

// isInteger reports whether decimals of a unit are integers.
func isInteger(u unit.Unit) bool { return u.Digits() == 0 }

// appendDecimal appends v as [unit.Sum.Decimal] writes it.
func appendDecimal(b []byte, v unit.Sum, u unit.Unit) []byte {
	hi, lo := v.Halves()
	if hi != 0 || lo >= 1<<63 {
		return append(b, v.Decimal(u)...)
	}
	one, digits := uint64(u.One()), u.Digits()
	b = strconv.AppendUint(b, lo/one, 10)
	rest := lo % one
	if rest == 0 {
		return b
	}
	b = append(b, '.')
	for i := len(b); digits > 0; digits-- {
		one /= 10
		b = append(b, '0'+byte(rest/one))
		if rest %= one; rest == 0 && i > 0 {
			break
		}
	}
	return b
}

// appendText appends a string in quotes.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return append(b, marshal(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendTime appends t between quotes, or absent if t is nil.
func appendTime(b []byte, t *time.Time, quote, absent string) []byte {
	if t == nil {
		return append(b, absent...)
	}
	return append(t.UTC().AppendFormat(append(b, quote...), time.RFC3339Nano), quote...)
}

// keyPrefixes are the keys of dimensions in quotes, each with a colon.
func keyPrefixes(by []query.Dimension) (prefixes []string) {
	for _, d := range by {
		prefixes = append(prefixes, string(appendText(nil, string(d)))+":")
	}
	return prefixes
}

// WriteCSV implements [Table]: a row for each group, then one without names for the groups
// beyond the limit, then those of guests, which say so under nested. With periods it has these
// rows for each period, which from and to tell, and none for the whole range.
func (u *Usage) WriteCSV(w io.Writer) error {
	grow(w, 1+len(u.Groups)+len(u.NestedGroups), 40*len(u.figures))
	r := newRowWriter(w)
	for _, d := range u.By {
		r.add(string(d))
	}
	for _, s := range []string{"nodes", "first_at", "last_at", "wall_seconds"} {
		r.add(s)
	}
	for i := range u.figures {
		r.add(u.figures[i].key)
	}
	for _, s := range []string{"covered_seconds", "quality", "from", "to", "rest_groups", "nested"} {
		r.add(s)
	}
	err := r.flush()
	if u.Every == "" {
		err = errors.Join(err, u.writeRows(r))
	}
	for i := 0; i < len(u.Periods) && err == nil; i++ {
		err = u.Periods[i].writeRows(r)
	}
	if err != nil {
		return err
	}
	return r.close()
}

// writeRows writes the rows of one range.
func (u *Usage) writeRows(r *rowWriter) (err error) {
	for i := 0; i < len(u.Groups) && err == nil; i++ {
		err = u.writeRow(r, &u.Groups[i], 0, false)
	}
	if u.RestGroups > 0 && err == nil {
		rest := u.Rest
		if rest == nil {
			rest = &Figures{figures: u.figures, amounts: make([]Amount, len(u.figures))}
		}
		err = u.writeRow(r, &Group{Keys: make([]string, len(u.By)), Figures: *rest}, u.RestGroups, false)
	}
	for i := 0; i < len(u.NestedGroups) && err == nil; i++ {
		err = u.writeRow(r, &u.NestedGroups[i], 0, true)
	}
	return err
}

func (u *Usage) writeRow(r *rowWriter, g *Group, rest int, nested bool) error {
	for _, k := range g.Keys {
		r.add(k)
	}
	if rest == 0 {
		r.text = strconv.AppendInt(r.text, int64(g.Nodes), 10)
	}
	r.end()
	r.text = appendTime(r.text, g.First, "", "")
	r.end()
	r.text = appendTime(r.text, g.Last, "", "")
	r.end()
	if g.First != nil && g.Last != nil {
		r.text = append(r.text, seconds(g.wall())...)
	}
	r.end()
	for i := range g.figures {
		if a := &g.amounts[i]; a.Quality != usage.Absent {
			r.text = appendDecimal(r.text, a.Value, g.figures[i].unit)
		}
		r.end()
	}
	r.add(g.Covered.Decimal(unit.Nanosecond))
	for i := range g.figures {
		if i > 0 {
			r.text = append(r.text, ';')
		}
		r.text = append(append(append(r.text, g.figures[i].key...), '='), g.amounts[i].Quality.String()...)
	}
	r.end()
	r.text = appendTime(r.text, timeOrNil(u.From), "", "")
	r.end()
	r.text = appendTime(r.text, timeOrNil(u.To), "", "")
	r.end()
	r.text = strconv.AppendInt(r.text, int64(rest), 10)
	r.end()
	r.text = strconv.AppendBool(r.text, nested || u.Nested == query.NestedOnly)
	r.end()
	return r.flush()
}

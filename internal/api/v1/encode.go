package v1

import (
	"bytes"
	"encoding"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
	safe "mete.dev/mete/internal/x/text"
)

// A Document is an answer that can be written as JSON.
type Document interface {
	WriteJSON(w io.Writer) error
}

// A Table is an answer that can be written as CSV too: a header with the keys of the JSON
// form, and a row for each element. A value that is null in JSON is an empty field.
type Table interface {
	Document
	WriteCSV(w io.Writer) error
}

// JSON returns a document as JSON, with a newline at its end.
func JSON(d Document) []byte { return inMemory(d.WriteJSON) }

// CSV returns a table as CSV.
func CSV(t Table) []byte { return inMemory(t.WriteCSV) }

func inMemory(write func(io.Writer) error) []byte {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		panic("v1: " + err.Error()) // a buffer takes everything
	}
	return b.Bytes()
}

// marshal encodes a value as JSON without escaping <, > and &, which names may be full of.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("v1: " + err.Error()) // only plain values come here
	}
	return bytes.TrimSpace(b.Bytes())
}

// writeLine writes a value as one line of JSON.
func writeLine(w io.Writer, v any) error {
	_, err := w.Write(append(marshal(v), '\n'))
	return err
}

// A rowWriter writes rows of CSV whose fields are appended to one text.
type rowWriter struct {
	w      *csv.Writer
	text   []byte
	ends   []int // of each field in text
	fields []string
}

func newRowWriter(w io.Writer) *rowWriter { return &rowWriter{w: csv.NewWriter(w)} }

// add appends a field.
func (r *rowWriter) add(s string) { r.text = append(r.text, s...); r.end() }

// end ends the field that was appended to text.
func (r *rowWriter) end() { r.ends = append(r.ends, len(r.text)) }

// flush writes the fields as a row.
func (r *rowWriter) flush() error {
	text, from := string(r.text), 0
	r.fields = r.fields[:0]
	for _, to := range r.ends {
		r.fields = append(r.fields, safe.Field(text[from:to]))
		from = to
	}
	r.text, r.ends = r.text[:0], r.ends[:0]
	return r.w.Write(r.fields)
}

// close writes what is still buffered.
func (r *rowWriter) close() error {
	r.w.Flush()
	return r.w.Error()
}

// writeCSV writes structs, one row each, by a plan that is made once.
func writeCSV[T any](w io.Writer, list []T) error {
	r := newRowWriter(w)
	plan := columnsOf(reflect.TypeFor[T](), nil)
	for i := range plan {
		r.add(plan[i].name)
	}
	if err := r.flush(); err != nil {
		return err
	}
	for i := range list {
		v := reflect.ValueOf(&list[i]).Elem()
		for k := range plan {
			r.text = plan[k].append(r.text, v)
			r.end()
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
	return r.close()
}

// A column is a field of a struct in CSV. Its name is the field's key in JSON, or
// what the tag csv says instead; with the tag "-" it is left out.
type column struct {
	name string
	path []int // of the field, through structs
}

// columnsOf plans the columns of a struct. A struct within it has columns of its own.
func columnsOf(t reflect.Type, path []int) (plan []column) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if s, ok := f.Tag.Lookup("csv"); ok {
			name = s
		}
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		at := append(slices.Clone(path), i)
		switch {
		case name == "-" || !f.IsExported():
		case inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]():
			plan = append(plan, columnsOf(inner, at)...)
		default:
			plan = append(plan, column{name, at})
		}
	}
	return plan
}

// append appends the field of a struct; nothing where that, or the struct around it, is nil.
func (c *column) append(b []byte, v reflect.Value) []byte {
	for _, i := range c.path {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return b
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return b
		}
		v = v.Elem()
	}
	return appendValue(b, v)
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch x := v.Interface().(type) {
	case time.Time:
		return x.UTC().AppendFormat(b, time.RFC3339Nano)
	case map[string]string:
		return append(b, LabelsText(x)...)
	case map[string]usage.Quality:
		return append(b, labelsText(x, usage.Quality.String)...)
	case map[string]int:
		return append(b, labelsText(x, strconv.Itoa)...)
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			panic("v1: " + err.Error()) // only plain values come here
		}
		return append(b, text...)
	}
	switch v.Kind() {
	case reflect.String:
		return append(b, v.String()...)
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool())
	case reflect.Int, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case reflect.Uint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	}
	panic(fmt.Sprintf("v1: %s has no form in CSV", v.Type()))
}

// LabelsText writes labels as KEY=VALUE in the order of their keys, with semicolons.
func LabelsText(m map[string]string) string {
	return labelsText(m, func(s string) string { return s })
}

func labelsText[V any](m map[string]V, text func(V) string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+"="+text(m[k]))
	}
	return strings.Join(s, ";")
}

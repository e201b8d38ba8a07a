package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// An Element is what a list holds.
type Element interface {
	// ListKey is the key of the list in JSON.
	ListKey() string
}

// A List is a page of elements, or all of them. In JSON it is an object with the
// elements under their key, one a line, and next_cursor.
type List[T Element] struct {
	Items []T
	Next  string // the cursor of the next page; "" on the last page
}

// A Page is what a list says of the next one.
type Page struct {
	Next string `json:"next_cursor,omitempty" doc:"start of the next page, for the parameter cursor; absent on the last page"`
}

// ListOf makes a list of model values, each by its constructor.
func ListOf[M any, T Element](list []M, of func(*M) T) List[T] {
	items := make([]T, len(list))
	for i := range list {
		items[i] = of(&list[i])
	}
	return List[T]{Items: items}
}

// ListKey is the key of the elements in JSON.
func (List[T]) ListKey() string {
	var none T
	return none.ListKey()
}

// WriteJSON implements [Document].
func (l List[T]) WriteJSON(w io.Writer) error { return writeList(w, l.ListKey(), l.Items, l.Next) }

// WriteCSV implements [Table].
func (l List[T]) WriteCSV(w io.Writer) error { return writeCSV(w, l.Items) }

// UnmarshalJSON reads what WriteJSON wrote.
func (l *List[T]) UnmarshalJSON(body []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return err
	}
	items, ok := m[l.ListKey()]
	if !ok {
		return fmt.Errorf("the key %s is absent", l.ListKey())
	}
	if next, ok := m["next_cursor"]; ok {
		if err := json.Unmarshal(next, &l.Next); err != nil {
			return err
		}
	}
	return json.Unmarshal(items, &l.Items)
}

// writeList writes elements under a key, one at a time.
func writeList[T any](w io.Writer, key string, list []T, next string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	b.WriteString(`{"` + key + `":[`)
	for i := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		if err := e.Encode(&list[i]); err != nil {
			return err
		}
		b.Truncate(b.Len() - 1) // the encoder's newline
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
		b.Reset()
	}
	b.WriteString("\n]")
	appendNext(&b, next)
	b.WriteString("}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// appendNext appends the cursor of the next page, if there is one.
func appendNext(b *bytes.Buffer, next string) {
	if next != "" {
		b.WriteString(`,"next_cursor":`)
		b.Write(marshal(next))
	}
}

// timeOrNil returns t in UTC, or nil, which JSON encodes as null, if t is zero.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// mapSlice makes one list of another.
func mapSlice[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, v := range list {
		out = append(out, f(v))
	}
	return out
}

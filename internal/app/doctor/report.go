package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// A State is the result of a check. Worse is larger.
type State uint8

const (
	// OK: it works.
	OK State = iota
	// Limited: it works, and some figures are worse or absent.
	Limited
	// Missing: it does not exist. Only the figures that it would give are absent.
	Missing
	// Failed: it is broken, or a program of mete refuses it.
	Failed
)

var stateNames = [...]string{"ok", "limited", "missing", "failed"}

// String returns the word that people and JSON see.
func (s State) String() string { return stateNames[s&3] }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Check is the result of one check.
type Check struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Figures says what follows for figures; "" is nothing.
	Figures string `json:"figures,omitempty"`
	// Do says what to do, with a command if one exists; "" is nothing.
	Do string `json:"do,omitempty"`
}

// of returns a check.
func of(name string, s State, format string, args ...any) Check {
	return Check{Name: name, State: s, Found: fmt.Sprintf(format, args...)}
}

// figures returns c with what follows for figures.
func (c Check) figures(text string) Check { c.Figures = text; return c }

// do returns c with what to do.
func (c Check) do(text string) Check { c.Do = text; return c }

// failed returns the check of an error, with its hint.
func failed(name string, err error) Check {
	return of(name, Failed, "%s", err).do(fault.Hint(err))
}

// A Report is the output of mete doctor, and its JSON.
type Report struct {
	Format  int       `json:"format"` // version of this form
	Time    time.Time `json:"time"`
	Version string    `json:"version"` // of the program
	Host    string    `json:"host"`
	UID     int       `json:"uid"`
	Checks  []Check   `json:"checks"` // by group
	Counts  Counts    `json:"counts"`
}

// Counts are how many checks have each state.
type Counts struct {
	OK      int `json:"ok"`
	Limited int `json:"limited"`
	Missing int `json:"missing"`
	Failed  int `json:"failed"`
}

// add adds the checks of a group.
func (r *Report) add(group string, checks []Check) {
	for _, c := range checks {
		c.Group = group
		for _, t := range []*string{&c.Found, &c.Figures, &c.Do} {
			*t = strings.Join(strings.Fields(*t), " ")
		}
		r.Checks = append(r.Checks, c)
		switch c.State {
		case OK:
			r.Counts.OK++
		case Limited:
			r.Counts.Limited++
		case Missing:
			r.Counts.Missing++
		case Failed:
			r.Counts.Failed++
		}
	}
}

// json returns the report as JSON.
func (r *Report) json() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return text.JSON(b.Bytes()), nil
}

// text returns the report for people, in lines of a width where words allow; 0 is any width. With ascii
// it has no other characters.
func (r *Report) text(width int, ascii bool) string {
	var b strings.Builder
	names := 0
	for _, c := range r.Checks {
		names = max(names, top.Width(c.Name))
	}
	indent := len("  limited  ") + names + 2
	group := ""
	for _, c := range r.Checks {
		if c.Group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = c.Group
			b.WriteString(strings.ToUpper(group) + "\n")
		}
		head := fmt.Sprintf("  %-7s  %-*s  ", c.State, names, c.Name)
		wrap(&b, head, indent, width, shown(c.Found, ascii))
		for _, more := range []struct{ title, text string }{{"figures: ", c.Figures}, {"do: ", c.Do}} {
			if more.text != "" {
				wrap(&b, strings.Repeat(" ", indent)+more.title, indent+2, width, shown(more.text, ascii))
			}
		}
	}
	n := r.Counts
	fmt.Fprintf(&b, "\n%d checks: %d ok, %d limited, %d missing, %d failed\n", len(r.Checks), n.OK, n.Limited, n.Missing, n.Failed)
	return b.String()
}

// shown removes control characters from a text, and with ascii replaces what is not ASCII.
func shown(s string, ascii bool) string {
	s = text.Clean(s)
	if !ascii {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '?'
		}
		return r
	}, s)
}

// wrap writes words behind head, in lines of a width, of which all but the first are indented.
func wrap(b *strings.Builder, head string, indent, width int, words string) {
	b.WriteString(head)
	at, first := top.Width(head), true
	for w := range strings.FieldsSeq(words) {
		switch {
		case first:
		case width > 0 && at+1+top.Width(w) > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(w)
		at, first = at+top.Width(w), false
	}
	b.WriteByte('\n')
}

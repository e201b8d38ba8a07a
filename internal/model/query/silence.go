package query

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Silence suppresses the notifications of all alerts that its matchers match, for a time. The
// alerts stay visible.
type Silence struct {
	ID           string
	Matchers     Matchers
	Starts, Ends time.Time
	By, Comment  string // its author, and the reason
}

// The limits of a silence.
const (
	MaxMatchers       = 20
	MaxMatcherBytes   = 2 << 10 // of the text of all matchers
	MaxSilenceComment = 500     // bytes
)

// State returns whether the silence is pending, active or expired.
func (s *Silence) State(now time.Time) string {
	switch {
	case !now.Before(s.Ends):
		return "expired"
	case now.Before(s.Starts):
		return "pending"
	}
	return "active"
}

// Suppresses reports whether the silence applies now to an alert with these labels.
func (s *Silence) Suppresses(labels map[string]string, now time.Time) bool {
	return s.State(now) == "active" && s.Matchers.Match(labels)
}

// A Matcher compares the value of one label, as Alertmanager's matchers do: a label that an alert
// does not have is empty, and a regular expression matches the whole value.
type Matcher struct {
	Name, Value       string
	IsRegex, Negative bool
	pattern           *regexp.Regexp
}

func (m *Matcher) match(value string) bool {
	if m.IsRegex {
		return m.pattern.MatchString(value) != m.Negative
	}
	return (value == m.Value) != m.Negative
}

// String returns the text form of a matcher, as node=~"rack1-.*".
func (m *Matcher) String() string {
	return m.Name + operators[index(m.Negative)][index(m.IsRegex)] + strconv.Quote(m.Value)
}

// operators are by Negative and IsRegex.
var operators = [2][2]string{{"=", "=~"}, {"!=", "!~"}}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Matchers match an alert if each of them does.
type Matchers []Matcher

// Match reports whether all matchers match.
func (ms Matchers) Match(labels map[string]string) bool {
	for i := range ms {
		if !ms[i].match(labels[ms[i].Name]) {
			return false
		}
	}
	return true
}

// String returns the text form, which ParseMatchers parses.
func (ms Matchers) String() string {
	texts := make([]string, len(ms))
	for i := range ms {
		texts[i] = ms[i].String()
	}
	return strings.Join(texts, ", ")
}

// Only reports whether the matchers match no alert but those whose label has one of the values.
func (ms Matchers) Only(label string, values []string) bool {
	return slices.ContainsFunc(ms, func(m Matcher) bool {
		return m.Name == label && !m.IsRegex && !m.Negative && slices.Contains(values, m.Value)
	})
}

var matcherStart = regexp.MustCompile(`^\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*`)

// ParseMatchers parses matchers that are separated by commas, as
// alertname="MeteNodeSilent", node=~"rack1-.*". A value without spaces and commas needs no quotes.
// The error wraps fault.ErrInvalid.
func ParseMatchers(text string) (ms Matchers, err error) {
	invalid := func(format string, args ...any) (Matchers, error) {
		return nil, fault.WithHint(fmt.Errorf("matchers: "+format+": %w", append(args, fault.ErrInvalid)...), `write alertname="MeteNodeSilent", node=~"rack1-.*"; the operators are = != =~ !~`)
	}
	if len(text) > MaxMatcherBytes {
		return invalid("%d bytes, more than %d", len(text), MaxMatcherBytes)
	}
	matchesEmpty := true
	for rest := text; ; {
		start := matcherStart.FindStringSubmatch(rest)
		if start == nil {
			return invalid("%q is not LABEL=VALUE", rest)
		}
		rest = rest[len(start[0]):]
		m := Matcher{Name: start[1], IsRegex: strings.HasSuffix(start[2], "~"), Negative: start[2][0] == '!'}
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			m.Value, _ = strconv.Unquote(quoted) // a quoted prefix is valid
			rest = rest[len(quoted):]
		} else {
			end := strings.IndexAny(rest, ", \t\n\"")
			if end < 0 {
				end = len(rest)
			}
			m.Value, rest = rest[:end], rest[end:]
		}
		if m.IsRegex {
			if m.pattern, err = regexp.Compile("^(?:" + m.Value + ")$"); err != nil {
				return invalid("%s: %w", m.Name, err)
			}
		}
		matchesEmpty = matchesEmpty && m.match("")
		if ms = append(ms, m); len(ms) > MaxMatchers {
			return invalid("more than %d", MaxMatchers)
		}
		rest = strings.TrimSpace(rest)
		if rest == "" {
			break
		}
		if rest[0] != ',' {
			return invalid("expected a comma before %q", rest)
		}
		rest = rest[1:]
	}
	if matchesEmpty {
		return invalid("%s would silence every alert", ms)
	}
	if n := len(ms.String()); n > MaxMatcherBytes { // as they are stored, and parsed again
		return invalid("%d bytes in quotes, more than %d", n, MaxMatcherBytes)
	}
	return ms, nil
}

package external

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A Unit is a unit of the values of meters.
type Unit struct {
	Name  string
	Kind  power.Kind
	Micro int64 // uW or uJ per unit
}

var units = []Unit{
	{"W", power.Power, 1e6}, {"kW", power.Power, 1e9}, {"mW", power.Power, 1e3},
	{"J", power.Energy, 1e6}, {"kJ", power.Energy, 1e9}, {"Wh", power.Energy, 3600e6}, {"kWh", power.Energy, 3600e9},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *Unit) UnmarshalText(b []byte) error {
	for _, v := range units {
		if v.Name == string(b) {
			*u = v
			return nil
		}
	}
	return fmt.Errorf("unit %q is none of W, kW, mW, J, kJ, Wh and kWh: %w", b, fault.ErrInvalid)
}

// Value returns the value of a decimal number in the unit, in uW or uJ, rounded down. The error
// wraps fault.ErrInvalid if the text is negative, not a number, or too large.
func (u Unit) Value(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if len(text) > 64 {
		return 0, fmt.Errorf("a text of %d characters is not a number: %w", len(text), fault.ErrInvalid)
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || strings.ContainsAny(text, "xX_pP"):
		return 0, fmt.Errorf("%q is not a number: %w", text, fault.ErrInvalid)
	case f < 0:
		return 0, fmt.Errorf("%s %s is negative: %w", text, u.Name, fault.ErrInvalid)
	case !(f*float64(u.Micro) < 1<<62): // not a number, too
		return 0, fmt.Errorf("%s %s is out of range: %w", text, u.Name, fault.ErrInvalid)
	case f*float64(u.Micro) < 1:
		return 0, nil
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a number: %w", text, fault.ErrInvalid)
	}
	r.Mul(r, new(big.Rat).SetInt64(u.Micro))
	return new(big.Int).Quo(r.Num(), r.Denom()).Int64(), nil
}

// A Path leads to a value in JSON: keys and list indexes, as in switches[0].aenergy.total. A key
// with characters other than letters, digits, _ and - is written in brackets and quotes: ["a key"].
type Path []any // string or int

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Path) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePath(string(b))
	return err
}

// ParsePath reads a path. The error wraps fault.ErrInvalid.
func ParsePath(text string) (p Path, err error) {
	bad := func(why string) error { return fmt.Errorf("path %q: %s: %w", text, why, fault.ErrInvalid) }
	for rest := text; rest != ""; {
		switch {
		case strings.HasPrefix(rest, `["`):
			quoted, err := strconv.QuotedPrefix(rest[1:])
			if err != nil || !strings.HasPrefix(rest[1+len(quoted):], "]") {
				return nil, bad(`a key in quotes ends with "]`)
			}
			key, _ := strconv.Unquote(quoted) // it is a quoted string
			p, rest = append(p, key), rest[len(quoted)+2:]
		case rest[0] == '[':
			place, after, found := strings.Cut(rest[1:], "]")
			n, err := strconv.ParseUint(place, 10, 31)
			if !found || err != nil {
				return nil, bad("a place in a list is a number in brackets, from 0")
			}
			p, rest = append(p, int(n)), after
		default:
			if len(p) > 0 {
				if rest[0] != '.' {
					return nil, bad("a dot is before a key")
				}
				rest = rest[1:]
			}
			n := strings.IndexFunc(rest, func(r rune) bool {
				return !(r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
			})
			if n < 0 {
				n = len(rest)
			}
			if n == 0 {
				return nil, bad(`there is no key; one of other characters stands as ["key"]`)
			}
			p, rest = append(p, rest[:n]), rest[n:]
		}
	}
	return p, nil
}

// Find returns the number to which the path leads in a JSON text, as it is written there: a number,
// or a string that holds one. For an empty path it returns the whole text. The error names the step
// at which the path ends.
func (p Path) Find(text []byte) (string, error) {
	if len(p) == 0 {
		return strings.TrimSpace(string(text)), nil
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", fmt.Errorf("the text is not valid JSON: %w: %w", err, fault.ErrInvalid)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("the text continues after the JSON value: %w", fault.ErrInvalid)
	}
	for i, step := range p {
		var ok bool
		switch s := step.(type) {
		case string:
			var m map[string]any
			if m, ok = v.(map[string]any); ok {
				v, ok = m[s]
			}
		case int:
			var l []any
			if l, ok = v.([]any); ok {
				if ok = s < len(l); ok {
					v = l[s]
				}
			}
		}
		if !ok {
			return "", fmt.Errorf("there is no %v: %w", p[:i+1], fault.ErrInvalid)
		}
	}
	switch v := v.(type) {
	case json.Number:
		return v.String(), nil
	case string:
		return v, nil
	}
	return "", fmt.Errorf("%v is not a number: %w", p, fault.ErrInvalid)
}

// String writes the path as ParsePath reads it.
func (p Path) String() string {
	var b strings.Builder
	for i, step := range p {
		switch s := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		case string:
			plain, err := ParsePath(s)
			switch {
			case err != nil || len(plain) != 1 || plain[0] != s:
				fmt.Fprintf(&b, "[%q]", s)
			case i > 0:
				b.WriteString("." + s)
			default:
				b.WriteString(s)
			}
		}
	}
	return b.String()
}

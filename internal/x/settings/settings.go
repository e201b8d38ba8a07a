// Package settings holds the settings of programs, each in one table: a program's flags, environment
// variables, section of the configuration file and documentation are made from the same entries.
//
// A value comes from the first of these that has one: a flag, the environment, the file, the default.
package settings

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

// A Kind is the type of a setting's value.
type Kind uint8

// Kinds of values. A list has one or more texts.
const (
	Text Kind = iota + 1
	List
	Switch
	Number
	Duration
	Size
)

func (k Kind) String() string {
	return [...]string{"", "text", "list of texts", "true or false", "number", "duration", "size"}[k]
}

// A Value parses a setting's text, as [flag.Value] does. The error of Set says how to write it.
type Value interface {
	Set(text string) error
	String() string
}

// A Setting is an entry of the table.
type Setting struct {
	Name  string // of the flag; the key in the file has _ for -
	Short string // of the flag, one letter, or ""
	Kind  Kind
	Arg   string // what stands for the value in help texts; "" for a switch
	Help  string
	Env   string // variable
	// FlagOnly says that neither the file nor the environment has it: a request for one run.
	FlagOnly bool
	// InFile is false for what finds the file.
	InFile bool

	secret  func(text string) string // returns why the text is a secret; "" if it is none
	aside   string                   // where a secret may be, "" for @FILE
	choices []string
	checks  []func(text string) error
	def     []string // texts of the default
	assign  func(texts []string) error
	now     func() []string
	flags   []string // texts from flags
	origin  Origin
}

// Key is the setting's key in the file.
func (s *Setting) Key() string { return strings.ReplaceAll(s.Name, "-", "_") }

// Choices are the only values, nil if others are possible.
func (s *Setting) Choices() []string { return s.choices }

// Default is the text of the default; "" if there is none.
func (s *Setting) Default() string { return strings.Join(s.def, ",") }

// Texts are the value's texts: one, or those of a list. Secrets in them are replaced.
func (s *Setting) Texts() []string {
	texts := s.now()
	for i, t := range texts {
		if s.secret != nil && s.secret(t) != "" {
			texts[i] = hide(t)
		}
	}
	return texts
}

// hide returns what of a secret may be shown.
func hide(text string) string {
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host + "/(secret)"
	}
	return "(secret)"
}

// Origin says where the value is from.
func (s *Setting) Origin() Origin { return s.origin }

// SetFlag takes a flag's value: that of a list adds to it.
func (s *Setting) SetFlag(text string) error {
	if s.Kind != List {
		s.flags = nil
	}
	texts := append(slices.Clone(s.flags), text)
	if err := s.set(texts); err != nil {
		return err
	}
	s.flags, s.origin = texts, Origin{Kind: Flag, Name: s.Name}
	return nil
}

// set checks and assigns texts.
func (s *Setting) set(texts []string) error {
	for _, t := range texts {
		if s.choices != nil && !slices.Contains(s.choices, t) {
			return invalid("it is one of %s", strings.Join(s.choices, ", "))
		}
		for _, check := range s.checks {
			if err := check(t); err != nil {
				return err
			}
		}
	}
	return s.assign(texts)
}

// OneOf limits the value to choices.
func (s *Setting) OneOf(choices ...string) *Setting {
	s.choices = choices
	return s
}

// Check adds a check of each text.
func (s *Setting) Check(check func(text string) error) *Setting {
	s.checks = append(s.checks, check)
	return s
}

// WithShort gives the flag a short form.
func (s *Setting) WithShort(letter string) *Setting {
	s.Short = letter
	return s
}

// WithEnv names the variable, where programs or tests know it by another name than its own.
func (s *Setting) WithEnv(name string) *Setting {
	s.Env = name
	return s
}

// OnlyFlag takes the setting out of the file and the environment.
func (s *Setting) OnlyFlag() *Setting {
	s.FlagOnly, s.InFile, s.Env = true, false, ""
	return s
}

// SecretURL says that the text may be a URL with a password, which has to be elsewhere, as aside says.
func (s *Setting) SecretURL(aside string) *Setting {
	s.aside = aside
	s.secret = func(text string) string {
		if strings.HasPrefix(text, "@") {
			return ""
		}
		u, err := url.Parse(text)
		if err != nil {
			return "it is not a URL, and may hold a secret"
		}
		if _, password := u.User.Password(); password {
			return "it holds a password"
		}
		for key := range u.Query() {
			if slices.Contains(secretKeys, strings.ToLower(key)) {
				return "it holds a secret, " + key
			}
		}
		return ""
	}
	return s
}

// secretKeys are names of parameters of URLs that hold secrets.
var secretKeys = []string{"password", "passwd", "sslpassword", "token", "access_token", "auth", "key", "apikey", "api_key", "secret", "sig", "signature"}

// Secret says that the text is a secret, unless it is @FILE.
func (s *Setting) Secret() *Setting {
	s.secret = func(text string) string {
		if text == "" || strings.HasPrefix(text, "@") {
			return ""
		}
		return "it is a secret"
	}
	return s
}

// A Set is the table of a program: its section of the file.
type Set struct {
	Section string
	all     []*Setting
	file    *Setting
	path    string
}

// New returns the table of a section, with the setting that names the file.
func New(section string) *Set {
	s := &Set{Section: section}
	s.file = s.Text(&s.path, "config", "FILE", "read settings from FILE, in place of "+DefaultFile+"; '' is none").WithEnv("METE_CONFIG")
	s.file.InFile = false
	return s
}

// All returns the settings in the order in which they were added.
func (s *Set) All() []*Setting { return slices.Clone(s.all) }

// add adds a setting, whose default is its present value.
func (s *Set) add(kind Kind, name, arg, help string, now func() []string, assign func([]string) error) *Setting {
	e := &Setting{Name: name, Kind: kind, Arg: arg, Help: help, InFile: true, now: now, assign: assign, def: now(),
		Env: "METE_" + strings.ToUpper(s.Section+"_"+strings.ReplaceAll(name, "-", "_"))}
	s.all = append(s.all, e)
	return e
}

// one returns the assignment of a setting that has one text.
func one(assign func(string) error) func([]string) error {
	return func(texts []string) error {
		text := ""
		if len(texts) > 0 {
			text = texts[len(texts)-1]
		}
		return assign(text)
	}
}

// Text adds a text. In help, arg stands for it.
func (s *Set) Text(to *string, name, arg, help string) *Setting {
	return s.add(Text, name, arg, help, func() []string { return nonEmpty(*to) }, one(func(t string) error { *to = t; return nil }))
}

// List adds a list of texts: a flag that may be repeated.
func (s *Set) List(to *[]string, name, arg, help string) *Setting {
	return s.add(List, name, arg, help, func() []string { return slices.Clone(*to) }, func(t []string) error { *to = slices.Clone(t); return nil })
}

// ListFunc adds a list that parse reads as a whole: it replaces what an earlier call set.
func (s *Set) ListFunc(name, arg, help string, parse func(texts []string) error) *Setting {
	var now []string
	return s.add(List, name, arg, help, func() []string { return slices.Clone(now) }, func(texts []string) error {
		if err := parse(texts); err != nil {
			return err
		}
		now = slices.Clone(texts)
		return nil
	})
}

// Switch adds a setting that is on or off.
func (s *Set) Switch(to *bool, name, help string) *Setting {
	return s.add(Switch, name, "", help, func() []string { return []string{strconv.FormatBool(*to)} }, one(func(t string) error {
		on, err := strconv.ParseBool(t)
		if err != nil {
			return invalid("write true or false")
		}
		*to = on
		return nil
	}))
}

// Number adds an integer from low to high.
func (s *Set) Number(to *int, low, high int, name, arg, help string) *Setting {
	return s.add(Number, name, arg, help, func() []string { return []string{strconv.Itoa(*to)} }, one(func(t string) error {
		n, err := strconv.Atoi(t)
		if err != nil || n < low || n > high {
			return invalid("write a number from %d to %d", low, high)
		}
		*to = n
		return nil
	}))
}

// Duration adds a length of time from low to high.
func (s *Set) Duration(to *time.Duration, low, high time.Duration, name, help string) *Setting {
	return s.add(Duration, name, "DURATION", help, func() []string { return []string{to.String()} }, one(func(t string) error {
		d, err := time.ParseDuration(t)
		if err != nil {
			return invalid("write it with a unit, as 500ms, 10s or 2m")
		}
		if d < low || d > high {
			return invalid("from %v to %v", low, high)
		}
		*to = d
		return nil
	}))
}

// Size adds a number of bytes from low to high; 0, which is "", is also possible where it is the default.
func (s *Set) Size(to *int64, low, high int64, name, help string) *Setting {
	zero := *to == 0
	text := func() []string {
		if *to == 0 {
			return nil
		}
		return []string{strings.ReplaceAll(unit.Bytes(float64(*to)), " ", "")}
	}
	return s.add(Size, name, "SIZE", help, text, one(func(t string) error {
		if zero && t == "" {
			*to = 0
			return nil
		}
		n, err := unit.ParseBytes(t)
		if err != nil {
			return invalid("write it as 20GiB or 500M")
		}
		if n < low || n > high {
			return invalid("from %s to %s", unit.Bytes(float64(low)), unit.Bytes(float64(high)))
		}
		*to = n
		return nil
	}))
}

// Var adds a setting of a kind with a parser of its own.
func (s *Set) Var(v Value, kind Kind, name, arg, help string) *Setting {
	return s.add(kind, name, arg, help, func() []string { return nonEmpty(v.String()) }, one(v.Set))
}

// PrintFlags writes the flags as the package flag does, with two hyphens, as the other programs write theirs.
func (s *Set) PrintFlags(w io.Writer) {
	for _, one := range s.all {
		line := "  --" + one.Name
		if one.Arg != "" {
			line += " " + one.Arg
		}
		line += "\n    \t" + one.Help
		if def := one.Default(); def != "" && def != "false" {
			line += " (default " + def + ")"
		}
		fmt.Fprintln(w, line)
	}
}

// Address checks an address to listen on.
func Address(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fault.WithHint(fault.ErrInvalid, "write an address and a port: 127.0.0.1:9797, [::1]:9797, localhost:9797")
	}
	return nil
}

// nonEmpty returns a text as a list, nothing for "".
func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// invalid returns an error about a value.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, fault.ErrInvalid)...)
}

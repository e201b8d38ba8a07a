package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/trusted"
)

// DefaultFile is read where no other file is named, if it exists.
const DefaultFile = "/etc/mete/mete.yaml"

// maxFile is the largest file that is read, in bytes.
const maxFile = 1 << 20

// OriginKind says what a value is from.
type OriginKind uint8

// Origins of values, the strongest last.
const (
	Default OriginKind = iota
	File
	Environment
	Flag
)

func (k OriginKind) String() string {
	return [...]string{"default", "file", "environment", "flag"}[k]
}

// An Origin is where a value is from.
type Origin struct {
	Kind OriginKind
	Name string // of the flag or variable, or the path of the file
	Line int    // in the file
}

func (o Origin) String() string {
	switch o.Kind {
	case File:
		return fmt.Sprintf("%s:%d", o.Name, o.Line)
	case Environment:
		return "environment " + o.Name
	case Flag:
		return "flag " + o.Name
	}
	return "default"
}

// Load sets what no flag set from the environment and the file. It returns an error wrapping
// fault.ErrInvalid that names the place of a wrong value, and fault.ErrDenied for a file that others
// can write.
func (s *Set) Load(getenv func(string) string) error {
	if err := s.fromEnvironment(s.file, getenv); err != nil {
		return err
	}
	text, err := s.read()
	if err != nil {
		return err
	}
	if err := s.LoadText(s.path, text); err != nil {
		return err
	}
	for _, one := range s.all {
		if one == s.file {
			continue
		}
		if err := s.fromEnvironment(one, getenv); err != nil {
			return err
		}
	}
	return nil
}

// LoadText sets what no flag set from the text of a file. Also what a flag set must be right there.
func (s *Set) LoadText(path string, text []byte) error {
	entries, err := s.parse(path, text)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := e.apply(); err != nil {
			return err
		}
	}
	return nil
}

// Path is the file that Load read; "" if there was none.
func (s *Set) Path() string { return s.path }

// fromEnvironment sets a setting from its variable, if that has a text.
func (s *Set) fromEnvironment(one *Setting, getenv func(string) string) error {
	if one.Env == "" || one.origin.Kind == Flag {
		return nil
	}
	text := getenv(one.Env)
	if text == "" {
		return nil
	}
	texts := []string{text}
	if one.Kind == List {
		texts = strings.Split(text, ",")
	}
	if err := one.set(texts); err != nil {
		return fmt.Errorf("%s %q: %w", one.Env, text, err)
	}
	one.origin = Origin{Kind: Environment, Name: one.Env}
	return nil
}

// read returns the text of the file; nothing if there is no file.
func (s *Set) read() ([]byte, error) {
	path := s.path
	if path == "" {
		if s.file.origin.Kind == Flag {
			return nil, nil
		}
		if _, err := os.Lstat(DefaultFile); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		path = DefaultFile
	}
	real, err := trusted.File(path)
	if err != nil {
		return nil, s.unreadable(path, err)
	}
	info, err := os.Stat(real)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
		err = invalid("want a file of at most %d KiB", maxFile>>10)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(real)
	}
	if err != nil {
		return nil, s.unreadable(path, err)
	}
	s.path = path
	return text, nil
}

// unreadable returns the error of a file that cannot be read.
func (s *Set) unreadable(path string, err error) error {
	if hint := fault.Hint(err); hint != "" {
		return fault.WithHint(fmt.Errorf("configuration: %w", err), hint)
	}
	kind := fault.ErrInvalid
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = fault.ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		kind = fault.ErrDenied
	}
	if !errors.Is(err, kind) {
		err = fmt.Errorf("%w: %w", err, kind)
	}
	return fault.WithHint(fmt.Errorf("configuration: %w", err), "name another file with the flag config or METE_CONFIG")
}

// near returns the name that was probably meant, or "".
func near(name string, names []string) string {
	best, distance := "", 3
	for _, n := range names {
		if d := edits(name, n); d < distance {
			best, distance = n, d
		}
	}
	return best
}

// edits is the number of letters to insert, delete or replace that make a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost++
			}
			corner = row[j+1]
			row[j+1] = min(cost, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}

// keys are the keys of the section.
func (s *Set) keys() (keys []string) {
	for _, one := range s.all {
		if one.InFile {
			keys = append(keys, one.Key())
		}
	}
	slices.Sort(keys)
	return keys
}

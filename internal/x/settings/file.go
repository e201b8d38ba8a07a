package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"mete.dev/mete/internal/model/fault"
)

// Sections of the file: one for each program. A program checks its own.
var Sections = []string{"server", "up", "agent"}

// A place is a place in a file.
type place struct {
	path         string
	line, column int
}

func (p place) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: "+format+": %w", append(append([]any{p.path, p.line, p.column}, args...), fault.ErrInvalid)...)
}

func placeOf(path string, t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{path, 1, 1}
	}
	return place{path, t.Position.Line, t.Position.Column}
}

// An entry is a key of the section with its value.
type entry struct {
	setting *Setting
	name    string // with the section
	at      place  // of the value
	texts   []string
}

// apply sets the setting.
func (e *entry) apply() error {
	if err := e.check(); err != nil {
		return err
	}
	if err := e.setting.set(e.texts); err != nil {
		text := ""
		if len(e.texts) > 0 {
			text = fmt.Sprintf(" %q", e.texts)
			if e.setting.Kind != List {
				text = fmt.Sprintf(" %q", e.texts[0])
			}
		}
		err = fmt.Errorf("%s:%d:%d: %s%s: %w", e.at.path, e.at.line, e.at.column, e.name, text, err)
		if !errors.Is(err, fault.ErrInvalid) {
			err = fmt.Errorf("%w: %w", err, fault.ErrInvalid)
		}
		return err
	}
	if e.setting.origin.Kind == Flag {
		return e.setting.set(e.setting.flags) // which goes before the file
	}
	e.setting.origin = Origin{Kind: File, Name: e.at.path, Line: e.at.line}
	return nil
}

// check refuses secrets: many may read the file.
func (e *entry) check() error {
	for _, t := range e.texts {
		if e.setting.secret == nil {
			continue
		}
		if why := e.setting.secret(t); why != "" {
			return fault.WithHint(e.at.errorf("%s: %s, and many may read this file", e.name, why), e.setting.elsewhere())
		}
	}
	return nil
}

// elsewhere says where a secret may be.
func (s *Setting) elsewhere() string {
	if s.aside != "" {
		return s.aside
	}
	return `put it into a file of its own, and write "@FILE" here`
}

// parse returns the entries of the section.
func (s *Set) parse(path string, text []byte) (entries []entry, err error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		at, message := place{path, 1, 1}, err.Error()
		if placed, ok := errors.AsType[interface {
			error
			GetToken() *token.Token
			GetMessage() string
		}](err); ok {
			at, message = placeOf(path, placed.GetToken()), placed.GetMessage()
		}
		return nil, at.errorf("%s", message)
	}
	seen := false
	for _, d := range file.Docs {
		body := d.Body
		if body == nil || body.Type() == ast.CommentType {
			continue
		}
		if seen {
			return nil, placeOf(path, body.GetToken()).errorf("a second document; there is one")
		}
		seen = true
		sections, err := pairs(path, "", body)
		if err != nil {
			return nil, err
		}
		for _, p := range sections {
			if !slices.Contains(Sections, p.key) {
				return nil, unknown(p, "section", p.key, Sections)
			}
			if p.key != s.Section {
				continue
			}
			if entries, err = s.section(path, p.value); err != nil {
				return nil, err
			}
		}
	}
	return entries, nil
}

// unknown returns the error of a key that does not exist.
func unknown(p pair, what, name string, names []string) error {
	hint := "possible here: " + strings.Join(names, ", ")
	if n := near(p.key, names); n != "" {
		hint = "perhaps " + n + "; docs/config.md lists all"
	}
	return fault.WithHint(p.at.errorf("unknown %s %q", what, name), hint)
}

// section returns the entries of a section.
func (s *Set) section(path string, n ast.Node) (entries []entry, err error) {
	if n.Type() == ast.NullType {
		return nil, nil
	}
	all, err := pairs(path, s.Section, n)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		name := s.Section + "." + p.key
		i := slices.IndexFunc(s.all, func(one *Setting) bool { return one.InFile && one.Key() == p.key })
		if i < 0 {
			return nil, unknown(p, "key", name, s.keys())
		}
		e := entry{setting: s.all[i], name: name, at: placeOf(path, p.value.GetToken())}
		if e.texts, err = textsOf(path, name, s.all[i], p.value); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// A pair is a key of a mapping with its value.
type pair struct {
	key   string
	at    place // of the key
	value ast.Node
}

// pairs returns the pairs of a mapping. It refuses repeated keys, anchors and merges.
func pairs(path, name string, n ast.Node) (list []pair, err error) {
	where := "the file"
	if name != "" {
		where = name
	}
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		return nil, placeOf(path, n.GetToken()).errorf("%s has to be a mapping, with KEY: VALUE in each line", where)
	}
	for _, v := range values {
		p := pair{at: placeOf(path, v.Key.GetToken()), value: v.Value}
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			return nil, p.at.errorf("%s: a key has to be a plain word", where)
		}
		p.key = key.Value
		if slices.ContainsFunc(list, func(other pair) bool { return other.key == p.key }) {
			return nil, p.at.errorf("%s: the key %q is there twice", where, p.key)
		}
		list = append(list, p)
	}
	return list, nil
}

// textsOf returns the texts of a value, which must have the setting's type.
func textsOf(path, name string, s *Setting, n ast.Node) ([]string, error) {
	if list, ok := n.(*ast.SequenceNode); ok && s.Kind == List {
		texts := []string{}
		for i, v := range list.Values {
			one := Setting{Kind: Text}
			t, err := textsOf(path, fmt.Sprintf("%s[%d]", name, i), &one, v)
			if err != nil {
				return nil, err
			}
			texts = append(texts, t...)
		}
		return texts, nil
	}
	at := placeOf(path, n.GetToken())
	switch v := n.(type) {
	case *ast.NullNode:
		return nil, at.errorf("%s has no value, and is a %s", name, s.Kind)
	case *ast.StringNode:
		if s.Kind == Text || s.Kind == Duration || s.Kind == Size {
			return []string{v.Value}, nil
		}
	case *ast.BoolNode:
		if s.Kind == Switch {
			return []string{v.GetToken().Value}, nil
		}
	case *ast.IntegerNode:
		if s.Kind == Number || s.Kind == Size {
			return []string{v.GetToken().Value}, nil
		}
	}
	hint := ""
	switch s.Kind {
	case Text:
		hint = "write it in quotes"
	case Duration:
		hint = "write it with a unit, as 10s"
	case List:
		hint = "write each in a line of its own, after a hyphen, or all as [A, B]"
	}
	return nil, fault.WithHint(at.errorf("%s: want %s, not %s", name, s.Kind, kindOf(n)), hint)
}

// kindOf is the type of a node, for people.
func kindOf(n ast.Node) string {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.SequenceType:
		return "a list"
	case ast.IntegerType:
		return "a number"
	case ast.FloatType, ast.InfinityType, ast.NanType:
		return "a fraction"
	case ast.BoolType:
		return "true or false"
	case ast.StringType:
		return "text"
	}
	return "a YAML " + strings.ToLower(n.Type().String())
}

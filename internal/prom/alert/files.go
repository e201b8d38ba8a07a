package alert

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/rule"
)

// files holds the rule files as they were read last. It is the rule manager's loader, so
// that the manager evaluates exactly the files that were checked.
type files struct {
	parser parser.Parser
	log    *slog.Logger

	mu     sync.Mutex
	order  []string
	groups map[string]*rulefmt.RuleGroups
}

// load reads the shipped rules and the rule files in paths. An error names each wrong
// position and changes nothing.
func (f *files) load(paths []string) error {
	list, err := expand(paths)
	if err != nil {
		return err
	}
	order, groups := []string{rule.File}, map[string]*rulefmt.RuleGroups{}
	if groups[rule.File], err = f.parse(rule.File, rule.Shipped); err != nil {
		return err
	}
	var errs []error
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err == nil {
			groups[path], err = f.parse(path, b)
		}
		errs = append(errs, err)
		order = append(order, path)
	}
	if err := errors.Join(errs...); err != nil {
		return fault.WithHint(err, "check the file with Prometheus's promtool check rules FILE")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.order, f.groups = order, groups
	return nil
}

// expand returns the files of paths without duplicates, those of a directory sorted by name.
func expand(paths []string) (list []string, err error) {
	for _, p := range paths {
		p = filepath.Clean(p)
		st, err := os.Stat(p)
		if err != nil {
			return nil, fault.WithHint(fmt.Errorf("--rules %w", err), "name a rule file or a directory with rule files")
		}
		if !st.IsDir() {
			list = append(list, p)
			continue
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, fmt.Errorf("--rules: %w", err)
		}
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yml" || ext == ".yaml") {
				list = append(list, filepath.Join(p, e.Name()))
			}
		}
	}
	var unique []string
	for _, p := range list {
		if !slices.Contains(unique, p) {
			unique = append(unique, p)
		}
	}
	return unique, nil
}

// parse parses the text of one file.
func (f *files) parse(path string, text []byte) (*rulefmt.RuleGroups, error) {
	groups, found := rulefmt.Parse(text, false, model.UTF8Validation, f.parser, f.log)
	var errs []error
	seen := map[string]bool{}
	for _, err := range found {
		if seen[err.Error()] {
			continue // rulefmt parses the YAML twice
		}
		seen[err.Error()] = true
		errs = append(errs, fmt.Errorf("%s:%w: %w", path, withLine(text, err), fault.ErrInvalid))
	}
	return groups, errors.Join(errs...)
}

// hasPosition matches errors of rulefmt that start with a position, lineOf errors of YAML
// with a line, and repeatedGroup an error of rulefmt without a position.
var (
	hasPosition   = regexp.MustCompile(`^[1-9]\d*:\d+: `)
	lineOf        = regexp.MustCompile(`line (\d+)`)
	repeatedGroup = regexp.MustCompile(`groupname: "(.*)" is repeated`)
)

// withLine prefixes an error with its position. For errors without one it uses the line
// with the name of the rule or group.
func withLine(text []byte, err error) error {
	if hasPosition.MatchString(err.Error()) {
		return err
	}
	line := 1
	if e, ok := errors.AsType[*rulefmt.Error](err); ok {
		line = slices.Min(linesOf(text, "(?:alert|record)", e.RuleName))
	} else if m := repeatedGroup.FindStringSubmatch(err.Error()); m != nil {
		line = slices.Max(linesOf(text, "name", m[1]))
	} else if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1]) // matches digits only
	}
	return fmt.Errorf("%d: %w", line, errors.New(strings.TrimPrefix(err.Error(), "0:0: ")))
}

// linesOf returns the lines at which a key has a value, or line 1 if there is none.
func linesOf(text []byte, key, value string) (lines []int) {
	find := regexp.MustCompile(`^[\s-]*` + key + `\s*:\s*["']?` + regexp.QuoteMeta(value) + `["']?\s*(?:#.*)?$`)
	n := 0
	for line := range bytes.Lines(text) {
		if n++; find.Match(bytes.TrimRight(line, "\r\n")) {
			lines = append(lines, n)
		}
	}
	if len(lines) == 0 {
		return []int{1}
	}
	return lines
}

// names returns the paths of the files in order, the shipped rules first.
func (f *files) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.order
}

// Load implements rules.GroupLoader.
func (f *files) Load(path string, _ bool, _ model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, ok := f.groups[path]
	if !ok {
		return nil, []error{fmt.Errorf("rules %s: %w", path, fault.ErrNotFound)}
	}
	return g, nil
}

// Parse implements rules.GroupLoader.
func (f *files) Parse(query string) (parser.Expr, error) { return f.parser.ParseExpr(query) }

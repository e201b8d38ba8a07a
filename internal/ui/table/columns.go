package table

import (
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// ColumnNames returns the names of the columns of usage in flags.
func ColumnNames() (names []string) {
	for _, c := range allColumns() {
		names = append(names, c.name)
	}
	return names
}

// allColumns are the columns of usage.
func allColumns() []figureColumn {
	return slices.Concat(figureColumns(), reservedColumns(), classColumns())
}

// ReservedNames are the names of the columns that show what was used beside what was reserved.
func ReservedNames() []string {
	return []string{"cores", "cpu-reserved", "cpu-limit", "cpu-unused", "memory", "memory-reserved", "memory-limit", "memory-unused"}
}

// NetworkNames are the names of the columns that show network traffic by class.
func NetworkNames() (names []string) {
	classes := classColumns()
	for i, total := range []string{"received", "sent"} {
		names = append(names, total)
		for _, c := range classes[i*len(classes)/2 : (i+1)*len(classes)/2] {
			names = append(names, c.name)
		}
	}
	return names
}

// WithTraffic leaves out the columns of classes of network traffic that nothing in an answer has.
func WithTraffic(cols []figureColumn, a *v1.Usage) []figureColumn {
	return slices.DeleteFunc(slices.Clone(cols), func(c figureColumn) bool {
		has := func(f *v1.Figures) bool { return c.quality(f) != usage.Absent }
		return c.class && !has(a.Total) && !slices.ContainsFunc(a.NestedGroups, func(g v1.Group) bool { return has(&g.Figures) })
	})
}

// ParseColumns reads names of columns of usage; nil are those of a table without them. The error wraps fault.ErrInvalid.
func ParseColumns(names []string) (cols []figureColumn, err error) {
	all := allColumns()
	if names == nil {
		return figureColumns(), nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(c figureColumn) bool { return strings.EqualFold(c.name, strings.TrimSpace(name)) })
		if i < 0 {
			return nil, fault.WithHint(fmt.Errorf("column %q: %w", name, fault.ErrInvalid), "columns are "+strings.Join(ColumnNames(), ", "))
		}
		cols = append(cols, all[i])
	}
	return cols, nil
}

// figuresOf are the keys of the figures that a column shows.
func (c figureColumn) figuresOf() []string {
	switch c.name {
	case "energy":
		return []string{"energy_joules", "energy_error_joules", "energy_idle_joules", "energy_idle_error_joules"}
	case "power":
		return []string{"energy_average_watts", "energy_joules", "energy_idle_joules"}
	}
	keys := []string{c.key}
	if of, ok := strings.CutSuffix(c.key, "_byte_seconds"); ok {
		keys = []string{of + "_average_bytes", c.key}
	}
	if c.limited != "" {
		keys = append(keys, c.limited, reservedTime)
	}
	return keys
}

// Fields returns the keys of the figures that columns show, in the order of the table.
func Fields(cols []figureColumn) (keys []string) {
	for _, c := range cols {
		for _, k := range c.figuresOf() {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// SortKey returns the key of the figure by which a column sorts; "" is CPU time. A key of a figure is taken
// as well. The error wraps fault.ErrInvalid.
func SortKey(name string) (string, error) {
	cols, err := ParseColumns([]string{name})
	switch key, other := v1.ParseSort(map[string][]string{v1.ParamSort: {name}}); {
	case err == nil && (cols[0].name == "cpu" || cols[0].name == "cores"):
		return "", nil
	case err == nil:
		return cols[0].figuresOf()[0], nil
	case other == nil && key != "":
		return key, nil
	}
	return "", fault.WithHint(fmt.Errorf("sort by %q: %w", name, fault.ErrInvalid), "sort by "+strings.Join(ColumnNames(), ", ")+", or by the key of a figure of -o json")
}

package v1

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// CSV writes the groups of an answer as one header and one row each, with the
// keys of the JSON form. What is absent is an empty field. What the groups above
// the limit used is a row without names. Groups of guests, which no sum has, come
// last, and say so under nested.
func CSV(a *query.Answer) []byte { return CSVFields(a, nil) }

// CSVFields is CSV with these figures alone, by their keys; nil is all.
func CSVFields(a *query.Answer, keys []string) []byte {
	only := figuresOf(keys)
	var header []string
	for _, d := range a.By {
		header = append(header, string(d))
	}
	header = append(header, "nodes", "first_at", "last_at", "wall_seconds")
	for i := range only {
		header = append(header, only[i].key)
	}
	rows := [][]string{append(header, "covered_seconds", "quality", "from", "to", "rest_groups", "nested")}
	for i := range a.Groups {
		rows = append(rows, csvGroup(a, &a.Groups[i], only, 0, false))
	}
	if a.OtherGroups > 0 {
		rows = append(rows, csvGroup(a, &query.Group{Keys: make([]string, len(a.By)), Usage: a.Other}, only, a.OtherGroups, false))
	}
	for i := range a.NestedGroups {
		rows = append(rows, csvGroup(a, &a.NestedGroups[i], only, 0, true))
	}
	return writeCSV(rows)
}

func csvGroup(a *query.Answer, g *query.Group, only []figure, rest int, nested bool) []string {
	row := append([]string{}, g.Keys...)
	nodes := strconv.Itoa(g.Nodes)
	if rest > 0 {
		nodes = ""
	}
	row = append(row, nodes, formatTime(g.First), formatTime(g.Last), strings.Trim(string(wallSeconds(g)), "nul"))
	var quality []string
	for i := range only {
		v, q := only[i].amount(&g.Usage, a.AveragedOver)
		quality = append(quality, fmt.Sprintf("%s=%s", only[i].key, q))
		if q == usage.Absent {
			row = append(row, "")
			continue
		}
		row = append(row, v.Decimal(only[i].unit))
	}
	return append(row, string(seconds(g.Usage.Covered)), strings.Join(quality, ";"), formatTime(a.From), formatTime(a.To), strconv.Itoa(rest), strconv.FormatBool(nested || a.Nested == query.NestedOnly))
}

func writeCSV(rows [][]string) []byte {
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(rows); err != nil {
		panic("v1: " + err.Error()) // a buffer takes everything
	}
	return b.Bytes()
}

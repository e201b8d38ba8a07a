package main

import (
	"encoding/json"
	"fmt"
	"regexp"
)

// A board is a dashboard.
type board struct {
	uid, title, about string
	choices           []variable
	panels            []panel
}

// A variable is a dashboard variable: the values of a label to show. Its query may refer to
// earlier variables.
type variable struct{ name, title, query string }

// A panel shows queries.
type panel struct {
	title, about, kind, unit string
	width, height            int // of 24 columns, and of rows
	stack                    bool
	queries                  []query
	// quiet means that an empty panel is normal: it is good news, or the machine lacks the
	// resource.
	quiet bool
}

// A query is a PromQL query and the legend of its lines.
type query struct{ expr, legend string }

// Kinds of panels, by Grafana's names.
const (
	graph  = "timeseries"
	stat   = "stat"
	table  = "table"
	gauges = "bargauge"
)

// Units, by Grafana's names.
const (
	plain   = "short"
	cores   = "suffix: cores"
	octets  = "bytes"
	rate    = "Bps"
	watts   = "watt"
	joules  = "joule"
	percent = "percentunit"
	seconds = "s"
)

// object is a JSON object.
type object = map[string]any

// instant reports whether a panel shows one moment: the end of the range.
func (p *panel) instant() bool { return p.kind == table || p.kind == gauges }

// variablePattern matches the variables in an expression.
var variablePattern = regexp.MustCompile(`\$[a-z]+`)

// render returns the dashboard as JSON of Grafana's schema version 39.
func (b *board) render() ([]byte, error) {
	source := object{"type": "prometheus", "uid": uid}
	var panels []object
	x, y, tall := 0, 0, 0
	for i := range b.panels {
		p := &b.panels[i]
		if x+p.width > 24 {
			x, y, tall = 0, y+tall, 0
		}
		panels = append(panels, p.render(i+1, x, y, source))
		x, tall = x+p.width, max(tall, p.height)
	}
	list := []object{}
	for _, c := range b.choices {
		list = append(list, object{"name": c.name, "label": c.title, "type": "query", "datasource": source, "definition": c.query,
			"query": object{"query": c.query, "refId": "choice"}, "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"text": "All", "value": "$__all"}})
	}
	for i := range b.panels {
		for _, q := range b.panels[i].queries {
			for _, name := range variablePattern.FindAllString(q.expr, -1) {
				if !b.knows(name[1:]) {
					return nil, fmt.Errorf("%s, %s: unknown variable %s", b.title, b.panels[i].title, name)
				}
			}
		}
	}
	text, err := json.MarshalIndent(object{
		"uid": b.uid, "title": b.title, "description": b.about, "tags": []string{"mete"}, "schemaVersion": 39, "version": 1, "editable": false,
		"graphTooltip": 1, "refresh": "30s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "browser",
		"annotations": object{"list": []any{}}, "links": []any{}, "templating": object{"list": list}, "panels": panels,
	}, "", "  ")
	return append(text, '\n'), err
}

func (b *board) knows(name string) bool {
	for _, c := range b.choices {
		if c.name == name {
			return true
		}
	}
	return false
}

func (p *panel) render(id, x, y int, source object) object {
	var targets []object
	for i, q := range p.queries {
		t := object{"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend, "range": !p.instant(), "instant": p.instant()}
		if p.kind == table {
			t["format"] = "table"
		}
		targets = append(targets, t)
	}
	custom, options := object{}, object{}
	switch p.kind {
	case graph:
		custom = object{"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false, "stacking": object{"mode": "none"}}
		if p.stack {
			custom["fillOpacity"], custom["stacking"] = 60, object{"mode": "normal"}
		}
		options = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	case gauges:
		options = object{"displayMode": "basic", "orientation": "horizontal", "reduceOptions": object{"calcs": []string{"lastNotNull"}, "values": false}}
	case stat:
		options = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "values": false}, "graphMode": "area", "colorMode": "none"}
	}
	out := object{"id": id, "title": p.title, "description": p.about, "type": p.kind, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": p.width, "h": p.height}, "options": options,
		"fieldConfig": object{"defaults": object{"unit": p.unit, "custom": custom, "min": 0}, "overrides": []any{}}}
	if p.kind == table {
		out["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": object{"Time": true, "__name__": true}}}}
	}
	return out
}

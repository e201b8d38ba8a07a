package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// A board is a dashboard.
type board struct {
	uid, title, about string
	choices           []variable
	panels            []panel
}

// A variable is a dashboard variable: the values of a label to show. Its query may refer to
// earlier variables. If it has options instead of a query, one of them is chosen.
type variable struct {
	name, title, query string
	options            []string
}

// A panel shows queries.
type panel struct {
	title, about, kind, unit string
	width, height            int // of 24 columns, and of rows
	stack                    bool
	queries                  []query
	// quiet means that an empty panel is normal: it is good news, or the machine lacks the
	// resource.
	quiet bool
	// limits are the values from which a stat is shown in yellow and in red; 0 stands for no such value.
	limits [2]float64
	// below reverses limits: values under them are yellow and red.
	below bool
	// links lead from a series to the dashboards of what its labels name.
	links []link
}

// A link leads to another dashboard, whose variables have the values of a series' labels.
type link struct {
	title, board string
	labels       []string
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
	source := object{"type": "prometheus", "uid": "${" + dataSourceVariable + "}"}
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
	list := []object{{"name": dataSourceVariable, "label": "Server", "type": "datasource", "query": "prometheus", "regex": "", "refresh": 1,
		"multi": false, "includeAll": false, "current": object{"text": "mete", "value": uid}}}
	for _, c := range b.choices {
		if len(c.options) > 0 {
			list = append(list, c.custom())
			continue
		}
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
		"annotations": object{"list": []any{b.alerts(source)}}, "links": []any{others}, "templating": object{"list": list}, "panels": panels,
	}, "", "  ")
	return append(text, '\n'), err
}

// dataSourceVariable is the name of the variable with the server to ask.
const dataSourceVariable = "datasource"

// others is the menu of all dashboards of mete, which keeps the range and the variables.
var others = object{"type": "dashboards", "title": "mete", "tags": []string{"mete"}, "asDropdown": true, "includeVars": true, "keepTime": true, "targetBlank": false, "icon": "external link"}

// alerts marks the times at which alerts fired for what the dashboard shows.
func (b *board) alerts(source object) object {
	var which strings.Builder
	which.WriteString(`alertstate="firing", severity!="none"`)
	for _, name := range []string{"cluster", "node"} {
		if b.knows(name) {
			which.WriteString(", " + name + `=~"$` + name + `"`)
		}
	}
	return object{"name": "Alerts", "enable": true, "iconColor": "red", "datasource": source, "expr": "ALERTS{" + which.String() + "}", "step": "60s",
		"titleFormat": "{{alertname}}", "tagKeys": "node,severity"}
}

// custom renders a variable with options, of which the first is chosen at first.
func (v *variable) custom() object {
	var options []object
	for i, o := range v.options {
		options = append(options, object{"text": o, "value": o, "selected": i == 0})
	}
	return object{"name": v.name, "label": v.title, "type": "custom", "query": strings.Join(v.options, ","), "options": options, "multi": false, "includeAll": false,
		"current": object{"text": v.options[0], "value": v.options[0]}}
}

// url returns the address of the dashboard, relative to Grafana's. In a table the labels are the
// fields of the row.
func (l *link) url(kind string) string {
	var text strings.Builder
	text.WriteString("/d/" + l.board + "?${" + dataSourceVariable + ":queryparam}&${__url_time_range}")
	from := "__field.labels."
	if kind == table {
		from = "__data.fields."
	}
	for _, name := range l.labels {
		text.WriteString("&var-" + name + "=${" + from + name + "}")
	}
	return text.String()
}

// thresholds returns the colors of a panel's values.
func (p *panel) thresholds() object {
	steps := []object{{"color": "green", "value": nil}}
	colors := [2]string{"yellow", "red"}
	if p.below {
		steps[0]["color"] = "red"
		colors = [2]string{"yellow", "green"}
	}
	for i, v := range p.limits {
		if v != 0 {
			steps = append(steps, object{"color": colors[i], "value": v})
		}
	}
	return object{"mode": "absolute", "steps": steps}
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
	defaults := object{"unit": p.unit, "custom": custom, "min": 0}
	if p.limits != [2]float64{} {
		options["colorMode"] = "value"
		defaults["thresholds"] = p.thresholds()
	}
	if len(p.links) > 0 {
		var links []object
		for _, l := range p.links {
			links = append(links, object{"title": l.title, "url": l.url(p.kind), "targetBlank": false})
		}
		defaults["links"] = links
	}
	out := object{"id": id, "title": p.title, "description": p.about, "type": p.kind, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": p.width, "h": p.height}, "options": options,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}}}
	if p.kind == table {
		out["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": object{"Time": true, "__name__": true}}}}
	}
	return out
}

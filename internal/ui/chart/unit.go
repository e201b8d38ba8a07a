package chart

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"mete.dev/mete/internal/model/unit"
)

// A Unit is the unit of a query's values, derived from the names of its metrics and its
// functions.
type Unit uint8

// The units.
const (
	Unknown Unit = iota // plain numbers
	Seconds
	Cores // CPU seconds per second
	Bytes
	ByteSeconds
	BytesPerSecond
	Joules
	Watts
	Ratio
	PerSecond // counts of things per second
)

// suffixes map the ends of metric names to units, the longest first.
var suffixes = []struct {
	end  string
	unit Unit
}{{"_bytes_per_second", BytesPerSecond}, {"_byte_seconds", ByteSeconds}, {"_seconds", Seconds}, {"_cores", Cores},
	{"_bytes", Bytes}, {"_joules", Joules}, {"_watts", Watts}, {"_ratio", Ratio}}

// UnitOf returns the unit of a query's values; Unknown if the query cannot be parsed.
func UnitOf(query string) Unit {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return Unknown
	}
	u, _ := unitOf(e)
	return u
}

// unitOf returns the unit of an expression, and whether it is a plain number.
func unitOf(e parser.Expr) (u Unit, number bool) {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return unitOf(e.Expr)
	case *parser.UnaryExpr:
		return unitOf(e.Expr)
	case *parser.StepInvariantExpr:
		return unitOf(e.Expr)
	case *parser.SubqueryExpr:
		return unitOf(e.Expr)
	case *parser.MatrixSelector:
		return unitOf(e.VectorSelector)
	case *parser.VectorSelector:
		name := strings.TrimSuffix(e.Name, "_total")
		if strings.Contains(name, "timestamp") {
			return Unknown, false
		}
		for _, s := range suffixes {
			if strings.HasSuffix(name, s.end) {
				return s.unit, false
			}
		}
	case *parser.AggregateExpr:
		if e.Op == parser.COUNT || e.Op == parser.COUNT_VALUES || e.Op == parser.GROUP || e.Op == parser.STDVAR {
			return Unknown, false
		}
		return unitOf(e.Expr)
	case *parser.NumberLiteral:
		return Unknown, true
	case *parser.Call:
		return callUnit(e), false
	case *parser.BinaryExpr:
		return binaryUnit(e)
	}
	return Unknown, false
}

// preservesUnit are the functions whose result has the unit of their argument, in addition
// to the over_time functions.
var preservesUnit = map[string]bool{"increase": true, "delta": true, "idelta": true, "abs": true, "ceil": true, "floor": true, "round": true,
	"clamp": true, "clamp_min": true, "clamp_max": true, "sort": true, "sort_desc": true, "label_replace": true, "label_join": true,
	"scalar": true, "vector": true, "predict_linear": true, "avg_over_time": true, "min_over_time": true, "max_over_time": true,
	"sum_over_time": true, "quantile_over_time": true, "last_over_time": true, "stddev_over_time": true}

func callUnit(e *parser.Call) Unit {
	of := Unknown
	for _, a := range e.Args {
		if t := a.Type(); t == parser.ValueTypeVector || t == parser.ValueTypeMatrix || len(e.Args) == 1 {
			of, _ = unitOf(a)
			break
		}
	}
	switch name := e.Func.Name; {
	case preservesUnit[name]:
		return of
	case name == "rate" || name == "irate" || name == "deriv":
		switch of {
		case Seconds:
			// The share of time of a pressure metric is not in cores.
			about := e.Args[0].String()
			if strings.Contains(about, "cpu_") && !strings.Contains(about, "pressure_") && !strings.Contains(about, "throttled_") {
				return Cores
			}
			return Ratio
		case ByteSeconds:
			return Bytes
		case Bytes:
			return BytesPerSecond
		case Joules:
			return Watts
		case Unknown:
			return PerSecond
		}
	case name == "time":
		return Unknown
	}
	return Unknown
}

// binaryUnit returns the unit of a binary expression.
func binaryUnit(e *parser.BinaryExpr) (Unit, bool) {
	l, ln := unitOf(e.LHS)
	r, rn := unitOf(e.RHS)
	switch e.Op {
	case parser.ADD, parser.SUB, parser.LOR:
		if l == r || rn {
			return l, ln && rn
		}
		if ln {
			return r, false
		}
	case parser.LAND, parser.LUNLESS:
		return l, false
	case parser.MUL:
		// A join with an info series, whose value is 1, preserves the unit.
		if rn || strings.Contains(e.RHS.String(), "_info") {
			return l, ln && rn
		}
		if ln || strings.Contains(e.LHS.String(), "_info") {
			return r, false
		}
	case parser.DIV:
		switch {
		case l == r && l != Unknown:
			return Ratio, false
		case rn:
			return l, ln
		}
	case parser.GTR, parser.LSS, parser.GTE, parser.LTE, parser.EQLC, parser.NEQ:
		if !e.ReturnBool {
			return l, false
		}
	}
	return Unknown, false
}

// Name returns the unit's name for people; "" if the formatted value shows the unit.
func (u Unit) Name() string { return unitNames[u] }

var unitNames = [...]string{"", "time", "cores", "bytes", "bytes x time", "bytes per second", "energy", "power", "share", "per second"}

// Write formats a value with its unit for people.
func (u Unit) Write(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	if v < 0 {
		return "-" + u.Write(-v)
	}
	switch u {
	case Seconds:
		if v < 1e9 {
			return unit.Seconds(time.Duration(v * 1e9))
		}
		return unit.Number(v) + " s"
	case Cores:
		return digits(v) + " cores"
	case Bytes:
		return unit.Bytes(v)
	case ByteSeconds:
		return unit.Bytes(v/3600) + " h"
	case BytesPerSecond:
		return unit.Bytes(v) + "/s"
	case Joules:
		return unit.Joules(v)
	case Watts:
		return unit.Watts(v)
	case Ratio:
		return digits(v*100) + " %"
	case PerSecond:
		return digits(v) + "/s"
	}
	return digits(v)
}

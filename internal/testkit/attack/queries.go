package attack

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Queries draws PromQL queries as an attacker would try them: valid ones for the most part, nested,
// with absurd ranges, steps, offsets and selectors.
type Queries struct {
	Rand *rand.Rand
	// Metrics and Histograms are names of series, the latter with the label le or of native
	// histograms; Labels are names of labels, and Values values of these.
	Metrics, Histograms, Labels, Values []string
}

// Draw returns a query. About one of ten is damaged.
func (q *Queries) Draw() string {
	depth := 1 + q.n(5)
	if q.n(40) == 0 {
		depth = 12
	}
	var text string
	switch q.n(20) {
	case 0:
		text = q.scalar(depth)
	case 1:
		text = q.matrix(depth)
	case 2:
		text = q.long()
	default:
		text = q.vector(depth)
	}
	if q.n(10) == 0 && len(text) > 1 {
		at := q.n(len(text) - 1)
		switch q.n(3) {
		case 0:
			text = text[:at] + text[at+1:]
		case 1:
			text = text[:at] + q.pick("(", ")", "[", "}", "\"", "by", "@", ":", "-", "\x00", "é", "9e999") + text[at:]
		default:
			text = text[:at]
		}
	}
	return text
}

// Params returns parameters for the time of a query: for query if instant is true, else for
// query_range. now is in seconds since 1970.
func (q *Queries) Params(now int64) (instant bool, params map[string]string) {
	at := strconv.FormatInt(now-int64(q.n(3600)), 10)
	if q.n(20) == 0 {
		at = q.pick("0", "-1", "253402300799", "9223372036854775", "-9223372036854775", "1e300", "NaN", "+Inf", "2030-01-01T00:00:00Z", "x")
	}
	if q.n(2) == 0 {
		return true, map[string]string{"time": at}
	}
	span := []int64{1, 60, 900, 3600, 86400, 31 * 86400, 366 * 86400}[q.n(7)]
	step := []int64{1, 15, 60, 300, 3600}[q.n(5)]
	for span/step > 11000 && q.n(20) > 0 {
		step *= 10
	}
	params = map[string]string{"start": strconv.FormatInt(now-span, 10), "end": strconv.FormatInt(now, 10), "step": strconv.FormatInt(step, 10)}
	if q.n(30) == 0 {
		params["step"] = q.pick("0.001", "0", "-1", "1e-9", "9e18", "NaN", "1y", "1ms")
	}
	if q.n(30) == 0 {
		params["end"] = q.pick("1e18", "9223372036854775807", "0")
	}
	if q.n(20) == 0 {
		params["lookback_delta"] = q.pick("1ms", "100y", "0", "-1")
	}
	if q.n(10) == 0 {
		params["limit"] = strconv.Itoa(q.n(5))
	}
	if q.n(20) == 0 {
		params["timeout"] = q.pick("1ns", "1ms", "100y", "0", "x")
	}
	if q.n(20) == 0 {
		params["stats"] = "all"
	}
	return false, params
}

func (q *Queries) n(n int) int                 { return q.Rand.IntN(n) }
func (q *Queries) pick(of ...string) string    { return of[q.n(len(of))] }
func (q *Queries) label() string               { return q.Labels[q.n(len(q.Labels))] }
func (q *Queries) quote(s string) string       { return strconv.Quote(s) }
func (q *Queries) f(s string, a ...any) string { return fmt.Sprintf(s, a...) }

// labels returns a list of label names.
func (q *Queries) labels() string {
	var list []string
	for range q.n(4) {
		list = append(list, q.label())
	}
	return strings.Join(list, ", ")
}

// vector returns an expression of an instant vector.
func (q *Queries) vector(depth int) string {
	if depth <= 0 {
		return q.selector() + q.modifiers()
	}
	d := depth - 1
	switch q.n(22) {
	case 0, 1, 2:
		return q.selector() + q.modifiers()
	case 3, 4, 5, 6:
		return q.overTime(d)
	case 7, 8, 9:
		return q.aggregate(d)
	case 10, 11, 12:
		return q.binary(d)
	case 13:
		return q.f("%s(%s)", q.pick("abs", "ceil", "exp", "ln", "log2", "sgn", "sqrt", "sort", "sort_desc", "absent", "timestamp", "hour", "day_of_year", "deg", "acosh"), q.vector(d))
	case 14:
		return q.f("label_replace(%s, %s, %s, %s, %s)", q.vector(d), q.quote(q.label()), q.quote(q.pick("$1", "$1$1", "${1}x$0", strings.Repeat("$1", 1+q.n(90)), "", "é")),
			q.quote(q.label()), q.quote(q.regex()))
	case 15:
		return q.f(`label_join(%s, %s, %s, %s, %s)`, q.vector(d), q.quote(q.label()), q.quote(q.pick(",", "", strings.Repeat("-", q.n(2000)))), q.quote(q.label()), q.quote(q.label()))
	case 16:
		return q.f("%s(%s, %s)", q.pick("clamp_min", "clamp_max", "round"), q.vector(d), q.scalar(d))
	case 17:
		return q.histogram(d)
	case 18:
		return q.f("vector(%s)", q.scalar(d))
	case 19:
		return "(" + q.vector(d) + ")"
	case 20:
		return "-" + q.vector(d)
	default:
		return q.f("clamp(%s, %s, %s)", q.vector(d), q.scalar(d), q.scalar(d))
	}
}

func (q *Queries) histogram(d int) string {
	of := q.Histograms[q.n(len(q.Histograms))] + q.modifiers()
	if q.n(3) == 0 {
		of = q.f("sum by (le) (rate(%s[%s]))", q.Histograms[q.n(len(q.Histograms))], q.duration())
	}
	switch q.n(4) {
	case 0:
		return q.f("histogram_quantile(%s, %s)", q.scalar(d), of)
	case 1:
		return q.f("histogram_fraction(%s, %s, %s)", q.scalar(0), q.scalar(0), of)
	case 2:
		return q.f("%s(%s)", q.pick("histogram_sum", "histogram_count", "histogram_avg", "histogram_stddev", "histogram_stdvar"), of)
	}
	return of
}

func (q *Queries) overTime(d int) string {
	switch q.n(8) {
	case 0:
		return q.f("quantile_over_time(%s, %s)", q.scalar(d), q.matrix(d))
	case 1:
		return q.f("predict_linear(%s, %s)", q.matrix(d), q.scalar(d))
	}
	return q.f("%s(%s)", q.pick("rate", "irate", "increase", "delta", "idelta", "deriv", "changes", "resets", "avg_over_time", "min_over_time", "max_over_time", "sum_over_time", "count_over_time",
		"stddev_over_time", "last_over_time", "present_over_time", "absent_over_time"), q.matrix(d))
}

func (q *Queries) aggregate(d int) string {
	by := ""
	if q.n(3) > 0 {
		by = q.f(" %s (%s) ", q.pick("by", "without"), q.labels())
	}
	switch q.n(6) {
	case 0:
		return q.f("%s%s(%s, %s)", q.pick("topk", "bottomk"), by, q.scalar(d), q.vector(d))
	case 1:
		return q.f("quantile%s(%s, %s)", by, q.scalar(d), q.vector(d))
	case 2:
		return q.f("count_values%s(%s, %s)", by, q.quote(q.label()), q.vector(d))
	}
	return q.f("%s%s(%s)", q.pick("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"), by, q.vector(d))
}

func (q *Queries) binary(d int) string {
	match := ""
	if q.n(2) == 0 {
		match = q.f(" %s (%s)", q.pick("on", "ignoring"), q.labels())
	}
	if q.n(4) == 0 {
		return q.f("%s %s%s %s", q.vector(d), q.pick("and", "or", "unless"), match, q.vector(d))
	}
	if match != "" && q.n(2) == 0 {
		match += q.f(" %s (%s)", q.pick("group_left", "group_right"), q.labels())
	}
	op := q.pick("+", "-", "*", "/", "%", "^", "atan2", "== bool", "!= bool", "> bool", "<", ">=")
	if q.n(4) == 0 {
		return q.f("%s %s %s", q.vector(d), op, q.scalar(d))
	}
	return q.f("%s %s%s %s", q.vector(d), op, match, q.vector(d))
}

// matrix returns an expression of a range vector, often a subquery.
func (q *Queries) matrix(depth int) string {
	if depth <= 0 || q.n(3) == 0 {
		return q.f("%s[%s]%s", q.selector(), q.duration(), q.modifiers())
	}
	step := ""
	if q.n(3) > 0 {
		step = q.duration()
	}
	return q.f("(%s)[%s:%s]%s", q.vector(depth-1), q.duration(), step, q.modifiers())
}

func (q *Queries) scalar(depth int) string {
	switch q.n(8) {
	case 0:
		return "time()"
	case 1:
		if depth > 0 {
			return q.f("scalar(%s)", q.vector(depth-1))
		}
	case 2:
		return q.pick("NaN", "Inf", "-Inf", "1e308", "-1e308", "9223372036854775807", "1e-308", "0x7fffffffffffffff")
	case 3:
		if depth > 0 {
			return q.f("(%s %s %s)", q.scalar(depth-1), q.pick("+", "-", "*", "/", "^", "%"), q.scalar(depth-1))
		}
	}
	return q.pick("0", "1", "0.5", "0.99", "2", "5", "100", "1e6")
}

func (q *Queries) selector() string {
	name := ""
	if q.n(8) > 0 {
		name = q.Metrics[q.n(len(q.Metrics))]
	}
	var ms []string
	if name == "" {
		ms = append(ms, q.pick(`__name__=~".+"`, `__name__!=""`, `__name__=~"mete_.*"`, `cluster=~".+"`, `__name__=~"(a|b|c|m|h).*"`))
	}
	for range q.n(3) {
		op := q.pick("=", "!=", "=~", "!~")
		value := q.Values[q.n(len(q.Values))]
		if strings.HasSuffix(op, "~") {
			value = q.regex()
		}
		ms = append(ms, q.label()+op+q.quote(value))
	}
	if len(ms) == 0 {
		return name
	}
	return name + "{" + strings.Join(ms, ",") + "}"
}

func (q *Queries) regex() string {
	v := q.Values[q.n(len(q.Values))]
	return q.pick(".*", ".+", "(.*)", "(.*)(.*)", "(.+)+", "(a*)*b", "[a-z]{1,1000}", ".{0,500}", "(x+x+)+y", v, v+"|.*", "("+v+"|"+v+"x)*", "(?i)"+v, strings.Repeat("a?", 200)+strings.Repeat("a", 200),
		strings.Repeat("(", 50)+"a"+strings.Repeat(")*", 50), "^(?:"+strings.Repeat(v+"|", 300)+"z)$", "[^\\x00]*", "\\pL*")
}

func (q *Queries) duration() string {
	if q.n(4) == 0 {
		return q.pick("1ms", "1s", "100y", "290y", "1y", "10000d", "1d12h", "999999h", "106751d", "1w", "30d")
	}
	return q.pick("1m", "5m", "10m", "30s", "1h", "15s", "2h", "1d", "100ms")
}

func (q *Queries) modifiers() string {
	switch q.n(12) {
	case 0:
		return " offset " + q.pick("", "-") + q.duration()
	case 1:
		return q.pick(" @ start()", " @ end()", " @ 0", " @ 1e9", " @ -1e15", " @ 253402300799")
	case 2:
		return " @ end() offset " + q.duration()
	}
	return ""
}

// long returns a query of many parts.
func (q *Queries) long() string {
	n := 1 + q.n(400)
	switch q.n(5) {
	case 0:
		return strings.Repeat("(", n) + q.selector() + strings.Repeat(")", n)
	case 1:
		return q.selector() + strings.Repeat(" + "+q.selector(), n)
	case 2:
		return q.selector() + strings.Repeat(" or "+q.selector(), n/4)
	case 3:
		return strings.Repeat("sum_over_time((", n/10) + q.selector() + strings.Repeat(")["+q.pick("1m:30s", "5m:1m", "10m:5m")+"])", n/10)
	}
	return "{" + q.label() + "=~" + q.quote(strings.Repeat(q.Values[q.n(len(q.Values))]+"|", n*10)+"x") + `,__name__!=""}`
}

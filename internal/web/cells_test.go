package web_test

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/fleet"
)

// A cell is what a cell of a table shows: the figure, its possible error and its mark.
type cell struct{ Text, Off, Quality, Title string }

// A shownTable is a table of the page with all its rows, those that scrolling shows included.
type shownTable struct {
	Heads []string
	Rows  [][]cell
	Foot  [][]cell
	Count int // of rows, as the table states it
}

// tableScript reads a table; pieces of text that only the layout separates get a space.
const tableScript = `(async (label) => {
	const box = document.querySelector('[role=region][aria-label=' + JSON.stringify(label) + ']');
	if (!box) return null;
	const cell = (td) => {
		const c = td.cloneNode(true), take = (css) => [...c.querySelectorAll(css)].map((e) => { e.remove(); return e; })[0];
		const off = take(".off")?.textContent.trim().replace(/^± /, "") ?? "", quality = take(".quality")?.getAttribute("aria-label") ?? "";
		for (const e of c.querySelectorAll(".unit, span, i, b, a, button")) e.before(" ");
		return { Text: c.textContent.replace(/\s+/g, " ").trim(), Off: off, Quality: quality, Title: td.title || td.querySelector("[title]")?.title || "" };
	};
	const rows = new Map(), of = (tr) => [...tr.cells].map(cell);
	for (let at = 0, last = -1; ; at += 250) {
		box.scrollTop = at;
		await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
		for (const tr of box.querySelectorAll("tbody tr:not(.spacer)")) { const row = of(tr), key = JSON.stringify(row); rows.set(key, row); }
		if (box.scrollTop === last || box.scrollHeight <= box.clientHeight + 1) break;
		last = box.scrollTop;
	}
	return { Heads: [...box.querySelectorAll("thead th")].map((th) => th.textContent.replace(/[↓↑]/g, "").trim()), Rows: [...rows.values()],
		Foot: [...box.querySelectorAll("tfoot tr")].map(of), Count: Number(box.querySelector("table").getAttribute("aria-rowcount") ?? rows.size) };
})`

// table reads a table of the page by its name.
func (u *user) table(label string) *shownTable {
	u.t.Helper()
	t, err := chromedp.Run(bounded(u.t, u.ctx), chromedp.Evaluate[*shownTable](fmt.Sprintf("%s(%s)", tableScript, quote(label)), chromedp.EvalAwaitPromise))
	if err != nil || t == nil {
		u.t.Fatalf("table %q: %v", label, err)
	}
	return t
}

// evaluate returns the value of an expression of the page.
func evaluate[T any](u *user, expression string) T {
	u.t.Helper()
	v, err := chromedp.Run(bounded(u.t, u.ctx), chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		u.t.Fatalf("%v: %s", err, expression)
	}
	return v
}

// A figure is an exact figure of the ledger in a base unit; its value is nil if it is absent.
type figure struct {
	value   *float64
	base    string
	quality usage.Quality
}

// unitOf is the smallest unit of a figure of the API, of which its key names the base unit.
func unitOf(key string) unit.Unit {
	switch {
	case strings.HasSuffix(key, "_joules"), strings.HasSuffix(key, "_watts"):
		return unit.Microjoule
	case strings.HasSuffix(key, "_seconds") && !strings.HasSuffix(key, "_byte_seconds") && key != "pids_seconds":
		return unit.Nanosecond
	}
	return unit.Count
}

// baseOf is the base unit of a figure of the API.
func baseOf(key string) string {
	for _, s := range []struct{ suffix, base string }{{"_joules", "J"}, {"_watts", "W"}, {"_byte_seconds", "B s"}, {"_bytes", "B"}, {"_cores", "cores"}} {
		if strings.HasSuffix(key, s.suffix) {
			return s.base
		}
	}
	switch {
	case key == "pids_seconds":
		return "task s"
	case unitOf(key) == unit.Nanosecond:
		return "s"
	}
	return ""
}

// exact returns a figure of a group or a sum by its key in the API.
func exact(f *v1.Figures, key string) figure {
	a := f.Get(key)
	if a.Quality == usage.Absent {
		return figure{nil, baseOf(key), a.Quality}
	}
	v := a.Value.Float(unitOf(key))
	return figure{&v, baseOf(key), a.Quality}
}

// per is a figure divided by the time that the workloads of a group were measured.
func per(f *v1.Figures, key, base string) figure {
	e := exact(f, key)
	if covered := f.Covered.Float(unit.Nanosecond); e.value != nil && covered > 0 {
		return figure{scaled(e.value, 1/covered), base, e.quality}
	}
	return figure{nil, base, e.quality}
}

// check compares a cell with a figure, and its possible error with off.
func (c cell) check(want figure, off *figure) error {
	err := compareShown(c.Text, want.base, want.value)
	mark := want.quality.String()
	if want.quality == usage.Measured || want.value == nil {
		mark = ""
	}
	if c.Quality != mark {
		err = errors.Join(err, fmt.Errorf("the mark is %q, want %q", c.Quality, mark))
	}
	switch {
	case off == nil || off.value == nil || want.value == nil:
		if c.Off != "" {
			err = errors.Join(err, fmt.Errorf("an error of %q is shown, want none", c.Off))
		}
	default:
		err = errors.Join(err, compareShown(c.Off, off.base, off.value))
	}
	return err
}

// A column is a figure of a table.
type column struct {
	title, key string
	off        string                   // the key of its possible error
	derive     func(g *v1.Group) figure // instead of key
}

// asked returns the range in which the page asked the ledger for groups by these dimensions, with more
// parameters.
func asked(t *testing.T, requests []string, path, by string, more ...string) (from, to time.Time) {
	t.Helper()
	for _, r := range slices.Backward(requests) {
		u, err := url.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		if u.Path != path || by != "" && q.Get("by") != by || len(more) > 0 && !slices.Contains(q["where"], more[0]) {
			continue
		}
		from, err = time.Parse(time.RFC3339, q.Get("from"))
		if err == nil {
			to, err = time.Parse(time.RFC3339, q.Get("to"))
		}
		if err == nil && to.Sub(from) > 0 {
			return from, to
		}
	}
	t.Fatalf("the page did not ask %s by %s %v: %.2000v", path, by, more, requests)
	return from, to
}

// answer asks the ledger itself for groups with all figures.
func answer(t *testing.T, l *ledger.Ledger, from, to time.Time, where map[query.Dimension][]string, by ...query.Dimension) *v1.Usage {
	t.Helper()
	a, err := l.Usage(t.Context(), query.Query{From: from, To: to, By: by, Where: where, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	return v1.UsageOf(a, nil)
}

// checkRows compares the rows of a table with groups of the ledger: as many as wanted, each once, and
// each column. keys are the titles of the columns whose texts are the keys of the groups.
func checkRows(t *testing.T, where string, shown *shownTable, groups []v1.Group, keys []string, columns []column) {
	t.Helper()
	index := func(title string) int {
		i := slices.Index(shown.Heads, title)
		if i < 0 {
			t.Fatalf("%s: no column %s in %v", where, title, shown.Heads)
		}
		return i
	}
	if shown.Count != len(groups) || len(shown.Rows) != len(groups) {
		t.Errorf("%s: %d rows, stated as %d, want %d", where, len(shown.Rows), shown.Count, len(groups))
	}
	for _, row := range shown.Rows {
		texts := make([]string, len(keys))
		for i, k := range keys {
			if texts[i], _, _ = strings.Cut(row[index(k)].Text, "\n"); texts[i] == absent { // below it may stand whose it is
				texts[i] = ""
			}
		}
		at := slices.IndexFunc(groups, func(g v1.Group) bool { return slices.Equal(g.Keys, texts) })
		if at < 0 {
			t.Errorf("%s: row %q is not in the ledger", where, texts)
			continue
		}
		g := &groups[at]
		for _, c := range columns {
			want := figure{}
			if c.derive != nil {
				want = c.derive(g)
			} else {
				want = exact(&g.Figures, c.key)
			}
			var off *figure
			if c.off != "" {
				e := exact(&g.Figures, c.off)
				off = &e
			}
			if err := row[index(c.title)].check(want, off); err != nil {
				t.Errorf("%s, %q, %s: %v", where, texts, c.title, err)
			}
		}
	}
}

// count is a number of things.
func count(n int) figure {
	v := float64(n)
	return figure{&v, "", usage.Measured}
}

// workloads leaves idle and system out.
func workloads(groups []v1.Group, kind int) []v1.Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g v1.Group) bool { return residual(g.Keys[kind]) })
}

// opensFresh opens a page and returns the requests that it made.
func (u *user) opensFresh(f *fleet.Fleet, path string) []string {
	u.t.Helper()
	f.Requests()
	u.settles(f.URL + path)
	return f.Requests()
}

// near reports whether two computed figures are the same but for rounding of floats.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-6) }

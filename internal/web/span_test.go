package web_test

import (
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// In a browser, a user without a token signs in, and the longest range includes the latest
// use. The console has no errors.
func TestPage(t *testing.T) {
	hosttest.Need(t, "chromium")
	f := fleet.Open(t, fleet.Config{Nodes: 2, Each: 8, Tame: true})
	ctx := browser(t)
	console := &complaints{}
	if err := chromedp.Listen(ctx, console.listen); err != nil {
		t.Fatal(err)
	}
	u := signIn(t, ctx, f, 1440, 900, "/jobs?range=30d")
	u.sees("the jobs", `document.body.innerText.includes("postgres-main") && document.querySelectorAll("tbody tr").length >= 8`)
	console.take() // the missing token
	u.clicks("tbody tr:first-child a")
	u.sees("a job", `location.pathname === "/job" && document.body.innerText.includes("All figures") && document.querySelectorAll(".uplot canvas").length > 2 && !document.querySelector(".skeleton")`)
	for _, c := range console.own() {
		t.Errorf("console: %s", c)
	}
	ranges(t, ctx)
	instants(t, ctx)
	exports(t, ctx)
	lists(t, ctx)
}

// ranges checks the times that the page requests for its ranges. An open range ends now, at
// any time of viewing: the last value of a chart is that of the latest readings, and the
// ledger is queried up to now. A range with two ends has everything between them.
func ranges(t *testing.T, ctx context.Context) {
	t.Helper()
	const script = `(async () => {
		const { ranges, spanOf, ledger } = await import(document.querySelector("script[type=module]").src.replace("app.js", "span.js"));
		const list = [], four = 1700006400; // at 00:00 UTC, whole hours and days
		for (const now of [four, four + 1, four + 59, four + 600, four + 3599, four + 3600.5, four + 7201, four + 14399.999, four + 86399]) {
			const add = (query, of, length, a, b) => { const s = spanOf(query, now), l = ledger(s); list.push({ now, of, length, a, b, name: s.name, from: s.from, to: s.to, step: s.step, ledgerFrom: Date.parse(l.from) / 1000, ledgerTo: Date.parse(l.to) / 1000 }); };
			for (const [range, length] of ranges) add({ range }, range, length);
			for (const [from, to] of [[now - 100, now], [now - 86400 * 25 - 7, now - 3], [four - 1e7 + 0.5, four - 1e6 + 0.5], [four - 1000, four + 1e6]]) add({ from: String(from), to: String(to) }, from + " to " + to, 0, from, to);
		}
		return JSON.stringify(list);
	})()`
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	var spans []struct {
		Of, Name                                                string
		Now, Length, A, B, From, To, Step, LedgerFrom, LedgerTo float64
	}
	if err := json.Unmarshal([]byte(text), &spans); err != nil {
		t.Fatal(err)
	}
	if len(spans) != 9*10 {
		t.Errorf("%d ranges", len(spans))
	}
	for _, s := range spans {
		steps := (s.To - s.From) / s.Step
		if steps != float64(int(steps)) || steps < 5 || steps > 300 {
			t.Errorf("%s at %v: from %v to %v is %v steps of %v", s.Of, s.Now, s.From, s.To, steps, s.Step)
		}
		if s.A != 0 { // both ends are given
			if s.Name != "" || s.From > s.A || s.From < s.A-s.Step-1 || s.To < min(s.B, math.Floor(s.Now)) || s.To > min(s.B+1, s.Now) || s.LedgerFrom > s.A || s.LedgerTo < min(s.B, s.Now-1) {
				t.Errorf("%s at %v: a chart from %v to %v, the ledger from %v to %v", s.Of, s.Now, s.From, s.To, s.LedgerFrom, s.LedgerTo)
			}
			continue
		}
		if s.Name != s.Of || s.To > s.Now || s.To < s.Now-15 || s.To-s.From != s.Length {
			t.Errorf("%s at %v: a chart from %v to %v", s.Of, s.Now, s.From, s.To)
		}
		if s.LedgerTo <= s.Now || s.LedgerTo > s.Now+300 || s.LedgerTo-s.LedgerFrom != s.Length || s.LedgerFrom != float64(int(s.LedgerFrom)/60*60) {
			t.Errorf("%s at %v: the ledger from %v to %v", s.Of, s.Now, s.LedgerFrom, s.LedgerTo)
		}
	}
}

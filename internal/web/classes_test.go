package web_test

import (
	"strings"
	"testing"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/fleet"
)

// classFigure is the key of the figure of a class of traffic in a direction.
func classFigure(direction string, c usage.NetworkClass) string {
	return "network_" + direction + "_" + c.String() + "_bytes"
}

// isClassified reports whether a class of network traffic is known.
func isClassified(f *v1.Figures) bool {
	for c := usage.ClassNode; c < usage.NetworkClassLimit; c++ {
		if f.Get(classFigure("rx", c)).Quality != usage.Absent || f.Get(classFigure("tx", c)).Quality != usage.Absent {
			return true
		}
	}
	return false
}

// checkClasses compares the table of network traffic by class with the figures of the ledger: a row for each class that has
// traffic, then what has no class, then all of it, to which the rows above sum.
func checkClasses(u *user, path string, f *v1.Figures) {
	u.t.Helper()
	shown := u.table("network by class")
	received, sent := exact(f, "network_rx_bytes"), exact(f, "network_tx_bytes")
	check := func(row []cell, rx, tx figure) {
		u.t.Helper()
		share := 0.0
		for i, want := range []figure{rx, tx} {
			if err := row[i+1].check(want, nil); err != nil {
				u.t.Errorf("%s, %s: %v", path, row[0].Text, err)
			}
			if want.value != nil {
				share += *want.value / (*received.value + *sent.value)
			}
		}
		if err := compareShown(row[3].Text, "ratio", &share); err != nil {
			u.t.Errorf("%s, share of %s: %v", path, row[0].Text, err)
		}
	}
	var names []string
	sum := 0.0
	for c := range usage.NetworkClassLimit {
		rx, tx := exact(f, classFigure("rx", c)), exact(f, classFigure("tx", c))
		for _, v := range []*float64{rx.value, tx.value} {
			if v != nil {
				sum += *v
			}
		}
		if rx.value == nil && tx.value == nil {
			continue
		}
		names = append(names, c.String())
		found := false
		for _, row := range shown.Rows {
			if name, _, _ := strings.Cut(row[0].Text, " "); name == c.String() {
				found = true
				check(row, rx, tx)
			}
		}
		if !found {
			u.t.Errorf("%s: no row of %s", path, c)
		}
	}
	if len(shown.Rows) != len(names) || len(names) < 3 || len(shown.Foot) != 1 {
		u.t.Fatalf("%s: %d rows and %d sums, want one of each of %q, and one sum", path, len(shown.Rows), len(shown.Foot), names)
	}
	check(shown.Foot[0], received, sent)
	if !near(sum, *received.value+*sent.value) {
		u.t.Errorf("%s: the rows sum to %v, of %v received and %v sent", path, sum, *received.value, *sent.value)
	}
}

// Pages show network traffic by class as the ledger has it, with what has no class; where no class is known, no page has a
// place for it.
func TestClassesInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 4, Each: 8, Tame: true, Classes: true, Days: 3})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.watch()
	there := `document.querySelector('[role=region][aria-label="network by class"]') !== null`
	for _, r := range []string{"1h", "24h"} {
		path, job := "/job?job=checkout&range="+r, map[query.Dimension][]string{query.ByJob: {"checkout"}}
		requests := u.opensFresh(f, path)
		u.sees("traffic by class", there)
		from, to := asked(t, requests, "/v1/usage", "job", "job=checkout")
		checkClasses(u, path, &answer(t, f.Server.Ledger, from, to, job, query.ByJob).Groups[0].Figures)
		path = "/node/rack1-n01?range=" + r
		requests = u.opensFresh(f, path)
		u.sees("traffic by class", there)
		from, to = asked(t, requests, "/v1/usage", "job,kind")
		checkClasses(u, path, answer(t, f.Server.Ledger, from, to, map[query.Dimension][]string{query.ByNode: {"rack1-n01"}}, query.ByJob, query.ByKind).Total)
		u.sees("the table", `(document.querySelector('[aria-label="Network by class"]').scrollIntoView({ block: "center" }), true)`)
		picture(t, ctx, "classes-node-"+r)
		u.opens(f.URL + "/job?job=checkout&range=" + r)
		u.sees("the table", `(document.querySelector('[aria-label="Network by class"]')?.scrollIntoView({ block: "center" }), `+there+`)`)
		picture(t, ctx, "classes-job-"+r)
	}
	u.sees("no list of classes without traffic as absent", `!/peering|unclassified/i.test([...document.querySelectorAll("p.reading")].filter((p) => p.innerText.startsWith("Absent")).map((p) => p.innerText).join())`)
	u.opens(f.URL + "/job?job=checkout&range=1h&parts=workload")
	u.sees("every figure of a class", `["network_rx_zone_bytes", "network_tx_unclassified_bytes"].every((k) => document.querySelector('[aria-label="raw figures"] td[title="' + k + '"]'))`)
	narrow := signIn(t, browser(t), f, 390, 844, "/job?job=checkout&range=1h")
	narrow.sees("the table on a phone", `(document.querySelector('[aria-label="Network by class"]')?.scrollIntoView({ block: "center" }), `+there+`)`)
	narrow.sees("all columns of it", `(() => { const b = document.querySelector('[role=region][aria-label="network by class"]'); return b.scrollWidth <= b.clientWidth + 1; })()`)
	picture(t, narrow.ctx, "classes-phone")

	g := fleet.Open(t, fleet.Config{Nodes: 2, Each: 8, Tame: true})
	ctx = browser(t)
	u = signIn(t, ctx, g, 1440, 900, "/job?range=1h&job=checkout")
	u.sees("no word of classes", `document.querySelector('[aria-label="raw figures"]') !== null && !`+there+` && !/unclassified|by class/i.test(document.querySelector("#main").innerText)`)
	u.opens(g.URL + "/node/rack1-n01?range=1h")
	u.sees("no word of classes on the page of a node", `document.querySelector('[aria-label="jobs on this node"]') !== null && !`+there)
}

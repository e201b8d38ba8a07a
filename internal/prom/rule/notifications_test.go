package rule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/prom/rule"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func one(name string, since time.Duration, ended ...time.Duration) rule.Alert {
	a := rule.Alert{Labels: map[string]string{"alertname": name, "node": "a"}, Annotations: map[string]string{}, StartsAt: start.Add(since)}
	for _, d := range ended {
		a.EndsAt = start.Add(d)
	}
	return a
}

// say has a receiver told all that is due, and writes it down.
func say(told *rule.Notifications, at time.Duration) string {
	var text strings.Builder
	for _, m := range told.Pending(start.Add(at)) {
		for i := range m.Alerts {
			state := "ends"
			if m.Alerts[i].IsFiring() {
				state = "fires"
			}
			text.WriteString(fmt.Sprintf("%s %s; ", m.Name, state))
		}
		told.Ack(m, start.Add(at))
	}
	return text.String()
}

// A receiver hears of an alert once as it begins, again when it goes on for long, and
// once as it ends, however often the rules say it.
func TestTold(t *testing.T) {
	t.Parallel()
	var told rule.Notifications
	check := func(at time.Duration, want string) {
		t.Helper()
		if got := say(&told, at); got != want {
			t.Errorf("at %v it is told %q, want %q", at, got, want)
		}
	}
	fires := func(at time.Duration, a rule.Alert) { told.Add(a, start.Add(at+4*time.Minute)) }
	check(0, "")
	fires(0, one("A", 0))
	check(0, "A fires; ")
	for at := time.Minute; at < 4*time.Hour; at += time.Minute {
		fires(at, one("A", 0))
		check(at, "")
	}
	fires(4*time.Hour, one("A", 0))
	check(4*time.Hour, "A fires; ")
	told.Add(one("A", 0, 5*time.Hour), start)
	check(5*time.Hour, "A ends; ")
	told.Add(one("A", 0, 5*time.Hour), start)
	check(5*time.Hour+time.Minute, "")

	// It fires anew, and ends since nobody says it any more.
	fires(6*time.Hour, one("A", 6*time.Hour))
	check(6*time.Hour, "A fires; ")
	check(6*time.Hour+4*time.Minute, "")
	check(6*time.Hour+5*time.Minute, "A ends; ")

	// What began and ended while it was not told is nothing.
	fires(7*time.Hour, one("B", 7*time.Hour))
	told.Add(one("B", 7*time.Hour, 7*time.Hour+time.Second), start)
	check(8*time.Hour, "")

	// One that ended and began again before that was told has begun twice.
	fires(9*time.Hour, one("C", 9*time.Hour))
	check(9*time.Hour, "C fires; ")
	told.Add(one("C", 9*time.Hour, 9*time.Hour+time.Minute), start)
	fires(9*time.Hour+2*time.Minute, one("C", 9*time.Hour+2*time.Minute))
	check(9*time.Hour+2*time.Minute, "C fires; ")

	// An annotation says how often.
	often := one("D", 10*time.Hour)
	often.Annotations[rule.RepeatAnnotation] = "5m"
	for _, c := range []struct {
		at   time.Duration
		want string
	}{{0, "D fires; "}, {3 * time.Minute, ""}, {5 * time.Minute, "D fires; "}, {7 * time.Minute, ""}} {
		fires(10*time.Hour+c.at, often)
		fires(10*time.Hour+c.at, one("C", 9*time.Hour+2*time.Minute))
		check(10*time.Hour+c.at, c.want)
	}
}

// What changes while a message is on its way is told with the next.
func TestToldMeanwhile(t *testing.T) {
	t.Parallel()
	var told rule.Notifications
	told.Add(one("A", 0), start.Add(time.Hour))
	m := told.Pending(start)
	told.Add(one("A", 0, time.Minute), start)
	told.Ack(m[0], start)
	m = told.Pending(start.Add(time.Minute))
	if len(m) != 1 || m[0].Alerts[0].IsFiring() {
		t.Fatalf("%+v, want the end", m)
	}
	told.Add(one("A", 2*time.Minute), start.Add(time.Hour))
	told.Ack(m[0], start.Add(time.Minute))
	if got := say(&told, 2*time.Minute); got != "A fires; " {
		t.Errorf("after an end that was told late: %q", got)
	}
}

// After a restart the receiver hears of the end of what it believes to fire, unless
// it goes on; and nothing twice.
func TestToldAgain(t *testing.T) {
	t.Parallel()
	var before rule.Notifications
	for _, name := range []string{"A", "B", "C"} {
		before.Add(one(name, 0), start.Add(4*time.Minute))
	}
	say(&before, 0)
	before.Add(one("C", 0, time.Minute), start)
	before.Add(one("D", 0), start.Add(4*time.Minute))
	var told rule.Notifications
	back := time.Hour
	if err := told.Restore(before.Save(), start.Add(back+15*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := say(&told, back); got != "C ends; " {
		t.Errorf("at first: %q", got)
	}
	told.Add(one("A", 0), start.Add(back+30*time.Minute))
	if got := say(&told, back+10*time.Minute); got != "" {
		t.Errorf("within the grace: %q", got)
	}
	if got := say(&told, back+20*time.Minute); got != "B ends; " {
		t.Errorf("later: %q", got)
	}
	if err := told.Restore([]byte("{"), start); err == nil {
		t.Error("half a file is taken")
	}
}

// A flood of alerts is bounded, and told in messages of some size.
func TestToldFlood(t *testing.T) {
	t.Parallel()
	var told rule.Notifications
	for i := range 10_100 {
		a := one("A", 0)
		a.Labels["node"] = fmt.Sprint(i)
		told.Add(a, start.Add(time.Hour))
	}
	n := 0
	for _, m := range told.Pending(start) {
		if len(m.Alerts) > 200 {
			t.Errorf("%d alerts in one message", len(m.Alerts))
		}
		n += len(m.Alerts)
	}
	if n != 10_000 || told.Dropped != 100 {
		t.Errorf("%d are told, %d dropped; want 10000 and 100", n, told.Dropped)
	}
}

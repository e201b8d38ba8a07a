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

// loud silences no alert.
func loud(map[string]string) bool { return false }

// deliver delivers all pending messages and returns them as text.
func deliver(notified *rule.Notifications, at time.Duration) string {
	var text strings.Builder
	for _, m := range notified.Pending(start.Add(at), loud) {
		for i := range m.Alerts {
			state := "ends"
			if m.Alerts[i].IsFiring() {
				state = "fires"
			}
			text.WriteString(fmt.Sprintf("%s %s; ", m.Name, state))
		}
		notified.Ack(m, start.Add(at))
	}
	return text.String()
}

// A receiver is notified once of the start of an alert, again after the repeat interval,
// and once of its end, however often the rules report it.
func TestNotifications(t *testing.T) {
	t.Parallel()
	var notified rule.Notifications
	check := func(at time.Duration, want string) {
		t.Helper()
		if got := deliver(&notified, at); got != want {
			t.Errorf("at %v: notified %q, want %q", at, got, want)
		}
	}
	fires := func(at time.Duration, a rule.Alert) { notified.Add(a, start.Add(at+4*time.Minute)) }
	check(0, "")
	fires(0, one("A", 0))
	check(0, "A fires; ")
	for at := time.Minute; at < 4*time.Hour; at += time.Minute {
		fires(at, one("A", 0))
		check(at, "")
	}
	fires(4*time.Hour, one("A", 0))
	check(4*time.Hour, "A fires; ")
	notified.Add(one("A", 0, 5*time.Hour), start)
	check(5*time.Hour, "A ends; ")
	notified.Add(one("A", 0, 5*time.Hour), start)
	check(5*time.Hour+time.Minute, "")

	// It fires again, and ends because the rules no longer report it.
	fires(6*time.Hour, one("A", 6*time.Hour))
	check(6*time.Hour, "A fires; ")
	check(6*time.Hour+4*time.Minute, "")
	check(6*time.Hour+5*time.Minute, "A ends; ")

	// An alert that started and ended between two deliveries is forgotten.
	fires(7*time.Hour, one("B", 7*time.Hour))
	notified.Add(one("B", 7*time.Hour, 7*time.Hour+time.Second), start)
	check(8*time.Hour, "")

	// An alert that ended and started again between two deliveries is notified as a new start.
	fires(9*time.Hour, one("C", 9*time.Hour))
	check(9*time.Hour, "C fires; ")
	notified.Add(one("C", 9*time.Hour, 9*time.Hour+time.Minute), start)
	fires(9*time.Hour+2*time.Minute, one("C", 9*time.Hour+2*time.Minute))
	check(9*time.Hour+2*time.Minute, "C fires; ")

	// An annotation sets the repeat interval.
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

// A receiver is not notified that a silenced alert fires, until the silence ends; it is notified of
// the end of an alert that it knows.
func TestSilenced(t *testing.T) {
	t.Parallel()
	var notified rule.Notifications
	silent := func(labels map[string]string) bool { return labels["alertname"] == "A" || labels["alertname"] == "B" }
	names := func(list []rule.Message) (out string) {
		for i, m := range list {
			out += m.Name + fmt.Sprint(m.Alerts[0].IsFiring()) + " "
			notified.Ack(list[i], start)
		}
		return out
	}
	for _, name := range []string{"A", "B", "C"} {
		notified.Add(one(name, 0), start.Add(time.Hour))
	}
	if got := names(notified.Pending(start, silent)); got != "Ctrue " {
		t.Errorf("A and B are silenced: notified of %s", got)
	}
	if got := names(notified.Pending(start, loud)); got != "Atrue Btrue " {
		t.Errorf("no silence any more: notified of %s", got)
	}
	notified.Add(one("A", 0, time.Minute), start)
	if got := names(notified.Pending(start.Add(5*time.Minute), silent)); got != "Afalse " {
		t.Errorf("A ended during a silence: notified of %s", got)
	}
}

// A change during a delivery is notified with the next one.
func TestChangeDuringDelivery(t *testing.T) {
	t.Parallel()
	var notified rule.Notifications
	notified.Add(one("A", 0), start.Add(time.Hour))
	m := notified.Pending(start, loud)
	notified.Add(one("A", 0, time.Minute), start)
	notified.Ack(m[0], start)
	m = notified.Pending(start.Add(time.Minute), loud)
	if len(m) != 1 || m[0].Alerts[0].IsFiring() {
		t.Fatalf("%+v, want the end", m)
	}
	notified.Add(one("A", 2*time.Minute), start.Add(time.Hour))
	notified.Ack(m[0], start.Add(time.Minute))
	if got := deliver(&notified, 2*time.Minute); got != "A fires; " {
		t.Errorf("after a late notification of the end: %q", got)
	}
}

// After a restart the receiver is notified of the end of restored alerts unless they still
// fire, and of nothing twice.
func TestRestore(t *testing.T) {
	t.Parallel()
	var before rule.Notifications
	for _, name := range []string{"A", "B", "C"} {
		before.Add(one(name, 0), start.Add(4*time.Minute))
	}
	deliver(&before, 0)
	before.Add(one("C", 0, time.Minute), start)
	before.Add(one("D", 0), start.Add(4*time.Minute))
	var notified rule.Notifications
	back := time.Hour
	if err := notified.Restore(before.Save(), start.Add(back+15*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := deliver(&notified, back); got != "C ends; " {
		t.Errorf("at first: %q", got)
	}
	// The rules began again, and report that the alert began after the restart.
	notified.Add(one("A", back+time.Minute), start.Add(back+30*time.Minute))
	if got := deliver(&notified, back+10*time.Minute); got != "" {
		t.Errorf("within the grace: %q", got)
	}
	if got := deliver(&notified, back+20*time.Minute); got != "B ends; " {
		t.Errorf("later: %q", got)
	}
	if err := notified.Restore([]byte("{"), start); err == nil {
		t.Error("Restore accepts a truncated file")
	}
}

// The number of alerts is limited, and so is the size of messages.
func TestAlertLimits(t *testing.T) {
	t.Parallel()
	var notified rule.Notifications
	for i := range 10_100 {
		a := one("A", 0)
		a.Labels["node"] = fmt.Sprint(i)
		notified.Add(a, start.Add(time.Hour))
	}
	n := 0
	for _, m := range notified.Pending(start, loud) {
		if len(m.Alerts) > 200 {
			t.Errorf("%d alerts in one message", len(m.Alerts))
		}
		n += len(m.Alerts)
	}
	if n != 10_000 || notified.Dropped != 100 {
		t.Errorf("%d alerts pending, %d dropped; want 10000 and 100", n, notified.Dropped)
	}
}

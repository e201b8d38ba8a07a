// Package testkit holds helpers for the tests of all packages: waiting for a condition, and
// the stages of the gate.
//
// No product package imports it.
package testkit

import (
	"testing"
	"time"
)

// reserve is the time that [Eventually] leaves before the deadline of the test binary, so
// that the test fails with its own message and its cleanups run.
const reserve = 10 * time.Second

// Eventually waits until ok returns true. what names the condition in the failure message,
// for example "the server lists the node".
//
// A slow machine does not make it fail: its only deadline is that of the test binary (go
// test -timeout). It calls ok on the test's goroutine, first at once, then at intervals
// from 5 ms to 250 ms. Inside a synctest bubble use synctest.Wait and virtual sleeps
// instead.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	var end time.Time
	if d, has := t.(interface{ Deadline() (time.Time, bool) }); has {
		if deadline, set := d.Deadline(); set {
			end = deadline.Add(-reserve)
		}
	}
	start := time.Now()
	for wait := 5 * time.Millisecond; !ok(); wait = min(wait*5/4, 250*time.Millisecond) {
		if !end.IsZero() && time.Now().After(end) {
			t.Fatalf("not within %v: %s", time.Since(start).Round(time.Second), what)
		}
		time.Sleep(wait)
	}
}

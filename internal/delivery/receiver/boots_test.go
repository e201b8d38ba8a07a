package receiver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
)

// TestPresence checks which requests are taken for a clone's. Each word of a story
// is a request: the boot that sends it and the second at which it arrives. "+" means
// that the request has windows up to the time at which it was sent, "~" precedes the
// seconds that it was in transit. Upper case marks a request that must be reported
// as a clone's, "*" a boot that was booked before the server started.
func TestPresence(t *testing.T) {
	const long = 301 // more than together
	for name, story := range map[string]string{
		"one machine":                                "a1+ a10+ a20+",
		"it restarts":                                "a1+ a10+ b40+ b50+ b60+",
		"a late request of the boot before":          "a1+ a10+ b40+ a45+~15 b50+ b60+",
		"a word without windows":                     "a1+ b40+ a45 b50+ b60+",
		"a clone":                                    "a1+ b40+ a50+ B51+ a60+ B61+ B9000+",
		"a clone that came long after":               "a1+ a1000+ b1040+ a1050+ B1051+",
		"two clones":                                 "a1+ b5+ c6+ a10+ C11+ B12+ a13+ B14+ a15+",
		"put back to a snapshot":                     fmt.Sprintf("a1+ b40+ a%d+ a%d+", 40+long, 50+long),
		"put back, and the other one comes up after": fmt.Sprintf("a1+ b40+ a%d+ B%d+ a%d+ B%d+", 40+long, 45+long, 50+long, 51+long),
		"silent just as long as is allowed":          "a1+ b40+ a340+ B341",
		"not silent, though first heard long ago":    "a1+ b40+ b340+ a360+ B361",
		"newer by nothing":                           "a1+ b40+ a41+~1 b50+",
		"late from the first request on":             "a11+~10 a20+ b40+ a45+~10 b50+",
		"put back, and a late request before that":   "a1+ b40+ a350+ b351+~6 a360+ b361 a370+",
		"booked before the server started":           "*a b1+ a10+ B11+ a20+",
		"rebooted while the server was down":         "*a b1+ b10+ b20+",
		"booked before, a word without windows":      "*a b1+ a10 b20+ a30+ B31+",
	} {
		t.Run(name, func(t *testing.T) {
			zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var p bootTracker
			for word := range strings.FieldsSeq(story) {
				if boot, ok := strings.CutPrefix(word, "*"); ok {
					p.seed(boot)
					continue
				}
				var at, late int
				who, rest := word[:1], word[1:]
				_, _ = fmt.Sscanf(rest, "%d", &at)
				if _, tail, ok := strings.Cut(rest, "~"); ok {
					_, _ = fmt.Sscanf(tail, "%d", &late)
				}
				boot := strings.ToLower(who)
				// All boots began 1000 s before the story.
				c := batch.Clock{Boot: boot, Boottime: int64(at-late+1000) * 1e9}
				newest := int64(-1)
				if strings.Contains(rest, "+") {
					newest = c.Boottime
				}
				if got := p.observe(zero.Add(time.Duration(at)*time.Second), c, newest); got != (who != boot) {
					t.Fatalf("%s: clone %v", word, got)
				}
			}
		})
	}
}

// TestPresenceForgets checks that the tracker remembers the latest 4 earlier boots and the latest 16
// clones.
func TestPresenceForgets(t *testing.T) {
	var p bootTracker
	now := time.Unix(1e9, 0)
	send := func(boot int, newest int64) bool {
		now = now.Add(time.Second)
		return p.observe(now, batch.Clock{Boot: fmt.Sprint(boot), Boottime: now.UnixNano()}, newest)
	}
	for boot := range 7 {
		send(boot, -1)
	}
	var earlier []string
	for _, b := range p.earlier {
		earlier = append(earlier, b.boot)
	}
	if got := strings.Join(earlier, " "); got != "5 4 3 2" || p.current.boot != "6" {
		t.Errorf("current boot %s, earlier %s", p.current.boot, got)
	}
	p = bootTracker{}
	send(1, -1)
	send(2, -1)
	now = now.Add(time.Hour)
	send(1, now.UnixNano()) // put back
	if len(p.earlier) != 1 || p.earlier[0].boot != "2" || p.current.boot != "1" {
		t.Errorf("current boot %s, earlier %v", p.current.boot, p.earlier)
	}
	p = bootTracker{}
	for boot := range 18 {
		send(0, now.UnixNano()+1e9)
		send(boot+1, -1)
		send(0, now.UnixNano()+1e9)
	}
	if len(p.clones) != 16 || p.clones[0] != "3" || p.clones[15] != "18" || p.current.boot != "0" {
		t.Errorf("current boot %s, clones %v", p.current.boot, p.clones)
	}
	if !send(3, -1) || send(2, -1) {
		t.Errorf("clones are %v", p.clones)
	}
}

// TestPresenceIsBounded checks that the tracker remembers a limited number of boots,
// whatever requests arrive.
func TestPresenceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p bootTracker
		now := time.Unix(1e9, 0)
		for range 100 {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "pause")) * time.Second)
			c := batch.Clock{Boot: fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "boot")), Boottime: rapid.Int64Range(0, 1e15).Draw(t, "boottime")}
			clone := p.observe(now, c, rapid.Int64Range(-1, 1e15).Draw(t, "newest"))
			if len(p.earlier) > maxEarlierBoots || len(p.clones) > maxClones {
				t.Fatalf("%d past boots and %d clones", len(p.earlier), len(p.clones))
			}
			for _, b := range p.clones {
				if b == p.current.boot {
					t.Fatalf("%s is a clone and current", b)
				}
			}
			if !clone && p.current.boot == "" {
				t.Fatal("no boot is current")
			}
		}
	})
}

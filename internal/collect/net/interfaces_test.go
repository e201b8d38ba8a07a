package net

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestInterfacesNeverGoBack adds, removes, restarts and uses interfaces: the sum is
// everything that they counted while they were read, without lo.
func TestInterfacesNeverGoBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := interfaces{counts: notLoopback}
		now := map[string]int64{}
		want := int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "readings") {
			var text strings.Builder
			text.WriteString("heading\nheading\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n")
			for _, name := range []string{"eth0", "eth1", "a:b"} {
				have, ok := now[name]
				switch rapid.SampledFrom([]string{"count", "go", "restart"}).Draw(t, "what") {
				case "count":
					more := rapid.Int64Range(0, 1000).Draw(t, "more")
					now[name] = have + more
					want += more
				case "go":
					delete(now, name)
				case "restart":
					// A restart shows only as a lower value.
					if ok && have > 0 {
						now[name] = rapid.Int64Range(0, have-1).Draw(t, "restarted")
						want += now[name]
					}
				}
				if v, ok := now[name]; ok {
					text.WriteString(fmt.Sprintf("%6s: %d %d 0 0 0 0 0 0 %d %d 0 0 0 0 0 0\n", name, v, v, v, v))
				}
			}
			if _, err := f.add([]byte(text.String())); err != nil {
				t.Fatal(err)
			}
			if f.sum != (Count{want, want, want, want}) {
				t.Fatalf("sum = %+v, want %d\n%s", f.sum, want, text.String())
			}
		}
	})
}

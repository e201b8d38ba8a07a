package cgroup_test

import (
	"fmt"
	"log/slog"
	"os"
	"path"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMark checks that the high-water mark of a group's memory is read where the group is found, once
// in a window, and when its job ends.
func TestMark(t *testing.T) {
	const job = "/mete-run-0123456789abcdefghjkmnpqrs"
	for name, c := range map[string]struct{ capture, group, level, mark string }{
		"v1": {fakeV1, "/memory" + job, "memory.usage_in_bytes", "memory.max_usage_in_bytes"},
		"v2": {fakeV2, "/cg" + job, "memory.current", "memory.peak"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Unpack(t, []byte(c.capture))
			const every = 10
			table, err := cgroup.OpenFiles(h, cgroup.Config{Node: "n", Boot: "b", Every: every, Files: 20}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = table.Close() })
			table.Blind()
			write := func(file string, v int64) {
				t.Helper()
				p := h.Path(path.Join(c.group, file))
				if err := os.MkdirAll(path.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, fmt.Appendln(nil, v), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var key string
			read := func(ending ...string) (mark int64) {
				t.Helper()
				s := &usage.Snapshot{Ending: ending}
				if err := table.Read(s); err != nil {
					t.Fatal(err)
				}
				table.Booked()
				for _, g := range s.Groups {
					if g.Workload.Kind == workload.Job {
						mark, key = g.Value[usage.MemoryPeak], g.Workload.Key
					}
				}
				return mark
			}
			read()
			write(c.level, 10)
			write(c.mark, 300)
			for _, dir := range []string{"/cpu" + job} {
				if name == "v1" {
					if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(h.Path(dir+"/cpuacct.usage"), []byte("7\n"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range every {
				if read(); key != "" {
					break
				}
			}
			if got := read(); got != 300 {
				t.Fatalf("a new group: mark %d, want 300", got)
			}
			write(c.level, 11)
			write(c.mark, 400)
			reads := 1
			for ; reads < 2*every && read() != 400; reads++ {
			}
			if reads > every {
				t.Errorf("a risen mark was read after %d ticks of a window of %d", reads, every)
			}
			write(c.mark, 500)
			if got := read("another"); got != 400 {
				t.Errorf("the end of another job: mark %d, want 400 of before", got)
			}
			if got := read("another", key); got != 500 {
				t.Errorf("the end of the job: mark %d, want 500", got)
			}
		})
	}
}

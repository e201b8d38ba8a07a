package proc_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/testkit/hosttest"
)

// In every captured machine each process has a group in the hierarchy that counts CPU time,
// a name and a start.
func TestCaptured(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			tab := table(t, h, proc.Config{Descriptors: 10})
			if y := tab.Hierarchy(); !y.V2 && !y.Has("cpuacct") {
				t.Errorf("Hierarchy() = %+v", y)
			}
			read(t, tab)
			if len(tab.All()) < 5 || tab.Unreadable != 0 {
				t.Errorf("%d processes, %d unreadable", len(tab.All()), tab.Unreadable)
			}
			grouped := slices.ContainsFunc(tab.All(), func(p proc.Process) bool { return p.Group != "/" })
			for _, p := range tab.All() {
				if p.Name == "" || p.Group == "" || p.ID.PID == 0 || p.CPU < 0 || p.Entered != p.CPU && p.Entered != 0 {
					t.Errorf("%+v", p)
				}
			}
			if !grouped && name != "vm-v1-apart" {
				t.Error("no process is in a group")
			}
			read(t, tab)
			if h, err := proc.OpenRoot(h, 10); err == nil {
				if h.CPU() <= 0 || h.Unreadable != 0 {
					t.Errorf("root group: %d ns, %d unreadable", h.CPU(), h.Unreadable)
				}
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

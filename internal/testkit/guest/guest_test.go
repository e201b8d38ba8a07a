// Package guest runs a real virtual machine beside a real agent of its host and
// one of its own, and holds what the one gives against what the other books.
package guest

import (
	"os"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMain lets the test program be the simulator of power meters, too.
func TestMain(m *testing.M) {
	powersim.Main()
	// The host's agent is in a virtual machine perhaps: its host is left alone.
	if err := os.Setenv("METE_HOST_VSOCK", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// budget is how long energy may take from the meter of a host to a guest, at
// most, of 99 in 100 shares.
const budget = time.Second

// A host with a meter gives its guest what that one used, by files and by vsock,
// and whatever happens to either, the guest books what it was given.
func TestGuest(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine and measures it for two minutes")
	hosttest.Need(t, "root", "qemu")
	r := newRig(t)
	r.serve()
	r.simulate()
	r.startHost()
	r.boot()
	r.found()
	r.byFiles()
	r.bySocket()
	r.paused()
	r.stale()
	r.killed()
	r.totals()
	r.show()
}

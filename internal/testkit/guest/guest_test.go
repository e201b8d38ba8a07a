// Package guest runs a real virtual machine with an agent, beside a real agent of its host,
// and compares the energy that the host gives with what the guest books.
package guest

import (
	"os"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMain makes the test program also the simulator of power meters.
func TestMain(m *testing.M) {
	powersim.Main()
	// If this machine is itself a virtual machine, its agent does not connect to its host.
	if err := os.Setenv("METE_HOST_VSOCK", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// budget is how long energy may take from a meter of the host to a guest, for 99 % of the
// shares.
const budget = time.Second

// A host with a meter gives its guest its share of energy, by files and by vsock, and after
// any disturbance of either side the guest books what it was given.
func TestGuest(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine and measures it for two minutes")
	hosttest.Need(t, "root", "qemu")
	r := newRig(t)
	r.serve()
	r.simulate()
	r.startHost()
	r.boot()
	r.checkFound()
	r.checkFiles()
	r.checkSocket()
	r.checkPause()
	r.checkStaleShares()
	r.checkKilledAgent()
	r.totals()
	r.show()
}

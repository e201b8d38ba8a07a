package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Stage excludes a test from the default gate: it skips the test unless the environment
// variable METE_STAGE lists the stage (names separated by commas, or "all"). why is the
// reason in a few words, such as "compares with real time"; docs/testing.md lists each test
// with it.
//
// The stages are those of `go run ./tools/gate -all -list` that run tests:
//
//	accuracy       figures against real load; wants the machine for itself
//	timing         depends on wall time or on a share of CPU
//	torture-short  real processes, a fixed list of faults (in the default gate)
//	torture        real processes, killed at random for minutes
//	drawn          many drawn histories, and queries
//	attack         attacks on real programs for some seconds each
//	postgres       the ledger on PostgreSQL
//	peers          a stock Prometheus, Alertmanager or MQTT broker
//	vm             boots virtual machines
//	kube           runs Kubernetes clusters
//	pages          every page of the dashboard in a browser
func Stage(t testing.TB, stage, why string) {
	t.Helper()
	wanted := strings.Split(os.Getenv("METE_STAGE"), ",")
	if !slices.Contains(wanted, stage) && !slices.Contains(wanted, "all") {
		t.Skipf("%s: METE_STAGE=%s runs it", why, stage)
	}
}

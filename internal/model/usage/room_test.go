package usage_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
)

// TestRoom adds resources up to number 63, the last for which a Set has a bit, and runs the tests of
// the packages that store and send qualities: agents' checkpoints, batches, the ledger and row states.
func TestRoom(t *testing.T) {
	testkit.Stage(t, "drawn", "builds many packages, with more resources")
	const last = 63
	path, err := filepath.Abs("resource.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var more strings.Builder
	for r := usage.Limit; r <= last; r++ {
		kind := "Counter, 0"
		if r%3 == 0 {
			kind = "Peak, unit.Count"
		}
		fmt.Fprintf(&more, "\t%[1]d: {\"added_%[1]d\", unit.Count, %[2]s, false, \"resource %[1]d\"},\n", r, kind)
	}
	text := regexp.MustCompile(`(?m)^\t(Limit|ReadingLimit) = .*$`).ReplaceAllString(string(source), fmt.Sprint("\t$1 = ", last+1))
	text = strings.Replace(text, "var details = [Limit]Detail{\n", "var details = [Limit]Detail{\n"+more.String(), 1)
	added := filepath.Join(t.TempDir(), "resource.go")
	if err := os.WriteFile(added, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Those left out have a file or a number of the first resource that is unknown.
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay", testkit.Overlay(t, map[string]string{path: added}),
		"-skip", "^(TestRoom|TestResourceNumbersStay|TestQualitiesOfSetsRefuses|TestCutRefuses|TestDecodeRefuses|TestDecodeStatesRefuses|TestEncodedBytesStay|TestRows|TestAccountSize|TestCounterSlots)$",
		".", "../../attribute", "../../delivery/...", "../../store/ledger/...", "../../replicate")
	cmd.Env = append(os.Environ(), "METE_STAGE=none", "METE_MUST=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

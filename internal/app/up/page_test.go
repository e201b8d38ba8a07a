package up

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/toptest"
)

// TestPageInChromium checks that the live page works in a real browser: it shows every workload,
// and the only script errors are about the missing ledger.
func TestPageInChromium(t *testing.T) {
	dom := dump(t, &toptest.Meter{Tick: 200 * time.Millisecond})
	for _, want := range []string{"postgres", "system", "idle", "rapl/package-0", "36.5 W"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
	if strings.Contains(dom, `id="simulated"`) {
		t.Error("the page says that power is simulated, but it is not")
	}
}

// TestSimulatedInChromium checks that the page shows a note if power is simulated.
func TestSimulatedInChromium(t *testing.T) {
	dom := dump(t, &toptest.Meter{Tick: 200 * time.Millisecond, Simulated: power.DemoLabel})
	for _, want := range []string{`role="note" id="simulated">`, `<span id="simulated-text">` + power.DemoLabel + `</span>`} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
}

// dump returns the DOM of the page in a browser.
func dump(t *testing.T, m *toptest.Meter) string {
	t.Helper()
	testkit.Stage(t, "pages", "runs a browser for some seconds")
	hosttest.Need(t, "chromium")
	printed, _ := start(t, m)
	url := strings.Fields(printed)[2]

	cmd := exec.CommandContext(t.Context(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--virtual-time-budget=3000", "--window-size=1440,2400", "--dump-dom", url+"/live")
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var dom, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &dom, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%s", err, log.String())
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") && !strings.Contains(line, "/v1/") {
			t.Errorf("console: %s", line)
		}
	}
	return dom.String()
}

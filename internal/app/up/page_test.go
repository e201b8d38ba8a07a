package up

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/hosttest"
	"mete.dev/mete/internal/view/viewtest"
)

// The page works in a real browser: it shows every workload, and its script has
// nothing to complain of.
func TestPageInChromium(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	hosttest.Need(t, "chromium")
	printed, _ := start(t, &viewtest.Meter{Tick: 200 * time.Millisecond})
	url := strings.Fields(printed)[2]

	cmd := exec.CommandContext(t.Context(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", url)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var dom, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &dom, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%s", err, log.String())
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("console: %s", line)
		}
	}
	for _, want := range []string{"postgres", "system", "idle", "rapl/package-0", "36.5 W"} {
		if !strings.Contains(dom.String(), want) {
			t.Errorf("the page does not show %q", want)
		}
	}
}

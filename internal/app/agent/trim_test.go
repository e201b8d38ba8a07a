package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// fileRSS is how much of the files that this process maps is resident, in KiB.
func fileRSS(t *testing.T) (kb int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "RssFile: %d kB", &kb); err == nil {
			return kb
		}
	}
	t.Skip("this kernel does not tell file pages apart")
	return 0
}

// The program goes on after its own pages were given back, with fewer of them.
func TestDropProgram(t *testing.T) {
	before := fileRSS(t)
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := fileRSS(t); after >= before {
		t.Errorf("%d KiB of the program are resident after, %d before", after, before)
	}
}

package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// fetch makes all of the program resident, whatever the machine has taken from it.
func fetch(t *testing.T) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		var start, end uintptr
		if len(f) < 6 || f[1] != "r-xp" || !strings.HasPrefix(f[5], "/") {
			continue
		}
		if _, err := fmt.Sscanf(f[0], "%x-%x", &start, &end); err != nil {
			t.Fatal(err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_POPULATE_READ); errno != 0 {
			t.Skipf("madvise: %v", errno)
		}
	}
}

// The program goes on after its own pages were given back, with fewer of them.
func TestDropProgram(t *testing.T) {
	fetch(t)
	before := fileRSS(t)
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := fileRSS(t); after >= before {
		t.Errorf("%d KiB of the program are resident after, %d before", after, before)
	}
}

package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fileRSS returns the resident KiB of this process's mapped files.
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
	t.Skip("this kernel does not report file pages")
	return 0
}

// fetch makes the whole program resident.
func fetch(t *testing.T) {
	t.Helper()
	for _, m := range programMappings() {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_POPULATE_READ); errno != 0 {
			t.Skipf("madvise: %v", errno)
		}
	}
}

// TestDropProgram checks that the program continues after dropping its own pages, with fewer of
// them resident, and that its mappings are divided once.
func TestDropProgram(t *testing.T) {
	for _, divide := range []bool{true, false} {
		fetch(t)
		before := fileRSS(t)
		if err := dropProgram(divide); err != nil {
			t.Fatal(err)
		}
		if after := fileRSS(t); after >= before {
			t.Errorf("divide %t: %d KiB of the program are resident after, %d before", divide, after, before)
		}
		var largest uintptr
		for _, m := range programMappings() {
			largest = max(largest, m.end-m.start)
		}
		if largest != mappingSize {
			t.Errorf("divide %t: the largest mapping has %d bytes, want %d", divide, largest, mappingSize)
		}
	}
}

package agent

import (
	"fmt"
	"os"
	"slices"
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
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		var start, end uintptr
		if len(f) < 6 || f[1] != "r-xp" && f[1] != "r--p" || !strings.HasPrefix(f[5], "/") {
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

// programMappings returns the sizes of the mappings of this program's constants and text.
func programMappings(t *testing.T) (sizes []uintptr) {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		var start, end uintptr
		if len(f) < 6 || f[5] != exe || f[1] != "r-xp" && f[1] != "r--p" {
			continue
		}
		if _, err := fmt.Sscanf(f[0], "%x-%x", &start, &end); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, end-start)
	}
	return sizes
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
		if largest := slices.Max(append(programMappings(t), 0)); largest != mappingSize {
			t.Errorf("divide %t: the largest mapping has %d bytes, want %d", divide, largest, mappingSize)
		}
	}
}

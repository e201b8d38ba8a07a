package agent

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// residentPages returns how many pages of the program this process has mapped: RssFile of /proc/self/status is of all files, and approximate
// in some kernels.
func residentPages(t *testing.T) (n int) {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for _, m := range programMappings() {
		page := uintptr(os.Getpagesize())
		entries := make([]byte, (m.end-m.start)/page*8)
		if _, err := f.ReadAt(entries, int64(m.start/page*8)); err != nil {
			t.Fatal(err)
		}
		for e := range slices.Chunk(entries, 8) {
			n += int(binary.NativeEndian.Uint64(e) >> 63) // present: Documentation/admin-guide/mm/pagemap.rst of Linux
		}
	}
	return n
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
		before := residentPages(t)
		if err := dropProgram(divide); err != nil {
			t.Fatal(err)
		}
		if after := residentPages(t); after >= before {
			t.Errorf("divide %t: %d pages of the program are resident after, %d before", divide, after, before)
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

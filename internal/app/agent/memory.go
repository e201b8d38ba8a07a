package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sendDelay is how long after its end a window has been sent, mostly.
const sendDelay = 2 * time.Second

// releaseStartupMemory gives back what only the start of an agent needed, once that has done
// everything once that it does only then: free memory of the heap, and the pages
// of the program itself. Those of the latter that sending needs come back with
// each window, from the page cache, and are given back after it.
func releaseStartupMemory(ctx context.Context, window time.Duration) error {
	t := time.NewTimer(2*window + sendDelay)
	defer t.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if first {
			debug.FreeOSMemory()
		}
		if err := dropProgram(); err != nil {
			return err
		}
		t.Reset(window)
	}
}

// dropProgram unmaps the program's text and constants from this process's page
// tables. Nothing is lost: no page of these mappings can have been written to.
func dropProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil // a machine that does not show it keeps what is mapped
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(maps) {
		// start-end perms offset device inode path
		f := strings.Fields(string(line))
		if len(f) < 6 || f[5] != exe || f[1] != "r-xp" && f[1] != "r--p" {
			continue
		}
		var start, end uintptr
		if _, err := fmt.Sscanf(f[0], "%x-%x", &start, &end); err != nil || end <= start {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

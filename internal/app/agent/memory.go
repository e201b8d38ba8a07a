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

// sendDelay is the usual delay between the end of a window and its delivery.
const sendDelay = 2 * time.Second

// releaseIdleMemory returns memory to the kernel: once, after the first window, the free heap and
// the program's own file pages, of which most were for the start; then after each window those of its
// constants. The next window reads back from the page cache those that it needs. To read back the text
// too would take a tenth of the agent's CPU time where page faults are costly, as in a virtual machine
// without nested paging.
func releaseIdleMemory(ctx context.Context, window time.Duration) error {
	t := time.NewTimer(window + sendDelay)
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
		if err := dropProgram(first); err != nil {
			return err
		}
		t.Reset(window)
	}
}

// dropProgram unmaps the program's constants, and its text if asked to, from this process's page
// tables. These mappings are read-only, so no data is lost.
func dropProgram(text bool) error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil // not available here: keep the mappings
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(maps) {
		// start-end perms offset device inode path
		f := strings.Fields(string(line))
		if len(f) < 6 || f[5] != exe || f[1] != "r--p" && (!text || f[1] != "r-xp") {
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

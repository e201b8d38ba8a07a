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

// dropEvery is how often the program's pages are returned to the kernel after the first time. Most of
// those that are used at all are used in each window, and page faults are costly where the machine is a
// virtual one without nested paging: to return them after each window took a quarter of the agent's CPU
// time there.
const dropEvery = time.Hour

// releaseIdleMemory returns memory to the kernel. After the first window it returns the free heap, and drops the program's
// own file pages; these it drops each hour from then on. The next windows read back from the page cache those that they
// need.
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
		t.Reset(dropEvery)
	}
}

// mappingSize is the size of the mappings into which the program is divided, in bytes. At a page fault the
// kernel also maps the pages around it that are in the page cache, 64 KiB, but only those of the same
// mapping. The agent uses some KiB here and there of most 64 KiB of its program. Each mapping costs the
// kernel some 200 bytes.
var mappingSize = uintptr(max(8<<10, os.Getpagesize()))

// dropProgram unmaps the program's constants and text from this process's page tables. These mappings
// are read-only, so no data is lost. If divide is set, it first divides them.
func dropProgram(divide bool) error {
	for _, m := range programMappings() {
		if divide {
			divideMapping(m)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

// A mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// programMappings returns the mappings of the program's constants and text, or none without /proc.
func programMappings() (list []mapping) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(maps) {
		// start-end perms offset device inode path
		f := strings.Fields(string(line))
		if len(f) < 6 || f[5] != exe || f[1] != "r--p" && f[1] != "r-xp" {
			continue
		}
		var m mapping
		if _, err := fmt.Sscanf(f[0], "%x-%x", &m.start, &m.end); err == nil && m.start < m.end {
			list = append(list, m)
		}
	}
	return list
}

// divideMapping divides a mapping: the kernel keeps neighbors apart whose flags differ. This flag, not
// to be part of a core dump, changes nothing else: by default the pages of a file are in none, but for the
// first one of a program. If the process has too many mappings, the rest of this one remains whole.
func divideMapping(m mapping) {
	for at := m.start + mappingSize; at < m.end; at += 2 * mappingSize {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, at, min(mappingSize, m.end-at), unix.MADV_DONTDUMP); errno != 0 {
			return
		}
	}
}

package agent

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTuneRuntime checks that the environment has priority, and that all threads have the timer slack,
// also those that start later.
func TestTuneRuntime(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(3), debug.SetGCPercent(77)
	defer func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}()
	t.Setenv("GOMAXPROCS", "3")
	t.Setenv("GOGC", "77")
	TuneRuntime()
	if n := runtime.GOMAXPROCS(0); n != 3 {
		t.Errorf("GOMAXPROCS is %d, want that of the environment", n)
	}
	if n := debug.SetGCPercent(77); n != 77 {
		t.Errorf("GOGC is %d, want that of the environment", n)
	}
	t.Setenv("GOMAXPROCS", "")
	t.Setenv("GOGC", "")
	TuneRuntime()
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("GOMAXPROCS is %d, want 1", n)
	}
	if n := debug.SetGCPercent(30); n != 30 {
		t.Errorf("GOGC is %d, want 30", n)
	}

	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	// It keeps a thread of its own, which starts now.
	go func() {
		runtime.LockOSThread()
		_, _ = unix.Read(pipe[0], make([]byte, 1))
		close(read)
	}()
	defer func() {
		_ = unix.Close(pipe[1])
		<-read
		_ = unix.Close(pipe[0])
	}()
	for range 3 {
		runtime.Gosched()
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		b, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if os.IsPermission(err) {
			t.Skip("the slack of other threads cannot be read: that needs CAP_SYS_NICE")
		}
		if err != nil && !os.IsNotExist(err) || err == nil && strings.TrimSpace(string(b)) != "5000000" {
			t.Errorf("thread %s: timer slack %q, %v", thread.Name(), b, err)
		}
	}
}

package agent

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

// timerSlack is how much later than asked the kernel may end a sleep of the agent, which the shortest
// tick still bears.
const timerSlack = 5 * time.Millisecond

// TuneRuntime sets the Go runtime to cost little in a program that sleeps most of the time. GOGC and
// GOMAXPROCS of the environment have priority.
func TuneRuntime() {
	// The agent allocates little once it knows all groups, so collecting earlier costs almost
	// nothing and saves a third of the memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30)
	}
	// With more, each goroutine that becomes ready wakes a thread that finds nothing else to do.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	slackTimers()
}

// slackTimers sets the timer slack of all threads; later ones inherit it. The runtime's monitor sleeps
// for 20 us at a time while anything runs, and costs a timer interrupt each time. With slack it wakes
// when the CPU is awake anyway. Without CAP_SYS_NICE the kernel refuses that for all
// threads but the calling one; the unit of systemd sets it for all (TimerSlackNSec=).
func slackTimers() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	text := []byte(strconv.FormatInt(int64(timerSlack), 10))
	for _, t := range threads {
		// Not below /proc/self/task: only processes have the file, as which any thread can be named.
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", text, 0)
	}
}

// Command pod is the program of the containers of a test cluster. Without arguments it holds the namespaces of
// a pod: it waits until it is stopped, and removes processes whose parents ended. Otherwise:
//
//	pod burn -cpu 300ms -for 1s    uses CPU time, evenly over that time, or with -parts 3 at the end of each third of it
//	pod hold -bytes 1000000 -for 1m
//	                       holds memory: it grows for ten seconds, and shrinks for as long after the minute
//	pod write -bytes 1000000 -for 1m
//	                       writes a file, /written or that of -file, in parts, each of which it syncs; with -direct not
//	                       through the page cache
//	pod serve -clients 3   serves that many clients, one connection each
//	pod traffic -to SERVER:7000 -send 1000000 -receive 2000000 -wait 10s -for 1s
//	                       waits, then sends and receives
//
// Each prints a report, a line of JSON, and leaves it as its termination message in the status of its pod. With a last
// argument -stay it then waits until it is stopped.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// began is when this program began.
var began = time.Now()

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		pause()
		return nil
	}
	commands := map[string]func(args []string) error{"burn": burn, "hold": hold, "write": write, "serve": serve, "traffic": traffic}
	command := commands[args[0]]
	if command == nil {
		return fmt.Errorf("unknown command %q", args[0])
	}
	given := args[1:]
	stay := args[len(args)-1] == "-stay"
	if stay {
		given = args[1 : len(args)-1]
	}
	err := command(given)
	if err == nil && stay {
		pause()
	}
	return err
}

// A report is what a pod says of itself.
type report struct {
	Pod  string `json:"pod"`
	Life int64  `json:"life_ns"` // of its program so far
	CPU  int64  `json:"cpu_ns"`  // by the scheduler's clock of its process
	// Integrals of memory in byte-seconds: Held is that of hold's own count, Private all anonymous memory of the process
	// and its page tables, by the kernel.
	Held    int64 `json:"held_byte_seconds,omitempty"`
	Private int64 `json:"private_byte_seconds,omitempty"`
	// Bytes: Written and synced; of payload, Sent and Received; of the interfaces without lo, Tx and Rx.
	Written  int64 `json:"written,omitempty"`
	Sent     int64 `json:"sent,omitempty"`
	Received int64 `json:"received,omitempty"`
	Tx       int64 `json:"tx_bytes,omitempty"`
	Rx       int64 `json:"rx_bytes,omitempty"`
}

// give completes a report and gives it.
func (r report) give() (err error) {
	if r.Pod, err = os.Hostname(); err != nil {
		return err
	}
	r.Life = int64(time.Since(began))
	used, err := cpuTime()
	if err != nil {
		return err
	}
	r.CPU = int64(used)
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	_, err = os.Stdout.Write(b)
	// The kubelet has made the file.
	f, openErr := os.OpenFile("/dev/termination-log", os.O_WRONLY, 0)
	if errors.Is(openErr, fs.ErrNotExist) {
		return err
	} else if openErr != nil {
		return errors.Join(err, openErr)
	}
	_, writeErr := f.Write(b)
	return errors.Join(err, writeErr, f.Close())
}

func pause() {
	told := make(chan os.Signal, 8)
	signal.Notify(told, unix.SIGINT, unix.SIGTERM, unix.SIGCHLD)
	for s := range told {
		if s != unix.SIGCHLD {
			return
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func burn(args []string) error {
	f := flag.NewFlagSet("burn", flag.ExitOnError)
	least := f.Duration("cpu", 0, "CPU time to use")
	during := f.Duration("for", 0, "how long to take for it, at least")
	bursts := f.Int("parts", 0, "use it in `n` bursts, each as fast as possible, instead of evenly")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	for {
		used, err := cpuTime()
		if err != nil {
			return err
		}
		passed := time.Since(began)
		if used >= *least && passed >= *during {
			break
		}
		part := min(float64(passed)/float64(max(*during, 1)), 1)
		if *bursts > 0 {
			part = math.Floor(part*float64(*bursts)) / float64(*bursts)
		}
		if float64(used) >= float64(*least)*part {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		for from := time.Now(); time.Since(from) < time.Millisecond; {
		}
	}
	return report{}.give()
}

// cpuTime returns the CPU time of this process, by its scheduler's clock.
func cpuTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

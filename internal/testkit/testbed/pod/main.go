// Command pod is the program of the containers of a test cluster. Without arguments it holds the namespaces of
// a pod: it waits until it is stopped, and removes processes whose parents ended. Otherwise:
//
//	pod burn -cpu 300ms    uses CPU time, and prints as a line of JSON what it used; with -stay it then waits
//	                       until it is stopped
//	pod serve -clients 3   serves that many clients, one connection each, and prints like them
//	pod traffic -to SERVER:7000 -send 1000000 -receive 2000000 -wait 10s -for 1s
//	                       waits, then sends and receives, and prints the bytes of its payload and of its
//	                       interfaces
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		pause()
		return nil
	case args[0] == "burn":
		return burn(args[1:])
	case args[0] == "serve":
		return serve(args[1:])
	case args[0] == "traffic":
		return traffic(args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
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
	stay := f.Bool("stay", false, "wait to be stopped")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	for {
		used, err := cpuTime()
		if err != nil {
			return err
		}
		if used < *least {
			for began := time.Now(); time.Since(began) < time.Millisecond; {
			}
			continue
		}
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		err = json.NewEncoder(os.Stdout).Encode(struct {
			Pod string `json:"pod"`
			CPU int64  `json:"cpu_ns"`
		}{host, int64(used)})
		if *stay {
			pause()
		}
		return err
	}
}

// cpuTime returns the CPU time of this process, by its scheduler's clock.
func cpuTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

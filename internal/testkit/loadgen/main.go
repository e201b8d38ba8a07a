// Command load puts a known load on a machine and prints, as one line of JSON,
// what it did: tests compare mete's figures with it.
//
//	load busy -cores 2 -for 10s
//	load forks -each 40ms -for 10s
//	load anon -mb 50 -for 2s
//	load write -mb 40 -file PATH
//	load receive -listen 10.0.0.2:7000
//	load send -mb 11 -to 10.0.0.2:7000
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// result is what a load did; values that do not apply to a mode are zero.
type result struct {
	CPU      int64 `json:"cpu_ns"`   // by getrusage, with children that were waited for
	Children int   `json:"children"` // number started
	Bytes    int64 `json:"bytes"`    // payload
	Segments int64 `json:"segments"` // TCP segments sent
	Sent     int64 `json:"sent"`     // TCP payload sent, retransmissions included
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("busy, forks, burn, anon, write, receive or send?")
	}
	f := flag.NewFlagSet(args[0], flag.ExitOnError)
	cores := f.Int("cores", 1, "threads")
	length := f.Duration("for", time.Second, "how long")
	each := f.Duration("each", 40*time.Millisecond, "CPU time of a child")
	mb := f.Int64("mb", 1, "10^6 bytes")
	file := f.String("file", "", "to write, and to remove")
	listen := f.String("listen", "", "address")
	to := f.String("to", "", "address")
	// With ExitOnError it returns no error.
	_ = f.Parse(args[1:])

	var d result
	var err error
	switch args[0] {
	case "busy":
		busy(*cores, *length)
	case "burn":
		burn(*each)
		return nil
	case "forks":
		d.Children, err = forks(*each, *length)
	case "anon":
		d.Bytes, err = anon(*mb*1e6, *length)
	case "write":
		d.Bytes, err = write(*mb*1e6, *file)
	case "receive":
		d.Bytes, err = receive(*listen)
	case "send":
		err = send(*to, *mb*1e6, &d)
	default:
		return fmt.Errorf("unknown load %q", args[0])
	}
	if err != nil {
		return err
	}
	d.CPU = used(unix.RUSAGE_SELF) + used(unix.RUSAGE_CHILDREN)
	return json.NewEncoder(os.Stdout).Encode(d)
}

func used(who int) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// spin keeps a CPU busy until a time.
func spin(end time.Time) {
	for time.Now().Before(end) {
		for i := range 1000 {
			runtime.KeepAlive(i)
		}
	}
}

func busy(cores int, length time.Duration) {
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for range cores {
		wg.Go(func() { spin(end) })
	}
	wg.Wait()
}

// burn uses CPU time rather than wall time.
func burn(d time.Duration) {
	for used(unix.RUSAGE_SELF) < d.Nanoseconds() {
		spin(time.Now().Add(time.Millisecond))
	}
}

func forks(each, length time.Duration) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	n := 0
	for end := time.Now().Add(length); time.Now().Before(end); n++ {
		if err := exec.Command(self, "burn", "-each", each.String()).Run(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// anon holds private anonymous memory in small pages, so that its size is not rounded up to
// huge ones.
func anon(bytes int64, hold time.Duration) (int64, error) {
	if bytes > 0 {
		m, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return 0, err
		}
		// Kernels without huge pages reject this advice.
		_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE)
		for i := 0; i < len(m); i += os.Getpagesize() {
			m[i] = 1
		}
	}
	time.Sleep(hold)
	return bytes, nil
}

func write(bytes int64, file string) (_ int64, err error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(file)) }()
	block := make([]byte, 1e6)
	for i := range block {
		block[i] = byte(i * 7)
	}
	var n int64
	for n < bytes {
		k, err := f.Write(block[:min(int64(len(block)), bytes-n)])
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, f.Sync()
}

package sources_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// drive runs a changing load, selected by number, from the first byte of standard input to
// its end.
func drive(number string) {
	n, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return
	}
	go func() {
		// EOF means that the parent is gone, for whatever reason.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	r := rand.New(rand.NewPCG(uint64(n), 3))
	size := .05 + .25*r.Float64() // CPUs
	span := func(from, to time.Duration) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }
	for {
		switch n % 4 {
		case 0: // steady, at another level every few seconds
			duty(size*r.Float64(), span(2*time.Second, 5*time.Second))
		case 1: // on and off
			duty(size, span(time.Second, 3*time.Second))
			time.Sleep(span(2*time.Second, 5*time.Second))
		case 2: // spikes
			duty(1, 200*time.Millisecond)
			time.Sleep(span(time.Second, 4*time.Second))
		default: // processes of 40 ms with pauses
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{"METE_TEST_BUSY=40ms"}
			if err := cmd.Run(); err != nil {
				panic(err)
			}
			time.Sleep(span(100*time.Millisecond, 600*time.Millisecond))
		}
	}
}

// duty is busy for a share of the given time, in periods of 10 ms.
func duty(share float64, length time.Duration) {
	const turn = 10 * time.Millisecond
	for end := time.Now().Add(length); time.Now().Before(end); {
		begin := time.Now()
		for time.Since(begin) < time.Duration(share*float64(turn)) {
		}
		time.Sleep(turn - time.Since(begin))
	}
}

// A loadSet is a set of loads, each in a group of its own.
type loadSet struct {
	mount string   // of the hierarchy that counts CPU
	dirs  []string // of the groups, absolute
	start []io.WriteCloser
}

// newLoadSet starts n loads, which wait for a byte, and end with the test.
func newLoadSet(t *testing.T, n int) *loadSet {
	t.Helper()
	mounts, _ := hierarchies(t)
	c := &loadSet{mount: mounts[0]}
	top := filepath.Join(c.mount, fmt.Sprintf("mete-test-energy-%d", os.Getpid()))
	mkdir(t, top)
	for i := range n {
		dir := filepath.Join(top, fmt.Sprintf("l%02d", i))
		mkdir(t, dir)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "METE_TEST_LOAD="+strconv.Itoa(i))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
		c.dirs, c.start = append(c.dirs, dir), append(c.start, in)
	}
	return c
}

// mkdir creates a group and removes it at the end of the test, when its last process may
// still be exiting.
func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := os.Remove(dir)
		for try := 0; err != nil && try < 200; try++ {
			time.Sleep(10 * time.Millisecond)
			err = os.Remove(dir)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

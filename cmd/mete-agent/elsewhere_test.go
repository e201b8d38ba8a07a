package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// An elsewhere is a network and UTS namespace that acts as another machine: an agent in it does not
// see another agent's claim. It ends with the test.
type elsewhere struct {
	t    *testing.T
	do   chan func() // run on the thread in the namespaces
	task int         // id of that thread
}

func newElsewhere(t *testing.T, name string) *elsewhere {
	t.Helper()
	e := &elsewhere{t: t, do: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine and is not reused
		e.task = unix.Gettid()
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS)
		if err == nil {
			err = errors.Join(unix.Sethostname([]byte(name)), exec.Command("ip", "link", "set", "lo", "up").Run())
		}
		ready <- err
		for f := range e.do {
			f()
		}
	}()
	err := <-ready
	t.Cleanup(func() { close(e.do) })
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// runInside runs f on the thread in the namespaces and waits for it.
func (e *elsewhere) runInside(f func()) {
	done := make(chan struct{})
	e.do <- func() { defer close(done); f() }
	<-done
}

// command returns c to run in the namespaces.
func (e *elsewhere) command(c *exec.Cmd) *exec.Cmd {
	ns := fmt.Sprintf("/proc/%d/task/%d/ns/", os.Getpid(), e.task)
	there := exec.Command("nsenter", append([]string{"--net=" + ns + "net", "--uts=" + ns + "uts", c.Path}, c.Args[1:]...)...)
	there.Env = c.Env
	return there
}

// reach returns an address in the namespaces that forwards to an outer address.
func (e *elsewhere) reach(here string) string {
	e.t.Helper()
	return e.pass(e.runInside, func(f func()) { f() }, here)
}

// show returns an outer address that forwards to one in the namespaces.
func (e *elsewhere) show(there string) string {
	e.t.Helper()
	return e.pass(func(f func()) { f() }, e.runInside, there)
}

// pass listens on one side and forwards connections to an address on the other side, until the test
// ends.
func (e *elsewhere) pass(listen, dial func(func()), to string) string {
	e.t.Helper()
	var l net.Listener
	var err error
	listen(func() { l, err = net.Listen("tcp4", "127.0.0.1:0") })
	if err != nil {
		e.t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	ended := false
	keep := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
		return !ended
	}
	e.t.Cleanup(func() {
		_ = l.Close() // its error does not matter
		mu.Lock()
		ended = true
		for c := range open {
			_ = c.Close() // its error does not matter
		}
		mu.Unlock()
		all.Wait()
	})
	all.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = a.Close() }() // what was sent has arrived, or cannot
				var b net.Conn
				dial(func() { b, err = net.Dial("tcp4", to) })
				if err != nil {
					return
				}
				defer func() { _ = b.Close() }() // the same
				if !keep(a) || !keep(b) {
					return
				}
				var back sync.WaitGroup
				back.Go(func() { _, _ = io.Copy(a, b); _ = a.Close() }) // one side has ended
				_, _ = io.Copy(b, a)
				_ = b.Close() // the same
				back.Wait()
				mu.Lock()
				delete(open, a)
				delete(open, b)
				mu.Unlock()
			})
		}
	})
	return l.Addr().String()
}

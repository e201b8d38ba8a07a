package bpf

import (
	"fmt"
	"golang.org/x/sys/unix"
	"os"
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	cfg := Default()
	t0 := time.Now()
	var a, b unix.Rusage
	unix.Getrusage(0, &a)
	k, err := Open(cfg)
	unix.Getrusage(0, &b)
	fmt.Println(time.Since(t0), b.Utime.Nano()-a.Utime.Nano(), b.Stime.Nano()-a.Stime.Nano())
	if err != nil {
		t.Fatal(err)
	}
	All.each(func(_ int, p Part) {
		fmt.Printf("%v: %.3000v\n", p, k.Err(p))
		if e := k.Err(p); e != nil {
			fmt.Printf("%+v\n", e)
		}
	})
	defer k.Close()
	for _, d := range []string{"cpuacct", "memory", "unified", "pids"} {
		f, _ := os.Open("/sys/fs/cgroup/" + d)
		w, err := k.NewWalker(int(f.Fd()), d == "unified")
		if err != nil {
			fmt.Println(d, err)
			continue
		}
		os.Mkdir("/sys/fs/cgroup/"+d+"/mete-test-x", 0755)
		rows, err := w.Read()
		fmt.Println(d, rows, err)
		os.Remove("/sys/fs/cgroup/" + d + "/mete-test-x")
		w.Close()
		f.Close()
	}
	k.Drain(func(e *Event) { fmt.Printf("%+v %s\n", *e, e.Path) })
	n := 0
	err = k.Tasks(func(t *Task) bool {
		n++
		if n%20 == 1 || t.HasRSS == 1 {
			fmt.Printf("%+v %s\n", *t, t.Comm())
		}
		return true
	})
	fmt.Println(n, err)
	for c := range k.Counts() {
		fmt.Printf("%+v\n", c)
	}
}

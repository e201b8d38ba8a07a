package torture

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A child is a program that is restarted many times; each process of it is a life.
type child struct {
	name   string
	args   []string
	points map[string]int  // failpoints, with the highest visit at which it is killed
	env    func() []string // environment of the next life
	begin  func(*exec.Cmd) error
	log    *os.File
	dir    string // holds the file of failpoints at which it died

	cmd          *exec.Cmd
	done         chan struct{} // closed when the process is gone
	up           bool
	began, ended time.Time
	armed        string
	lives        int
	limit        time.Duration // of this life
}

func newChild(t *testing.T, dir, name string, points map[string]int, args ...string) *child {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	c := &child{name: name, args: args, points: points, dir: dir, log: log}
	t.Cleanup(func() {
		c.kill(syscall.SIGKILL)
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *child) crashLog() string { return filepath.Join(c.dir, c.name+".crashes") }

// start begins a life. A point such as "ship.sent@2" ends it at the second visit of the
// failpoint; "" does not end it.
func (c *child) start(point string) error {
	c.cmd = exec.Command(c.args[0], c.args[1:]...)
	c.cmd.Env = append(os.Environ(), "METE_CRASH="+point, "METE_CRASH_LOG="+c.crashLog(), "GOTRACEBACK=all")
	if c.env != nil {
		c.cmd.Env = append(c.cmd.Env, c.env()...)
	}
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	fmt.Fprintf(c.log, "--- life %d %s %q %q\n", c.lives, time.Now().UTC().Format(time.RFC3339Nano), point, c.cmd.Env[len(os.Environ())+2:])
	begin := (*exec.Cmd).Start
	if c.begin != nil {
		begin = c.begin
	}
	if err := begin(c.cmd); err != nil {
		return err
	}
	c.done, c.up, c.armed, c.began = make(chan struct{}), true, point, time.Now()
	c.lives++
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // the exit status does not matter
		close(done)
	}(c.cmd, c.done)
	return nil
}

// look reports whether the process has ended since the last call.
func (c *child) look() bool {
	if !c.up {
		return false
	}
	select {
	case <-c.done:
	default:
		return false
	}
	c.up, c.ended = false, time.Now()
	return true
}

// kill sends a signal and waits until the process has ended.
func (c *child) kill(sig syscall.Signal) {
	if !c.up {
		return
	}
	_ = c.cmd.Process.Signal(sig) // fails if the process has ended
	<-c.done
	c.up, c.ended = false, time.Now()
}

// tail returns the end of the log.
func (c *child) tail() string {
	b, err := os.ReadFile(c.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// hits returns the number of deaths at each failpoint.
func (c *child) hits() map[string]int {
	n := map[string]int{}
	b, err := os.ReadFile(c.crashLog())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		panic(err)
	}
	for p := range strings.FieldsSeq(string(b)) {
		n[p]++
	}
	return n
}

// arm chooses the failpoint at which the next life ends: mostly one with few hits, preferring
// wanted ones.
func (c *child) arm(rnd *rand.Rand, leave func(string) bool, wanted []string) string {
	hits := c.hits()
	for _, p := range wanted {
		hits[p] -= 3
	}
	points := slices.DeleteFunc(slices.Sorted(maps.Keys(c.points)), leave)
	if len(points) == 0 {
		return ""
	}
	rnd.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	if rnd.IntN(6) > 0 {
		slices.SortStableFunc(points, func(a, b string) int { return cmp.Compare(hits[a], hits[b]) })
	}
	visit := 1
	if rnd.IntN(2) == 0 {
		visit += rnd.IntN(c.points[points[0]])
	}
	return fmt.Sprintf("%s@%d", points[0], visit)
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A container is a control group that looks like the root to the programs in it.
type container struct {
	t    *testing.T
	args []string // of a shell that enters it
}

func newContainer(t *testing.T) *container {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := procfmt.Mountinfo(b)
	if err != nil {
		t.Fatal(err)
	}
	var enter, show strings.Builder
	for _, m := range mounts {
		if m.Type != "cgroup2" && (m.Type != "cgroup" || !procfmt.Has(m.Super, "cpuacct")) {
			continue
		}
		dir := fmt.Sprintf("%s/mete-box-%d", m.Point, os.Getpid())
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			testkit.Eventually(t, "the container's groups are empty", func() bool { return removeGroups(dir) == nil })
		})
		fmt.Fprintf(&enter, "echo $$ >%s/cgroup.procs && ", dir)
		fmt.Fprintf(&show, "mount --bind %s %s && ", dir, m.Point)
	}
	return &container{t, []string{"-c", enter.String() + `exec unshare -C -m -- sh -c "$@"`, "sh", show.String() + `exec "$@"`, "sh"}}
}

// removeGroups removes a group and those below it.
func removeGroups(dir string) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, unix.Rmdir(dir)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// command returns c to run in the container.
func (b *container) command(c *exec.Cmd) *exec.Cmd {
	inside := exec.Command("sh", slices.Concat(b.args, []string{c.Path}, c.Args[1:])...)
	inside.Env = c.Env
	return inside
}

// admit makes c run as an ordinary user, with a state directory and a program that the user can read.
func (s *site) admit(c *exec.Cmd, state string) {
	s.t.Helper()
	const user = 65534
	text, err := os.ReadFile(os.Args[0])
	program := filepath.Join(s.dir, "program")
	setpriv, missing := exec.LookPath("setpriv")
	err = errors.Join(err, missing, os.WriteFile(program, text, 0o755), os.Chmod(s.dir, 0o755), os.Mkdir(state, 0o700), os.Chown(state, user, user))
	if err != nil {
		s.t.Fatal(err)
	}
	c.Path, c.Args = setpriv, append([]string{setpriv, "--reuid", strconv.Itoa(user), "--clear-groups", program}, c.Args[1:]...)
}

// usedBy returns the CPU seconds by node, of rows that are in sums, or of those within other nodes.
func (s *site) usedBy(nested bool) map[string]float64 {
	s.t.Helper()
	args := []string{"usage", "--by", "node", "-o", "json", "--server", s.url, "--token", s.viewer, "--from", "-2h"}
	if nested {
		args = append(args, "--nested", "only")
	}
	var a struct {
		Groups []struct {
			Node string   `json:"node"`
			CPU  *float64 `json:"cpu_seconds"`
		}
	}
	out := s.run(args...)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	used := map[string]float64{}
	for _, g := range a.Groups {
		if g.CPU != nil && *g.CPU > 0 {
			used[g.Node] += *g.CPU
		}
	}
	return used
}

// Use that an agent in a container and a job in it measured counts once: in the machine's agent, or in the container's
// if that is the widest. None of them can see the others' claims.
func TestMetersInContainer(t *testing.T) {
	hosttest.Need(t, "procfs", "root")
	t.Parallel()
	box := newContainer(t)
	for _, c := range []struct {
		name    string
		machine bool // its agent measures too
		outer   string
	}{{"of a measured machine", true, "machine"}, {"alone", false, "inside"}} {
		s := newSite(t)
		s.serve()
		url := s.url
		// apart returns a command for a network namespace of its own.
		apart := func(name string, command func() *exec.Cmd) *exec.Cmd {
			there := newElsewhere(t, name)
			s.url = "https://" + there.reach(strings.TrimPrefix(url, "https://"))
			cmd := command()
			s.url = url
			cmd.Env = append(cmd.Env, "METE_TOKEN="+s.token, "METE_STATE="+filepath.Join(s.dir, name), "METE_SOCKET="+filepath.Join(s.dir, name, "s"))
			return there.command(cmd)
		}
		if c.machine {
			s.node = s.start("agent", apart("machine", func() *exec.Cmd {
				return s.agent("-reader", "files", "-state", filepath.Join(s.dir, "machine"), "-socket", "")
			}))
			s.node.waitOutput("msg=measuring")
			s.awaitBooked(0.1)
		}
		inside := s.start("agent inside", apart("inside", func() *exec.Cmd {
			return box.command(s.agent("-reader", "files", "-scope", "own", "-state", filepath.Join(s.dir, "inside"), "-socket", ""))
		}))
		inside.waitOutput("msg=measuring.*scope=cgroup:")
		inside.await("its first window", func() bool { return s.usedBy(false)["inside"]+s.usedBy(true)["inside"] > 0 })
		// An ordinary user's job has no group of its own.
		for _, user := range []string{"job", "plain"} {
			job := s.start("job", apart(user, func() *exec.Cmd {
				cmd := s.command("mete", "run", "-q", "--server", s.url, "--server-wait", "1000h", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
				if user == "plain" {
					s.admit(cmd, filepath.Join(s.dir, user))
				}
				return box.command(cmd)
			}))
			job.wait()
			if text := job.log.String(); text != "" {
				t.Errorf("%s: the job: %s", c.name, text)
			}
		}
		wanted := map[bool][]string{false: {c.outer}, true: {"plain"}} // all jobs are of one node, which has the latest name
		if c.machine {
			wanted[true] = []string{"inside", "plain"}
		}
		for nested, want := range wanted {
			s.server.await(fmt.Sprintf("%v in sums or, if %v, within other nodes", want, nested), func() bool {
				var got []string
				for n := range s.usedBy(nested) {
					got = append(got, n)
				}
				slices.Sort(got)
				return slices.Equal(got, want)
			})
		}
		inside.stop()
		if c.machine {
			s.node.stop()
		}
	}
}

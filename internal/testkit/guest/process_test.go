package guest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/syncbuf"
)

// A program is a running program of this machine.
type program struct {
	cmd   *exec.Cmd
	log   syncbuf.Buffer
	ended chan struct{}
}

// start starts a program of this project, which ends with the test at the latest.
func (r *rig) start(env []string, name string, args ...string) *program {
	r.t.Helper()
	p := &program{cmd: r.command(name, args...), ended: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its log shows how it ended
		close(p.ended)
	}()
	r.t.Cleanup(func() {
		p.kill()
		if r.t.Failed() {
			r.t.Logf("%s said:\n%s", name, &p.log)
		}
	})
	return p
}

// command returns a command of this project, with directories of the test.
func (r *rig) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(r.dir, "bin", name), args...)
	cmd.Env = append(os.Environ(), "METE_STATE="+filepath.Join(r.dir, "state"), "METE_SOCKET="+filepath.Join(r.dir, "s"), "METE_SERVER=", "METE_TOKEN=")
	return cmd
}

// run runs mete and returns its output.
func (r *rig) run(args ...string) string {
	r.t.Helper()
	cmd := r.command("mete", args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if r.url != "" {
		cmd.Env = append(cmd.Env, "METE_SERVER="+r.url, "METE_TOKEN="+r.viewer)
	}
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("mete %s: %v\n%s", strings.Join(args, " "), err, &log)
	}
	return strings.TrimSpace(out.String())
}

func (p *program) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	<-p.ended
}

// await waits until ok returns true.
func (r *rig) await(limit time.Duration, what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// says waits for a line after position from that matches, and returns its submatches.
func (r *rig) says(log *syncbuf.Buffer, from int, limit time.Duration, pattern string) (m []string) {
	r.t.Helper()
	re := regexp.MustCompile(pattern)
	r.await(limit, "log line "+pattern, func() bool {
		m = re.FindStringSubmatch(log.String()[from:])
		return m != nil
	})
	return m
}

// A sample is one sample of /metrics.
type sample struct {
	labels string
	value  float64
}

// samples returns the samples with a name.
func samples(page, name string) (all []sample) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		i := strings.LastIndexByte(rest, ' ')
		v, err := strconv.ParseFloat(rest[i+1:], 64)
		if err != nil {
			panic(fmt.Sprintf("/metrics: %q", line))
		}
		all = append(all, sample{rest[:i], v})
	}
	return all
}

// sum sums the samples whose labels contain a text.
func sum(all []sample, label string) (v float64) {
	for _, s := range all {
		if strings.Contains(s.labels, label) {
			v += s.value
		}
	}
	return v
}

// page returns the host agent's /metrics; "" while it is down.
func (r *rig) page() string {
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get("http://" + r.status + "/metrics")
	if err != nil {
		return ""
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // nothing was written
	if err != nil {
		return ""
	}
	return string(b)
}

// acks counts the guest's acknowledgments by result: equal, differing, unknown.
func (r *rig) acks(result string) int {
	return int(sum(samples(r.page(), "mete_agent_share_acks_total"), `result="`+result+`"`))
}

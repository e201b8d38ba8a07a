package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// crashing builds the agent with failpoints.
func crashing(t *testing.T) string {
	t.Helper()
	source := func(pkg string) string {
		out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "mete.dev/mete/internal/"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(strings.TrimSpace(string(out)), "failpoint.go")
	}
	overlay := testkit.Overlay(t, map[string]string{source("x/failpoint"): source("testkit/torture/failpoint")})
	bin := filepath.Join(t.TempDir(), "mete-agent")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "mete.dev/mete/cmd/mete-agent").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// live starts the agent program bin, which dies at a failpoint, "" for none.
func (s *site) live(bin, point string, flags ...string) {
	s.t.Helper()
	c := exec.Command(bin, append([]string{"-server", s.url, "-status", ""}, flags...)...)
	c.Env = append(s.env, "METE_TOKEN="+s.token, "METE_CRASH="+point, "METE_CRASH_LOG="+filepath.Join(s.dir, "crashes"))
	s.node = s.start("agent", c)
}

// TestByName kills the agent at each step of recording an end, and right after each job, in windows
// that never close, from its very first one on: each job whose report says so is in the ledger under
// its name, with its CPU time, once, and all rows sum to the machine's use.
func TestByName(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	t.Parallel()
	bin := crashing(t)
	for _, reader := range []string{"files", "bpf"} {
		t.Run(reader, func(t *testing.T) {
			t.Parallel()
			if reader == "bpf" {
				hosttest.Need(t, "bpf")
			}
			s := newSite(t)
			s.serve()
			flags := []string{"-tick", "50ms", "-window", "1h", "-reader", reader}
			var reports []*report.Report
			keep := func(r *report.Report, must bool) {
				switch {
				case r.InLedgerByName == nil:
					t.Errorf("job %s does not know of the agent: %q", r.Name, r.Notes)
				case *r.InLedgerByName:
					reports = append(reports, r)
				case must:
					t.Errorf("job %s is not in the ledger by name: %q", r.Name, r.Notes)
				default:
					t.Logf("job %s is not in the ledger by name: %q", r.Name, r.Notes)
				}
			}
			for i := range 3 {
				s.live(bin, "", flags...)
				s.node.waitOutput("msg=measuring")
				s.node.await("a socket", func() bool { _, err := os.Stat(filepath.Join(s.dir, "s")); return err == nil })
				keep(s.job(fmt.Sprint("answered", i), spin), true)
				s.node.kill()
			}
			for _, point := range []string{"spool.note-synced@1", "spool.note-synced@2", "spool.note-synced@3", "spool.written@1", "spool.written@2"} {
				s.live(bin, point, flags...)
				s.node.waitOutput("msg=measuring")
				job := s.start("job at "+point, s.jobCommand("at "+point, spin))
				select {
				case <-s.node.ended: // at the point
					s.live(bin, "", flags...)
				case <-job.ended: // before it
				}
				keep(s.report(job), false)
				s.node.kill()
			}
			s.live(bin, "", flags...)
			s.node.waitOutput("msg=measuring")
			s.node.stop() // closes the window
			s.live(bin, "", flags...)
			if len(reports) < 3 {
				t.Fatalf("%d jobs to check", len(reports))
			}
			s.checkBooked(reports...)
			crashes, err := os.ReadFile(filepath.Join(s.dir, "crashes"))
			if err != nil || !strings.Contains(string(crashes), "spool.note-synced") || !strings.Contains(string(crashes), "spool.written") {
				t.Errorf("the agent died at %q, %v; want both points", crashes, err)
			}
		})
	}
}

// TestByNameKilled kills the agent every 1 to 9 s, for five minutes, while jobs run: every job whose
// report does not say that it is not in the ledger by name is there with its CPU time, and none that
// ended at least 2 s into a life of the agent says so.
func TestByNameKilled(t *testing.T) {
	testkit.Stage(t, "timing", "kills the agent for five minutes")
	hosttest.Need(t, "root", "cgroup1")
	for _, reader := range []string{"files", "bpf"} {
		t.Run(reader, func(t *testing.T) {
			if reader == "bpf" {
				hosttest.Need(t, "bpf")
			}
			killFor(t, reader, 150*time.Second)
		})
	}
}

// killFor is a reader's half of TestByNameKilled.
func killFor(t *testing.T, reader string, long time.Duration) {
	s := newSite(t)
	s.serve()
	type life struct {
		agent    *program
		from, to time.Time // measuring, and killed
	}
	var lives []life
	begin := func() {
		c := s.command("1", "-server", s.url, "-status", "", "-reader", reader)
		c.Env = append(c.Env, "METE_TOKEN="+s.token)
		s.node = s.start("agent", c)
		lives = append(lives, life{agent: s.node})
	}
	begin()
	s.node.waitOutput("msg=measuring")
	var mu sync.Mutex
	var reports []*report.Report
	end := time.Now().Add(long)
	var jobs sync.WaitGroup
	for worker := range 3 {
		jobs.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 1))
			for n := 0; time.Now().Before(end); n++ {
				name := fmt.Sprintf("j%d-%d", worker, n)
				script := "true"
				if worker > 0 {
					script = fmt.Sprintf("%s; sleep %.2f; %s", spin, rnd.Float64()*rnd.Float64()*8, spin)
				}
				c := s.jobCommand(name, script)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("job %s: %v\n%s", name, err, out)
					return
				}
				b, err := os.ReadFile(filepath.Join(s.dir, name))
				if err != nil {
					t.Error(err)
					return
				}
				r, err := report.Parse(b)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				reports = append(reports, r)
				mu.Unlock()
				if worker == 0 {
					time.Sleep(200 * time.Millisecond)
				}
			}
		})
	}
	for time.Now().Before(end) {
		time.Sleep(time.Second + time.Duration(rand.Int64N(int64(8*time.Second))))
		s.node.kill()
		lives[len(lives)-1].to = time.Now()
		begin()
	}
	jobs.Wait()
	s.node.waitOutput("msg=measuring")
	s.node.stop()
	lives[len(lives)-1].to = time.Now()
	begin()
	s.node.waitOutput("msg=measuring")

	for i := range lives {
		measuring := regexp.MustCompile(`time=(\S+) \S+ msg=measuring`).FindStringSubmatch(lives[i].agent.log.String())
		if measuring == nil {
			lives[i].from = lives[i].to
			continue
		}
		var err error
		if lives[i].from, err = time.Parse(time.RFC3339Nano, measuring[1]); err != nil {
			t.Fatal(err)
		}
	}
	var named []*report.Report
	unnamed := 0
	for _, r := range reports {
		in := false
		for _, l := range lives {
			in = in || r.Ended.After(l.from.Add(2*time.Second)) && r.Ended.Before(l.to)
		}
		if r.InLedgerByName != nil && *r.InLedgerByName {
			named = append(named, r)
			continue
		}
		unnamed++
		if in {
			t.Errorf("job %s ended %v, 2 s into a life of the agent, and is not in the ledger by name: %q", r.Name, r.Ended, r.Notes)
		}
	}
	t.Logf("%d lives, %d jobs, %d not in the ledger by name", len(lives), len(reports), unnamed)
	if len(named) < 20 || len(lives) < 10 {
		t.Fatalf("%d jobs and %d lives to check", len(named), len(lives))
	}
	s.checkBooked(named...)
}

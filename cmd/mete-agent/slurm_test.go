package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/slurm"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A slurmSite is a site with a Slurm cluster of this machine: a controller, and two nodes that are this machine, each
// with one CPU of its own.
type slurmSite struct {
	*site
	dir        string
	controller *program
	nodes      []*program
}

const slurmConf = `ClusterName=lab
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=%[2]s/munge.sock
SlurmctldPort=%[3]s
SlurmctldPidFile=%[2]s/controller.pid
SlurmdPidFile=%[2]s/%%n.pid
SlurmdSpoolDir=%[2]s/%%n
StateSaveLocation=%[2]s/state
ProctrackType=proctrack/cgroup
JobAcctGatherType=jobacct_gather/cgroup
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=2
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=1
NodeName=n1 NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[4]s CPUs=1
NodeName=n2 NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[5]s CPUs=1
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
%[6]s`

func newSlurmSite(t *testing.T, more string) *slurmSite {
	t.Helper()
	s := &slurmSite{site: newSite(t)}
	s.dir = filepath.Join(s.site.dir, "slurm")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	port := func() string {
		_, port, _ := strings.Cut(freePort(t), ":")
		return port
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key)
	conf := fmt.Sprintf(slurmConf, slurm.Host(host), s.dir, port(), port(), port(), more)
	for name, content := range map[string]string{"slurm.conf": conf, "cgroup.conf": "CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", "munge.key": string(key)} {
		if err := os.MkdirAll(filepath.Join(s.dir, "state"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(s.site.dir, 0o755); err != nil { // munged wants it
		t.Fatal(err)
	}
	s.env = append(s.env, "SLURM_CONF="+filepath.Join(s.dir, "slurm.conf"))
	file := func(name string) string { return filepath.Join(s.dir, name) }
	munge := s.daemon("munged", "--foreground", "--force", "--key-file="+file("munge.key"), "--socket="+file("munge.sock"), "--pid-file="+file("munge.pid"), "--log-file="+file("munge.log"), "--seed-file="+file("munge.seed"))
	munge.await("its socket", func() bool {
		_, err := os.Stat(file("munge.sock"))
		return err == nil
	})
	s.control()
	for _, n := range []string{"n1", "n2"} {
		if err := os.MkdirAll(file(n), 0o755); err != nil {
			t.Fatal(err)
		}
		s.nodes = append(s.nodes, s.daemon("slurmd", "-D", "-N", n))
	}
	s.controller.await("two idle nodes", func() bool { return strings.Count(s.slurm("sinfo", "-h", "-N", "-t", "idle", "-o", "%N"), "n") == 2 })
	t.Cleanup(func() {
		// The groups of slurmd stay otherwise, which hinders the next start.
		_, _ = s.try("scancel", "--user=root")
		for _, n := range s.nodes {
			n.kill()
		}
	})
	return s
}

func (s *slurmSite) daemon(name string, args ...string) *program {
	c := exec.Command(name, args...)
	c.Env = s.env
	return s.start(name, c)
}

// control starts the controller.
func (s *slurmSite) control() {
	s.t.Helper()
	s.controller = s.daemon("slurmctld", "-D")
	s.controller.await("its answer", func() bool {
		out, _ := s.try("scontrol", "ping")
		return strings.Contains(out, "UP")
	})
}

func (s *slurmSite) try(name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Env, c.Dir = s.env, s.dir
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (s *slurmSite) slurm(name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// batch submits a script, and returns the number of the job.
func (s *slurmSite) batch(script string, args ...string) string {
	s.t.Helper()
	id := s.slurm("sbatch", slices.Concat([]string{"--parsable", "--output=/dev/null"}, args, []string{"--wrap", script})...)
	if _, err := strconv.Atoi(id); err != nil {
		s.t.Fatalf("sbatch: %q", id)
	}
	return id
}

// await waits until a job is in a state.
func (s *slurmSite) awaitState(id, state string) {
	s.t.Helper()
	s.controller.await("job "+id+" "+state, func() bool {
		return strings.Contains(s.slurm("scontrol", "show", "job", "-o", id), "JobState="+state)
	})
}

// A slurmRun is a run as mete runs shows it.
type slurmRun struct {
	Kind, Job, User, Project, State string
	Labels                          map[string]string
	Exit                            *int    `json:"exit_code"`
	CPU                             float64 `json:"cpu_seconds"`
}

// runs returns the runs of Slurm in the ledger, by number.
func (s *slurmSite) runs() map[string]slurmRun {
	s.t.Helper()
	var a struct{ Runs []slurmRun }
	out := s.run("runs", "--from", "-1h", "--limit", "100", "-o", "json", "--server", s.url, "--token", s.viewer)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	runs := map[string]slurmRun{}
	for _, r := range a.Runs {
		if r.Kind == "slurm-job" {
			runs[r.Labels[slurm.LabelJob]] = r
		}
	}
	return runs
}

// words returns what a test compares of a run.
func (r *slurmRun) words() string {
	exit := "-"
	if r.Exit != nil {
		exit = strconv.Itoa(*r.Exit)
	}
	return strings.Join([]string{r.Job, r.User, r.Project, r.State, exit, r.Labels[slurm.LabelState], r.Labels[slurm.LabelPartition], r.Labels[slurm.LabelArray], r.Labels[slurm.LabelNodes]}, "|")
}

// expect waits until the runs are as wanted.
func (s *slurmSite) expect(want map[string]string) {
	s.t.Helper()
	var got map[string]string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the runs are %v\nwant %v", got, want)
		}
	}()
	s.server.await("the runs by name", func() bool {
		got = map[string]string{}
		for id, r := range s.runs() {
			if _, ok := want[id]; ok {
				got[id] = r.words()
			}
		}
		return maps.Equal(got, want)
	})
}

// TestSlurm names the jobs of a real Slurm: of arrays, with hostile names, failing, requeued, over two nodes, while its
// controller is away and while the server is.
func TestSlurm(t *testing.T) {
	testkit.Stage(t, "peers", "runs a Slurm cluster")
	hosttest.Need(t, "root", "cgroup1", "bpf", "slurm")
	s := newSlurmSite(t, "")
	watch := []string{"--slurm-cluster", "default", "--slurm-conf", filepath.Join(s.dir, "slurm.conf"), "--slurm-interval", "1s"}
	s.serve(watch...)
	s.token = s.site.run("token", "create", "--role", "agent")
	s.measure("-reader", "bpf")
	const burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1"
	want := map[string]string{}
	train := s.batch("srun sh -c '"+burn+"'; srun sleep 1; "+burn, "--job-name=train me=now", "--account=physics")
	want[train] = "train me=now|root|physics|ended|0|COMPLETED|main||n1"
	fails := s.batch(burn+"; exit 7", "--job-name=fails")
	want[fails] = "fails|root||ended|7|FAILED|main||n2"
	s.awaitState(train, "COMPLETED")
	s.awaitState(fails, "FAILED")

	// A name that looks like the record of another job.
	evil := s.batch(burn, "--job-name=evil\nJobId="+train+" JobName=stolen \x1b[31m UserId=mallory(7)")
	s.awaitState(evil, "COMPLETED")
	want[evil] = "evil\ufffdJobId=" + train + " JobName=stolen \ufffd[31m UserId=mallory(7)|root||ended|0|COMPLETED|main||n1"

	array := s.batch(burn+"; exit $SLURM_ARRAY_TASK_ID", "--job-name=sweep", "--array=0-2")
	s.controller.await("the array's end", func() bool { return s.slurm("squeue", "-h", "-j", array) == "" })
	tasks := map[string]string{}
	for line := range strings.Lines(s.slurm("squeue", "-h", "-t", "all", "-j", array, "-o", "%A %K %N")) {
		f := strings.Fields(line)
		tasks[f[1]] = f[0]
		state := "FAILED"
		if f[1] == "0" {
			state = "COMPLETED"
		}
		want[f[0]] = fmt.Sprintf("sweep|root||ended|%s|%s|main|%s_%s|%s", f[1], state, array, f[1], f[2])
	}
	if len(tasks) != 3 {
		t.Errorf("tasks %v", tasks)
	}
	both := s.batch("srun sh -c '"+burn+"'", "--job-name=both", "--nodes=2")
	s.awaitState(both, "COMPLETED")
	want[both] = "both|root||ended|0|COMPLETED|main||n[1-2]"
	s.expect(want)

	// One that is requeued is one run, with the use of both starts.
	again := s.batch("[ \"$SLURM_RESTART_COUNT\" = 1 ] || sleep 600; "+burn, "--job-name=again", "--requeue")
	s.awaitState(again, "RUNNING")
	s.expect(map[string]string{again: "again|root||running|-||main||n1"})
	s.slurm("scontrol", "requeuehold", again)
	s.awaitState(again, "PENDING")
	s.slurm("scontrol", "release", again)
	s.slurm("scontrol", "update", "JobId="+again, "StartTime=now")
	s.awaitState(again, "COMPLETED")
	want[again] = "again|root||ended|0|COMPLETED|main||n1"
	s.expect(want)

	// The server is away while a job begins.
	late := s.batch("sleep 3; "+burn, "--job-name=late")
	s.awaitState(late, "RUNNING")
	s.server.stop()
	s.awaitState(late, "COMPLETED")
	s.serve(watch...)
	want[late] = "late|root||ended|0|COMPLETED|main||n1"
	s.expect(want)

	// The controller is away while a job ends.
	orphan := s.batch("sleep 2; exit 3", "--job-name=orphan")
	s.awaitState(orphan, "RUNNING")
	s.controller.stop()
	s.server.waitOutput("Slurm's controller does not answer")
	s.control()
	s.server.waitOutput("Slurm's controller answers again")
	s.awaitState(orphan, "FAILED")
	want[orphan] = "orphan|root||ended|3|FAILED|main||n1"
	s.expect(want)
	s.waitStored()
	for id, r := range s.runs() {
		t.Logf("job %s: %s, %.3f s of CPU", id, r.words(), r.CPU)
	}
	// Names move no use, and that of steps counts for their jobs.
	runs, byJob := s.runs(), map[string]float64{}
	for _, g := range s.ask().Groups {
		if g.CPU != nil {
			byJob[g.Job] += *g.CPU
		}
	}
	sweep := runs[tasks["0"]].CPU + runs[tasks["1"]].CPU + runs[tasks["2"]].CPU
	for job, cpu := range map[string]float64{"train me=now": runs[train].CPU, "fails": runs[fails].CPU, "both": runs[both].CPU, "sweep": sweep, "again": runs[again].CPU} {
		if diff := byJob[job] - cpu; diff < -1e-6 || diff > 1e-6 || cpu < .1 {
			t.Errorf("job %s has %.6f s, its runs %.6f", job, byJob[job], cpu)
		}
	}
}

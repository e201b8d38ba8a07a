package agent

import (
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

const (
	jobA = "01k5x3v7qz8r9s0t1v2w3x4y5z"
	jobB = "01k5x3v7qz8r9s0t1v2w3x4y60"
)

// owners is a machine with cgroup v2: process 7 is in a group of a user, process 8 in a job.
const owners = `
-- mete/clocks --
boottime 2
monotonic 1
realtime 3
-- proc/self/mountinfo --
31 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
-- proc/self/cgroup --
0::/
-- proc/7/cgroup --
0::/user.slice/mete-x.scope/meter
-- proc/8/cgroup --
0::/user.slice/mete-run-` + jobA + `
-- proc/9/cgroup --
nonsense
-- sys/fs/cgroup/cgroup.controllers --
cpu memory
`

// TestJobKey checks that a peer other than root acts only for a job that it is in, or whose group it
// owns in a place where mete run creates groups; and that the key says who named the group.
func TestJobKey(t *testing.T) {
	h := hosttest.Unpack(t, []byte(owners))
	hosttest.Need(t, "root")
	const me = 1234
	group := func(path string, uid int) string {
		dir := h.Path("/sys/fs/cgroup/" + path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, -1); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	user, other := socket.Peer{UID: me, PID: 7}, socket.Peer{UID: me + 1, PID: 7}
	group("user.slice/mete-x.scope/meter", me)
	check := func(what string, p socket.Peer, id, want string) {
		t.Helper()
		if got := jobKey(h, p, id); got != want {
			t.Errorf("%s: key is %q, want %q", what, got, want)
		}
	}
	check("no group", user, jobA, "")
	check("root", socket.Peer{PID: 7}, jobA, jobA)
	mine := workload.JobKey(jobA, me)
	group("user.slice", me) // delegated
	for _, place := range []string{"user.slice/mete-x.scope/meter", "user.slice/mete-x.scope"} {
		dir := group(filepath.Join(place, "mete-run-"+jobA), me)
		check("own group in "+place, user, jobA, mine)
		check("another's group in "+place, other, jobA, "")
		check("another job than that in "+place, user, jobB, "")
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	group("mete-run-"+jobB, me)
	check("a group that is far away", user, jobB, "")
	check("in a group that is gone", socket.Peer{UID: 99, PID: 8}, jobA, "")
	group("user.slice/mete-run-"+jobA, me)
	check("in the job's group", socket.Peer{UID: 99, PID: 8}, jobA, mine)
	group("user.slice", 0)
	check("in a group that root named", socket.Peer{UID: 99, PID: 8}, jobA, jobA)
	check("in another job's group", socket.Peer{UID: 99, PID: 8}, jobB, "")
	check("a process that is not readable", socket.Peer{UID: 99, PID: 9}, jobA, "")
	check("a process that is not seen", socket.Peer{UID: 99}, jobA, "")
}

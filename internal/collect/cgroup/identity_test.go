package cgroup_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestDelegated checks that a user who owns a group cannot book use to the container, pod or job of
// another by giving a group its name: a process of the user creates the groups.
func TestDelegated(t *testing.T) {
	hosttest.Need(t, "root")
	const user, job = 65534, "01k5x3v7qz8r9s0t1v2w3x4y5z"
	box := "docker-" + hosttest.ContainerID(t) + ".scope"
	pod := "kubepods-pod0123abcd_0123_0123_0123_0123456789ab.slice"
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		mkdir(t, in(p+"/user")...)
		for _, dir := range in(p + "/user") {
			if err := os.Chown(dir, user, user); err != nil {
				t.Fatal(err)
			}
		}
		s := open(config())
		s.tick()
		own := map[string]int64{}
		for _, name := range []string{"mete-run-" + job, box, pod} {
			mkdir(t, in(p+"/"+name)...)
			own[name] = work(t, p+"/"+name, "2ms")
			cmd := exec.Command("mkdir", in(p+"/user/"+name)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() { rmdir(t, in(p+"/user/"+name)...) })
			s.tick()
			work(t, p+"/user/"+name, "20ms")
		}
		s.tick()
		for name := range own {
			victim, fake := s.group(p+"/"+name), s.group(p+"/user/"+name)
			if victim == nil || fake == nil {
				t.Fatalf("%s: %v and %v", name, victim, fake)
			}
			if s.booked[p+"/"+name] != own[name] {
				t.Errorf("%s: booked %d ns, it used %d", name, s.booked[p+"/"+name], own[name])
			}
			known, _ := workload.Recognize(p + "/" + name)
			if victim.Workload.Key != known.Key {
				t.Errorf("%s of root has key %q, want %q", name, victim.Workload.Key, known.Key)
			}
			want := config().Boot + p + "/user/" + name
			if known.Kind == workload.Job {
				want = job + "@65534"
			}
			if fake.Workload.Key != want || fake.Workload.Kind != known.Kind || fake.Workload.ID == victim.Workload.ID {
				t.Errorf("%s of the user has key %q and id %s, want %q and another id than %s", name, fake.Workload.Key, fake.Workload.ID, want, victim.Workload.ID)
			}
		}
	})
}

// TestOwnerOfContainer checks that a container whose own group belongs to a user, as runtimes
// delegate it in a user namespace, keeps its key: root gave it its name.
func TestOwnerOfContainer(t *testing.T) {
	hosttest.Need(t, "root")
	box := hosttest.ContainerID(t)
	both(t, func(t *testing.T, open func(cgroup.Config) *fixture) {
		p := top(t)
		mkdir(t, in(p+"/docker")...)
		mkdir(t, in(p+"/docker/"+box)...)
		for _, dir := range in(p + "/docker/" + box) {
			if err := os.Chown(dir, 100000, 100000); err != nil {
				t.Fatal(err)
			}
		}
		s := open(config())
		s.tick()
		if g := s.group(p + "/docker/" + box); g == nil || g.Workload.Key != box {
			t.Errorf("the container is %+v, want key %s", g, box)
		}
	})
}

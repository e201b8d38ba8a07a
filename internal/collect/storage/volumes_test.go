package storage

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestVolumeMounts checks which mounts are those of persistent volumes.
func TestVolumeMounts(t *testing.T) {
	const pods = "/var/lib/kubelet/pods/"
	table := []string{
		"20 1 8:1 / / rw - ext4 /dev/sda1 rw",
		"21 20 8:2 / /var/lib rw shared:1 - xfs /dev/sda2 rw",
		"30 20 0:50 / " + pods + "a/volumes/kubernetes.io~nfs/pv-nfs rw - nfs4 server:/x rw",
		"31 20 8:16 / " + pods + "a/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/sdb rw",
		"32 20 8:16 / /var/lib/kubelet/plugins/kubernetes.io/csi/x/globalmount rw - ext4 /dev/sdb rw",
		"33 20 8:16 / " + pods + "b/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/sdb rw",
		"34 20 8:16 /sub " + pods + "b/volume-subpaths/pvc-1/app/0 rw - ext4 /dev/sdb rw",
		"35 20 8:17 / " + pods + "a/volumes/vendor~driver/flex rw - ext4 /dev/sdc rw",
		// No volumes, and no file systems of their own.
		"40 20 0:60 / " + pods + `a/volumes/kubernetes.io~empty-dir/cache rw - tmpfs tmpfs rw`,
		"41 20 0:61 / " + pods + "a/volumes/kubernetes.io~projected/token rw - tmpfs tmpfs rw",
		"42 20 0:62 / " + pods + "a/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw",
		"43 20 8:1 /disks/one " + pods + "a/volumes/kubernetes.io~local-volume/pv-dir rw - ext4 /dev/sda1 rw",
		"44 20 8:1 / " + pods + "a/volumes/kubernetes.io~local-volume/pv-root rw - ext4 /dev/sda1 rw",
		"45 20 8:2 / " + pods + "a/volumes/kubernetes.io~local-volume/pv-kubelet rw - xfs /dev/sda2 rw",
		"46 20 0:63 / " + pods + "a/volumes/kubernetes.io~csi/pv-bare rw - ext4 /dev/sdd rw mount",
		"47 20 0:64 / " + pods + "a/volumes/kubernetes.io~csi/pv-more/mount/deeper rw - tmpfs tmpfs rw",
		"48 20 0:65 / " + pods + "a/volumes/kubernetes.io~nfs rw - tmpfs tmpfs rw",
		"49 20 0:66 / /mnt" + pods + "a/volumes/kubernetes.io~nfs/pv-elsewhere rw - tmpfs tmpfs rw",
		// A user calls volumes of its own as those of others are called, and mounts what others mount.
		"50 20 0:50 / " + pods + "evil/volumes/kubernetes.io~nfs/alias rw - nfs4 server:/x rw",
		"51 20 0:70 / " + pods + "evil/volumes/kubernetes.io~nfs/pvc-1 rw - nfs4 evil:/y rw",
		"52 20 0:71 / " + pods + "b/volumes/kubernetes.io~nfs/pvc-1 rw - nfs4 evil:/y rw",
	}
	want := map[podVolume][]volumeMount{}
	add := func(id int, major, minor uint32, point, pod, volume string) {
		of := podVolume{pod, volume}
		want[of] = append(want[of], volumeMount{id, procfmt.Dev{Major: major, Minor: minor}, pods + point, of})
	}
	add(30, 0, 50, "a/volumes/kubernetes.io~nfs/pv-nfs", "a", "pv-nfs")
	add(31, 8, 16, "a/volumes/kubernetes.io~csi/pvc-1/mount", "a", "pvc-1")
	add(33, 8, 16, "b/volumes/kubernetes.io~csi/pvc-1/mount", "b", "pvc-1")
	add(35, 8, 17, "a/volumes/vendor~driver/flex", "a", "flex")
	add(46, 0, 63, "a/volumes/kubernetes.io~csi/pv-bare", "a", "pv-bare")
	add(50, 0, 50, "evil/volumes/kubernetes.io~nfs/alias", "evil", "alias")
	add(51, 0, 70, "evil/volumes/kubernetes.io~nfs/pvc-1", "evil", "pvc-1")
	add(52, 0, 71, "b/volumes/kubernetes.io~nfs/pvc-1", "b", "pvc-1")
	got, err := volumeMounts([]byte(strings.Join(table, "\n")+"\n"), "/var/lib/kubelet")
	if err != nil || !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v\ngot  %v\nwant %v", err, got, want)
	}
}

// TestVolumesInTurn checks that a pod with very many volumes delays none of other pods, and each of its own for as long.
func TestVolumesInTurn(t *testing.T) {
	due := map[podVolume]int64{{"good", "a"}: 9, {"good", "b"}: 8, {"late", "a"}: 1}
	for i := range int64(2 * maxLook) {
		due[podVolume{"evil", fmt.Sprint(i)}] = -i
	}
	list := inTurn(due, 9)
	first := podVolume{"evil", fmt.Sprint(2*maxLook - 1)}
	second := podVolume{"evil", fmt.Sprint(2*maxLook - 2)}
	want := []podVolume{first, {"late", "a"}, {"good", "b"}, second, {"good", "a"}}
	if len(list) != len(due) || !slices.Equal(list[:5], want) || list[len(list)-1] != (podVolume{"evil", "0"}) {
		t.Errorf("%v, want %v first", list[:5], want)
	}
	due[podVolume{"evil", "0"}] = 10 // it was measured last of all
	if list := inTurn(due, 9); len(list) != len(due)-1 || !slices.Equal(list[:3], []podVolume{{"late", "a"}, {"good", "b"}, first}) {
		t.Errorf("%v, want the pod that was measured last later", list[:3])
	}
}

// TestVolumeTime checks the time limits of a look and of each pod in it. The volumes that a look leaves are measured by the next
// ones, those of other pods first.
func TestVolumeTime(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), t.TempDir()
	tab := newTable(t, h, dir)
	for _, at := range []string{"evil/1", "evil/2", "evil/3", "good/1", "good/2"} {
		pod, volume, _ := strings.Cut(at, "/")
		mount(t, "tmpfs", volumeDir(t, dir, pod, "kubernetes.io~nfs", volume), "tmpfs", 0)
	}
	check := func(pod, look time.Duration, want ...string) {
		t.Helper()
		tab.volumes.due, tab.volumes.podTime, tab.volumes.lookTime = nil, pod, look
		for i, w := range want {
			figures, err := tab.measured()
			must(t, err)
			var got []string
			for f := range figures {
				got = append(got, f.Pod+"/"+f.Volume)
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != w {
				t.Errorf("look %d with %v of %v: %s, want %s", i, pod, look, s, w)
			}
		}
	}
	const none, much = 1, time.Hour // each takes longer than a nanosecond
	check(much, much, "evil/1 evil/2 evil/3 good/1 good/2", "")
	check(none, much, "evil/1 good/1", "evil/2 good/2", "evil/3", "")
	check(much, none, "evil/1", "good/1", "evil/2", "good/2", "evil/3", "")
}

// volumeDir makes the directory at which a volume of a pod is mounted.
func volumeDir(t *testing.T, dir, pod, kind, volume string) string {
	t.Helper()
	at := filepath.Join(dir, "kubelet", "pods", pod, "volumes", kind, volume)
	must(t, os.MkdirAll(at, 0o755))
	return at
}

// volumeSize is the size of the file systems that tests mount.
const volumeSize = 4 << 20

// mount mounts a file system until the test ends.
func mount(t *testing.T, source, at, kind string, flags uintptr) {
	t.Helper()
	options := ""
	if kind == "tmpfs" {
		options = fmt.Sprint("size=", volumeSize)
	}
	must(t, unix.Mount(source, at, kind, flags, options))
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// measured measures the volumes that are due, and returns the figures.
func (t *Table) measured() (map[usage.VolumeUse]bool, error) {
	err := t.volumes.look()
	got := map[usage.VolumeUse]bool{}
	for _, v := range t.Volumes() {
		if v.At == 0 {
			return nil, errors.New("a figure without a time")
		}
		v.At = 0
		got[v] = true
	}
	return got, err
}

// TestVolumes measures volumes that are mounted.
func TestVolumes(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), t.TempDir()
	tab := newTable(t, h, dir)
	one, csi := volumeDir(t, dir, "a", "kubernetes.io~nfs", "pv-1"), volumeDir(t, dir, "a", "kubernetes.io~csi", "pvc-2/mount")
	again, cache := volumeDir(t, dir, "b", "kubernetes.io~nfs", "pv-1"), volumeDir(t, dir, "a", "kubernetes.io~empty-dir", "cache")
	local := volumeDir(t, dir, "a", "kubernetes.io~local-volume", "pv-local")
	alias := volumeDir(t, dir, "b", "kubernetes.io~csi", "pv-1/mount") // of the pod's own, with the name of its volume
	for _, at := range []string{one, csi, cache, alias} {
		mount(t, "tmpfs", at, "tmpfs", 0)
	}
	mount(t, one, again, "", unix.MS_BIND)
	mount(t, t.TempDir(), local, "", unix.MS_BIND)
	write(t, filepath.Join(one, "a"), 300<<10)
	write(t, filepath.Join(cache, "a"), 1<<20)
	figure := func(pod, volume string, used int64) usage.VolumeUse {
		return usage.VolumeUse{Pod: pod, Volume: volume, Used: used, Size: volumeSize}
	}
	figures := func(list ...usage.VolumeUse) map[usage.VolumeUse]bool {
		m := map[usage.VolumeUse]bool{}
		for _, v := range list {
			m[v] = true
		}
		return m
	}
	check := func(when string, want map[usage.VolumeUse]bool) {
		t.Helper()
		got, err := tab.measured()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	check("at first", figures(figure("a", "pv-1", 300<<10), figure("b", "pv-1", 300<<10), figure("a", "pvc-2", 0)))
	check("not due", figures())
	// A file system over the volume is not the volume, but the volume of the pod anyway.
	mount(t, "tmpfs", csi, "tmpfs", 0)
	write(t, filepath.Join(csi, "a"), 8192)
	all, err := tab.volumes.mounts()
	must(t, err)
	for _, mounts := range all {
		for _, m := range mounts {
			m.id = 1 << 30 // it was unmounted since
			if used, _, err := tab.volumes.locator.usedOf(m); !errors.Is(err, errReplaced) {
				t.Errorf("%v unmounted: %d, %v", m, used, err)
			}
		}
	}
	must(t, os.Remove(filepath.Join(one, "a")))
	tab.volumes.due = nil
	check("due again", figures(figure("a", "pv-1", 0), figure("b", "pv-1", 0), figure("a", "pvc-2", 8192)))
}

// TestVolumeHangs checks that a volume that does not answer keeps neither the others nor the end waiting, and that few of a pod and
// of all wait at once.
func TestVolumeHangs(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), t.TempDir()
	tab := newTable(t, h, dir)
	good := volumeDir(t, dir, "a", "kubernetes.io~nfs", "pv-good")
	mount(t, "tmpfs", good, "tmpfs", 0)
	of := usage.VolumeUse{Pod: "a", Volume: "pv-good", Size: volumeSize}
	var answers []func()
	hang := func(pod string, n int) {
		for range n {
			answer := silence(t, volumeDir(t, dir, pod, "kubernetes.io~nfs", fmt.Sprint("pv-", len(answers))))
			t.Cleanup(answer)
			answers = append(answers, answer)
		}
	}
	looks := func(patience time.Duration) map[usage.VolumeUse]bool {
		t.Helper()
		tab.volumes.patience, tab.volumes.due = patience, nil
		got, err := tab.measured()
		must(t, err)
		return got
	}
	pods := func() []string { // for which a file system hangs
		tab.volumes.mu.Lock()
		defer tab.volumes.mu.Unlock()
		return slices.Collect(maps.Values(tab.volumes.hung))
	}
	hung := func(n int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(n, " volumes hang"), func() bool { return len(pods()) == n })
	}
	const noTime = 1 // all time out
	hang("evil", 2*maxHungOfPod)
	looks(noTime)
	hung(maxHungOfPod) // the good one answered late
	if got := looks(answerTime); !got[of] || len(got) != 1 {
		t.Errorf("while those of a pod hang: %v", got)
	}
	for i := range maxHungVolumes / maxHungOfPod {
		hang(fmt.Sprint("evil-", i), maxHungOfPod)
	}
	for range 100 { // the good one takes a place for a moment
		if len(pods()) == maxHungVolumes {
			break
		}
		looks(noTime)
		testkit.Eventually(t, "the good one", func() bool { return !slices.Contains(pods(), "a") })
	}
	hung(maxHungVolumes)
	if got := looks(answerTime); len(got) > 0 {
		t.Errorf("while the most hang: %v", got)
	}
	device := func(minor int, pod string) volumeMount {
		return volumeMount{dev: procfmt.Dev{Major: 8, Minor: uint32(minor)}, podVolume: podVolume{pod, "x"}}
	}
	hangs := func(m volumeMount, want bool) {
		t.Helper()
		if got := tab.volumes.hangs(m); got != want {
			t.Errorf("device %v of %s hangs: %v", m.dev, m.pod, got)
		}
	}
	hangs(device(0, "evil"), false)
	for i := range maxHungVolumes {
		tab.volumes.mu.Lock()
		tab.volumes.hung[device(i, "").dev] = fmt.Sprint("slow-", i/maxHungOfPod)
		tab.volumes.mu.Unlock()
		hangs(device(99, "slow-0"), i+1 >= maxHungOfPod)
		hangs(device(99, "good"), i+1 == maxHungVolumes)
	}
	tab.volumes.mu.Lock()
	maps.DeleteFunc(tab.volumes.hung, func(d procfmt.Dev, _ string) bool { return !d.IsAnonymous() })
	tab.volumes.mu.Unlock()
	for _, answer := range answers {
		answer()
	}
	hung(0)
	if got := looks(answerTime); !got[of] {
		t.Errorf("after they answered: %v", got)
	}
}

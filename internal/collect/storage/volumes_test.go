package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		// Two volumes in one file system.
		"50 20 0:70 / " + pods + "a/volumes/kubernetes.io~nfs/pv-shared-1 rw - nfs4 server:/y rw",
		"51 20 0:70 / " + pods + "a/volumes/kubernetes.io~nfs/pv-shared-2 rw - nfs4 server:/y rw",
	}
	for i := range 5 { // of many pods
		table = append(table, fmt.Sprintf("%d 20 0:80 / %sp%d/volumes/kubernetes.io~nfs/pv-many rw - nfs4 server:/z rw", 60+i, pods, i))
	}
	dev := func(major, minor uint32) procfmt.Dev { return procfmt.Dev{Major: major, Minor: minor} }
	var want []volumeMount
	for i := 4; i >= 2; i-- {
		want = append(want, volumeMount{60 + i, dev(0, 80), fmt.Sprintf("%sp%d/volumes/kubernetes.io~nfs/pv-many", pods, i), fmt.Sprint("p", i), "pv-many"})
	}
	want = append(want, volumeMount{46, dev(0, 63), pods + "a/volumes/kubernetes.io~csi/pv-bare", "a", "pv-bare"},
		volumeMount{35, dev(8, 17), pods + "a/volumes/vendor~driver/flex", "a", "flex"},
		volumeMount{33, dev(8, 16), pods + "b/volumes/kubernetes.io~csi/pvc-1/mount", "b", "pvc-1"},
		volumeMount{31, dev(8, 16), pods + "a/volumes/kubernetes.io~csi/pvc-1/mount", "a", "pvc-1"},
		volumeMount{30, dev(0, 50), pods + "a/volumes/kubernetes.io~nfs/pv-nfs", "a", "pv-nfs"})
	got, err := volumeMounts([]byte(strings.Join(table, "\n")+"\n"), "/var/lib/kubelet")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\ngot  %v\nwant %v", err, got, want)
	}
	table = nil
	for i := range 2 * maxVolumes {
		table = append(table, fmt.Sprintf("%d 20 0:%d / %sa/volumes/kubernetes.io~nfs/pv-%d rw - nfs4 server:/z rw", i, i, pods, i))
	}
	if got, err := volumeMounts([]byte(strings.Join(table, "\n")), "/var/lib/kubelet"); err != nil || len(got) != maxVolumes {
		t.Errorf("%d mounts, %v", len(got), err)
	}
}

// volumeDir makes the directory at which a volume of a pod is mounted.
func volumeDir(t *testing.T, dir, pod, kind, volume string) string {
	t.Helper()
	at := filepath.Join(dir, "kubelet", "pods", pod, "volumes", kind, volume)
	must(t, os.MkdirAll(at, 0o755))
	return at
}

// mount mounts a file system until the test ends.
func mount(t *testing.T, source, at, kind string, flags uintptr) {
	t.Helper()
	must(t, unix.Mount(source, at, kind, flags, ""))
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// measured measures the volumes that are due, and returns the figures.
func (t *Table) measured() (map[usage.VolumeUse]bool, error) {
	err := t.volumes.look()
	got := map[usage.VolumeUse]bool{}
	for _, v := range t.Volumes() {
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
	for _, at := range []string{one, csi, cache} {
		mount(t, "tmpfs", at, "tmpfs", 0)
	}
	mount(t, one, again, "", unix.MS_BIND)
	mount(t, t.TempDir(), local, "", unix.MS_BIND)
	write(t, filepath.Join(one, "a"), 300<<10)
	write(t, filepath.Join(cache, "a"), 1<<20)
	want := map[usage.VolumeUse]bool{{Pod: "a", Volume: "pv-1", Used: 300 << 10}: true, {Pod: "b", Volume: "pv-1", Used: 300 << 10}: true, {Pod: "a", Volume: "pvc-2", Used: 0}: true}
	check := func(when string, want map[usage.VolumeUse]bool) {
		t.Helper()
		got, err := tab.measured()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	check("at first", want)
	check("not due", map[usage.VolumeUse]bool{})
	// A file system over the volume is not the volume, but the volume of the pod anyway.
	mount(t, "tmpfs", csi, "tmpfs", 0)
	write(t, filepath.Join(csi, "a"), 8192)
	check("over the volume", map[usage.VolumeUse]bool{{Pod: "a", Volume: "pvc-2", Used: 8192}: true})
	mounts, err := tab.volumes.mounts()
	must(t, err)
	for _, m := range mounts {
		m.id = 1 << 30 // it was unmounted since
		if used, err := tab.volumes.locator.usedOf(m); !errors.Is(err, errReplaced) {
			t.Errorf("%v unmounted: %d, %v", m, used, err)
		}
	}
	must(t, os.Remove(filepath.Join(one, "a")))
	tab.volumes.due = nil
	check("due again", map[usage.VolumeUse]bool{{Pod: "a", Volume: "pv-1", Used: 0}: true, {Pod: "b", Volume: "pv-1", Used: 0}: true, {Pod: "a", Volume: "pvc-2", Used: 8192}: true})
}

// TestVolumeHangs checks that a volume that does not answer keeps neither the others nor the end waiting, and that few wait at once.
func TestVolumeHangs(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), t.TempDir()
	tab := newTable(t, h, dir)
	good := volumeDir(t, dir, "a", "kubernetes.io~nfs", "pv-good")
	mount(t, "tmpfs", good, "tmpfs", 0)
	of := usage.VolumeUse{Pod: "a", Volume: "pv-good"}
	var answers []func()
	hang := func(n int) {
		for range n {
			answer := silence(t, volumeDir(t, dir, "a", "kubernetes.io~nfs", fmt.Sprint("pv-", len(answers))))
			t.Cleanup(answer)
			answers = append(answers, answer)
		}
	}
	hang(maxHung - 1)
	tab.volumes.patience = 1 // all time out
	if got, err := tab.measured(); err != nil || len(tab.volumes.hung) < maxHung-1 {
		t.Fatalf("%v, %v; %d hang", got, err, len(tab.volumes.hung))
	}
	tab.volumes.patience = hangTime
	hung := func(n int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(n, " volumes hang"), func() bool {
			tab.volumes.mu.Lock()
			defer tab.volumes.mu.Unlock()
			return len(tab.volumes.hung) == n
		})
		tab.volumes.due = nil
	}
	hung(maxHung - 1) // the good one answered late
	if got, err := tab.measured(); err != nil || !got[of] || len(got) != 1 {
		t.Errorf("while some hang: %v, %v", got, err)
	}
	hang(1)
	tab.volumes.patience, tab.volumes.due = 1, nil
	_, err := tab.measured()
	must(t, err)
	hung(maxHung)
	tab.volumes.patience = hangTime
	if got, err := tab.measured(); err != nil || len(got) > 0 {
		t.Errorf("while the most hang: %v, %v", got, err)
	}
	answers[0]()
	hung(maxHung - 1)
	if got, err := tab.measured(); err != nil || !got[of] {
		t.Errorf("after one answered: %v, %v", got, err)
	}
}

package storage

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

const (
	lookPause   = time.Minute     // between looks at the mount table
	volumePause = 5 * time.Minute // between measurements of a volume
	maxVolumes  = 256             // mounts that are measured
	// podsPerVolume limits the pods for which a volume is measured: those that mounted it last. One would do, but the server may
	// know that it is gone.
	podsPerVolume = 3
)

// volumes measures how much of the persistent volumes that pods mount is used, in a goroutine of its own: a file system that
// does not answer holds one more.
type volumes struct {
	locator  locator
	log      *slog.Logger
	patience time.Duration
	stop     <-chan struct{}
	ended    chan struct{} // nil without the goroutine

	mu    sync.Mutex
	fresh []usage.VolumeUse // measured since the latest call of Table.Volumes
	hung  map[string]bool   // mount points that do not answer

	due map[volumeMount]int64 // of the goroutine: when a mount is measured again, ns of CLOCK_BOOTTIME
}

// A volumeMount is where a persistent volume is mounted for a pod.
type volumeMount struct {
	id          int
	dev         procfmt.Dev
	point       string
	pod, volume string
}

// Volumes returns the figures of persistent volumes that were measured since the latest call.
func (t *Table) Volumes() []usage.VolumeUse {
	v := &t.volumes
	v.mu.Lock()
	defer v.mu.Unlock()
	fresh := v.fresh
	v.fresh = nil
	return fresh
}

// run measures until stop is closed.
func (v *volumes) run() {
	defer close(v.ended)
	for wait := firstPause; ; wait = lookPause {
		timer := time.NewTimer(wait)
		select {
		case <-v.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		if err := v.look(); err != nil {
			v.log.Debug("volumes", "err", err)
		}
	}
}

// look measures the volumes that are due.
func (v *volumes) look() error {
	now, err := v.locator.host.Boottime()
	if err != nil {
		return err
	}
	mounts, err := v.mounts()
	if err != nil {
		return err
	}
	due := map[volumeMount]int64{}
	for _, m := range mounts {
		if due[m] = v.due[m]; due[m] > now {
			continue
		}
		due[m] = now + int64(volumePause)
		used, err := v.measure(m)
		switch {
		case errors.Is(err, errClosed):
			return nil
		case err != nil:
			v.log.Debug("volume", "volume", m.volume, "err", err)
			continue
		}
		v.mu.Lock()
		v.fresh = usage.MergeVolumes(v.fresh, []usage.VolumeUse{{Pod: m.pod, Volume: m.volume, Used: used}})
		v.mu.Unlock()
	}
	v.due = due
	return nil
}

var errClosed = fmt.Errorf("the measurement ends: %w", fault.ErrUnavailable)

// measure returns how many bytes of a volume are used. It waits for a file system that does not answer as long as for a turn.
func (v *volumes) measure(m volumeMount) (int64, error) {
	v.mu.Lock()
	hangs := v.hung[m.point] || len(v.hung) >= maxHung
	v.mu.Unlock()
	if hangs {
		return 0, errHung
	}
	type result struct {
		used int64
		err  error
	}
	done := make(chan result, 1)
	go func() {
		used, err := v.locator.usedOf(m)
		done <- result{used, err}
	}()
	timer := time.NewTimer(v.patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.used, r.err
	case <-v.stop:
		return 0, errClosed
	case <-timer.C:
	}
	v.mu.Lock()
	v.hung[m.point] = true
	v.mu.Unlock()
	v.log.Warn("how much of a volume is used is not measured, as its file system does not answer", "volume", m.volume, "directory", m.point)
	go func() {
		<-done
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.hung, m.point)
	}()
	return 0, errHung
}

// mounts lists the mounts of persistent volumes, of the mount table of process 1 where its root directory can be opened.
func (v *volumes) mounts() ([]volumeMount, error) {
	table := "/proc/self/mountinfo"
	roots := v.locator.roots()
	if len(roots) > 1 {
		table = "/proc/1/mountinfo"
	}
	closeAll(roots)
	b, err := v.locator.host.ReadFile(table)
	if err != nil {
		return nil, err
	}
	return volumeMounts(b, v.locator.cfg.Kubelet)
}

// notPersistent are the volumes of the kubelet's directory that are not persistent, as it writes their kinds. Their names are those
// that the pod gives them. Other kinds may have such too: the server knows which volumes a pod has.
var notPersistent = []string{"empty-dir", "secret", "configmap", "projected", "downward-api", "git-repo", "image", "host-path"}

// volumeMounts returns the mounts of persistent volumes below the kubelet's directory that are file systems of their own: the whole
// of one, which is not the kubelet's own or the machine's root, and not that of another volume. The latest ones come first.
func volumeMounts(mountinfo []byte, kubelet string) (list []volumeMount, err error) {
	prefix := strings.TrimSuffix(kubelet, "/") + "/pods/"
	own, volumes := map[procfmt.Dev]bool{}, map[procfmt.Dev]string{}
	for line := range bytes.Lines(mountinfo) {
		of, err := procfmt.Mountinfo(line)
		if err != nil {
			return nil, err
		}
		for _, m := range of {
			if m.Point == "/" || m.Point == kubelet || strings.HasPrefix(kubelet, m.Point+"/") {
				own[m.Dev] = true
			}
			rest, ok := strings.CutPrefix(m.Point, prefix)
			if !ok || m.Root != "/" {
				continue
			}
			if f := strings.Split(rest, "/"); len(f) >= 4 && f[1] == "volumes" && isPersistent(f[2]) && (len(f) == 4 || len(f) == 5 && f[4] == "mount" && f[2] == "kubernetes.io~csi") {
				list = append(list, volumeMount{m.ID, m.Dev, m.Point, f[0], f[3]})
			}
		}
	}
	for _, m := range list {
		if of, ok := volumes[m.dev]; ok && of != m.volume {
			own[m.dev] = true // they share it
		}
		volumes[m.dev] = m.volume
	}
	slices.Reverse(list)
	pods := map[string]int{}
	list = slices.DeleteFunc(list, func(m volumeMount) bool {
		if own[m.dev] {
			return true
		}
		pods[m.volume]++
		return pods[m.volume] > podsPerVolume
	})
	return list[:min(len(list), maxVolumes)], nil
}

func isPersistent(kind string) bool {
	name, ok := strings.CutPrefix(kind, "kubernetes.io~")
	return !ok || !slices.Contains(notPersistent, name)
}

// usedOf returns how many bytes of the file system of a mount are used: those that it has less those that are free.
func (l *locator) usedOf(m volumeMount) (int64, error) {
	roots := l.roots()
	defer closeAll(roots)
	if len(roots) == 0 {
		return 0, fmt.Errorf("the root directory: %w", fault.ErrUnavailable)
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS}
	fd, err := openat2(roots[len(roots)-1], m.point, &how)
	if err != nil {
		return 0, hostfs.Kind(m.point, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return 0, hostfs.Kind(m.point, err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 || st.Mnt_id != uint64(m.id) {
		return 0, fmt.Errorf("%s: %w", m.point, errReplaced)
	}
	var fs unix.Statfs_t
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Fstatfs(fd, &fs)
	}
	if err != nil {
		return 0, hostfs.Kind(m.point, err)
	}
	size := uint64(fs.Frsize)
	if size == 0 {
		size = uint64(fs.Bsize)
	}
	over, used := bits.Mul64(fs.Blocks-min(fs.Bfree, fs.Blocks), size)
	if fs.Blocks == 0 || over > 0 || used > math.MaxInt64 {
		return 0, fmt.Errorf("%s: %d blocks of %d bytes: %w", m.point, fs.Blocks, size, fault.ErrUnsupported)
	}
	return int64(used), nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // it was only read
	}
}

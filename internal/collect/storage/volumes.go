package storage

import (
	"bytes"
	"cmp"
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
	answerTime  = 5 * time.Second // after which a file system counts as hung
	// maxLook limits the volumes that are measured in a look: others wait for the next one, as do all once a look took lookTime, and
	// those of a pod once podTime was spent on it. A user who creates pods can mount file systems that answer slowly.
	maxLook  = 256
	lookTime = time.Minute
	podTime  = 2 * time.Second
	// maxHungVolumes and maxHungOfPod limit file systems that do not answer: those on block devices, and the others, each.
	maxHungVolumes, maxHungOfPod = 32, 2
)

// volumes measures how much of the persistent volumes that pods mount is used, in a goroutine of its own: a file system that
// does not answer keeps one more waiting.
type volumes struct {
	locator locator
	log     *slog.Logger
	stop    <-chan struct{}
	ended   chan struct{} // nil without the goroutine

	// answerTime, lookTime and podTime, or less in tests.
	patience, lookTime, podTime time.Duration

	mu    sync.Mutex
	fresh []usage.VolumeUse      // measured since the latest call of Table.Volumes
	hung  map[procfmt.Dev]string // file systems that do not answer, with the pod for which they were measured

	due map[podVolume]int64 // of the goroutine: when a volume is measured again, ns of CLOCK_BOOTTIME
}

// A podVolume is a volume of a pod, with the name of its directory. That of a persistent volume is the volume's name; a user
// who creates pods chooses others.
type podVolume struct{ pod, volume string }

// A volumeMount is where a volume is mounted for a pod.
type volumeMount struct {
	id    int
	dev   procfmt.Dev
	point string
	podVolume
}

// Volumes returns the figures of persistent volumes that were measured since the latest call.
func (t *Table) Volumes() []usage.VolumeUse {
	v := &t.volumes
	v.mu.Lock()
	defer v.mu.Unlock()
	fresh := v.fresh
	v.fresh = nil
	if len(fresh) == 0 { // as at most ticks
		return nil
	}
	return usage.MergeVolumes(nil, fresh)
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
	begin, err := v.locator.host.Boottime()
	if err != nil {
		return err
	}
	mounts, err := v.mounts()
	if err != nil {
		return err
	}
	due := map[podVolume]int64{}
	for volume := range mounts {
		due[volume] = v.due[volume]
	}
	v.due = due
	at, left, spent := begin, maxLook, map[string]int64{} // on a pod, ns
	for _, volume := range inTurn(due, begin) {
		if left == 0 || left < maxLook && at-begin >= int64(v.lookTime) {
			break
		}
		if spent[volume.pod] > int64(v.podTime) {
			continue
		}
		left--
		due[volume] = begin + int64(volumePause)
		for _, m := range mounts[volume] {
			used, size, err := v.measure(m)
			switch {
			case errors.Is(err, errClosed):
				return nil
			case err != nil:
				v.log.Debug("volume", "volume", m.volume, "err", err)
				continue
			}
			v.mu.Lock()
			v.fresh = append(v.fresh, usage.VolumeUse{Pod: m.pod, Volume: m.volume, At: at, Used: used, Size: size})
			v.mu.Unlock()
		}
		end, err := v.locator.host.Boottime()
		if err != nil {
			return err
		}
		spent[volume.pod] += end - at
		at = end
	}
	return nil
}

// inTurn orders the volumes that are due at a time: one of each pod after another, those first that have waited longest, and of pods
// that for which one was measured longest ago. So a pod with very many volumes, or slow ones, delays its own.
func inTurn(due map[podVolume]int64, at int64) (list []podVolume) {
	latest := map[string]int64{} // of a pod: when the volume that was measured last is due again
	for v, d := range due {
		latest[v.pod] = max(latest[v.pod], d)
		if d <= at {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b podVolume) int {
		return cmp.Or(cmp.Compare(due[a], due[b]), cmp.Compare(a.volume, b.volume))
	})
	turn, count := map[podVolume]int{}, map[string]int{}
	for _, v := range list {
		turn[v] = count[v.pod]
		count[v.pod]++
	}
	slices.SortFunc(list, func(a, b podVolume) int {
		return cmp.Or(cmp.Compare(turn[a], turn[b]), cmp.Compare(latest[a.pod], latest[b.pod]), cmp.Compare(a.pod, b.pod))
	})
	return list
}

var errClosed = fmt.Errorf("the measurement ends: %w", fault.ErrUnavailable)

// hangs reports whether a file system does not answer, or may not and too many of the pod or of all do not.
func (v *volumes) hangs(m volumeMount) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, hangs := v.hung[m.dev]; hangs {
		return true
	}
	all, own := 0, 0
	for dev, pod := range v.hung {
		if dev.IsAnonymous() == m.dev.IsAnonymous() {
			all++
			if pod == m.pod {
				own++
			}
		}
	}
	return all >= maxHungVolumes || own >= maxHungOfPod
}

// measure returns how many bytes of a volume are used, and the size of a file system that is not on a block device. It waits
// for an answer as long as v.patience.
func (v *volumes) measure(m volumeMount) (used, size int64, err error) {
	if v.hangs(m) {
		return 0, 0, errHung
	}
	type result struct {
		used, size int64
		err        error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.used, r.size, r.err = v.locator.usedOf(m)
		done <- r
	}()
	timer := time.NewTimer(v.patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.used, r.size, r.err
	case <-v.stop:
		return 0, 0, errClosed
	case <-timer.C:
	}
	v.mu.Lock()
	v.hung[m.dev] = m.pod
	v.mu.Unlock()
	v.log.Warn("how much of a volume is used is not measured, as its file system does not answer", "volume", m.volume, "directory", m.point)
	go func() {
		<-done
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.hung, m.dev)
	}()
	return 0, 0, errHung
}

// mounts returns the mounts of volumes, of the mount table of process 1 where its root directory can be opened.
func (v *volumes) mounts() (map[podVolume][]volumeMount, error) {
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

// notPersistent are the volumes of the kubelet's directory that are not persistent, as it writes their kinds. Other kinds may have
// such too, as CSI has: the server knows which volumes are persistent.
var notPersistent = []string{"empty-dir", "secret", "configmap", "projected", "downward-api", "git-repo", "image", "host-path"}

// volumeMounts returns the mounts of volumes below the kubelet's directory that are the whole of a file system, which is not the
// kubelet's own or the machine's root. A pod may have several with one name, of different kinds: the server knows which is right.
func volumeMounts(mountinfo []byte, kubelet string) (map[podVolume][]volumeMount, error) {
	prefix := strings.TrimSuffix(kubelet, "/") + "/pods/"
	own := map[procfmt.Dev]bool{}
	var list []volumeMount
	for line := range bytes.Lines(mountinfo) {
		parsed, err := procfmt.Mountinfo(line)
		if err != nil {
			return nil, err
		}
		for _, m := range parsed {
			if m.Point == "/" || m.Point == kubelet || strings.HasPrefix(kubelet, m.Point+"/") {
				own[m.Dev] = true
			}
			rest, ok := strings.CutPrefix(m.Point, prefix)
			if !ok || m.Root != "/" {
				continue
			}
			if f := strings.Split(rest, "/"); len(f) >= 4 && f[1] == "volumes" && isPersistent(f[2]) && (len(f) == 4 || len(f) == 5 && f[4] == "mount" && f[2] == "kubernetes.io~csi") {
				list = append(list, volumeMount{m.ID, m.Dev, m.Point, podVolume{f[0], f[3]}})
			}
		}
	}
	mounts := map[podVolume][]volumeMount{}
	for _, m := range list {
		if !own[m.dev] {
			mounts[m.podVolume] = append(mounts[m.podVolume], m)
		}
	}
	return mounts, nil
}

func isPersistent(kind string) bool {
	name, ok := strings.CutPrefix(kind, "kubernetes.io~")
	return !ok || !slices.Contains(notPersistent, name)
}

// usedOf returns how many bytes of the file system of a mount are used: those that it has less those that are free. size is what it
// has, 0 if it is on a block device.
func (l *locator) usedOf(m volumeMount) (used, size int64, err error) {
	roots := l.roots()
	defer closeAll(roots)
	if len(roots) == 0 {
		return 0, 0, fmt.Errorf("the root directory: %w", fault.ErrUnavailable)
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS}
	fd, err := openat2(roots[len(roots)-1], m.point, &how)
	if err != nil {
		return 0, 0, hostfs.Kind(m.point, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return 0, 0, hostfs.Kind(m.point, err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 || st.Mnt_id != uint64(m.id) {
		return 0, 0, fmt.Errorf("%s: %w", m.point, errReplaced)
	}
	var fs unix.Statfs_t
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Fstatfs(fd, &fs)
	}
	if err != nil {
		return 0, 0, hostfs.Kind(m.point, err)
	}
	block := uint64(cmp.Or(fs.Frsize, fs.Bsize))
	over, all := bits.Mul64(fs.Blocks, block)
	if fs.Blocks == 0 || over > 0 || all > math.MaxInt64 {
		return 0, 0, fmt.Errorf("%s: %d blocks of %d bytes: %w", m.point, fs.Blocks, block, fault.ErrUnsupported)
	}
	if m.dev.IsAnonymous() {
		size = int64(all)
	}
	return int64(all - min(fs.Bfree, fs.Blocks)*block), size, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // it was only read
	}
}

package storage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// A locator finds the directories of workloads.
type locator struct {
	cfg  Config
	host *hostfs.FS
	// enter is called before anything is opened below a directory, which may be on a file system that does not answer.
	enter func(base string) error
}

// A part is a directory that counts for a workload.
type part struct {
	fd   int    // -1 if another one closes it
	base string // for locator.enter
	logs bool
}

// found is a workload's directories, with what it takes to see that they are still its own.
type found struct {
	parts   []part
	process *process // of a container; nil for a pod
	layer   layer
	id      fileID // of the writable layer, or of the directory with a pod's volumes; zero without
}

func (f *found) close() error {
	var err error
	for _, p := range f.parts {
		if p.fd >= 0 {
			err = errors.Join(err, unix.Close(p.fd))
		}
	}
	f.parts = nil
	if f.process != nil {
		err = errors.Join(err, f.process.close())
		f.process = nil
	}
	return err
}

// locate returns the directories that count for a workload. The caller closes the result. logs is the directory below /var/log/pods that
// has the logs of a container in a pod, "" if there is none.
func (l *locator) locate(x *Target, logs string) (*found, error) {
	f := &found{}
	err := l.fill(f, x, logs)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (l *locator) fill(f *found, x *Target, logs string) (err error) {
	if x.Kind == workload.Pod {
		return l.emptyDirs(f, x.Key)
	}
	if err := l.enter(processesOf(x)); err != nil {
		return err
	}
	if f.process, err = l.firstProcess(x); err != nil {
		return err
	}
	if f.layer, err = f.process.layer(l.host); err != nil {
		return err
	}
	// The snapshots of a runtime are in one directory.
	base := path.Dir(path.Dir(f.layer.upper))
	if err := l.enter(base); err != nil {
		return err
	}
	fd, err := l.openLayer(x, f.process, f.layer)
	if err != nil {
		return err
	}
	f.parts = append(f.parts, part{fd: fd, base: base})
	if f.id, err = onDisk(fd); err != nil {
		return err
	}
	if logs != "" {
		if err := l.logs(f, l.cfg.Logs, "pods/"+logs); err != nil {
			return err
		}
	}
	if !workload.IsContainerID(x.Key) {
		return nil
	}
	docker := l.cfg.Docker
	if path.Base(base) == "overlay2" { // its layers are beside its containers
		docker = path.Dir(base)
	}
	return l.logs(f, docker, "containers/"+x.Key)
}

// processesOf is where a walk is, for locator.enter, while it reads of the processes of a workload.
func processesOf(x *Target) string { return "processes of " + x.Path }

// check returns an error unless the files that were found are still those of the workload.
func (l *locator) check(f *found, x *Target) error {
	if x.Kind == workload.Pod {
		return l.checkVolumes(f, x)
	}
	if err := l.enter(processesOf(x)); err != nil {
		return err
	}
	top, ok := x.Hierarchy.Dir(x.Path)
	if !ok {
		return errReplaced
	}
	id, err := l.host.ID(top)
	if err != nil || id != x.ID {
		return errReplaced
	}
	if in, err := f.process.isIn(x); err != nil || !in {
		return errReplaced
	}
	now, err := f.process.layer(l.host)
	if err != nil {
		return err
	}
	if now != f.layer {
		return errReplaced
	}
	return nil
}

// checkVolumes returns an error unless the directory with a pod's volumes is the one that was found: the kubelet removes it before
// the pod's group.
func (l *locator) checkVolumes(f *found, x *Target) error {
	now := &found{}
	err := errors.Join(l.emptyDirs(now, x.Key), now.close())
	if err == nil && now.id != f.id {
		err = errReplaced
	}
	return err
}

// logs adds the directory of logs below one of the machine's, if it is there and not in memory.
func (l *locator) logs(f *found, base, name string) error {
	if err := l.enter(base); err != nil {
		return err
	}
	fd, err := l.open(base, name)
	if errors.Is(err, fault.ErrNotFound) {
		return nil // nothing was logged
	}
	if err != nil {
		return err
	}
	_, err = onDisk(fd)
	if errors.Is(err, errOtherDisk) {
		return unix.Close(fd)
	}
	f.parts = append(f.parts, part{fd: fd, base: base, logs: true})
	return err
}

// emptyDirs adds the directory with a pod's emptyDir volumes. Those in memory are mounts of their own, and are left out.
func (l *locator) emptyDirs(f *found, uid string) error {
	if err := l.enter(l.cfg.Kubelet); err != nil {
		return err
	}
	var fd int
	var err error
	for _, name := range []string{uid, strings.ReplaceAll(uid, "-", "")} { // the kubelet writes UIDs of static pods without dashes
		if fd, err = l.open(l.cfg.Kubelet, "pods/"+name); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: stayBelow}
	volumes, err := openat2(fd, "volumes/kubernetes.io~empty-dir", &how)
	_ = unix.Close(fd)
	if errors.Is(err, unix.ENOENT) {
		return nil // it has none
	}
	if err != nil {
		return hostfs.Kind(l.cfg.Kubelet, err)
	}
	f.parts = append(f.parts, part{fd: volumes, base: l.cfg.Kubelet})
	f.id, err = onDisk(volumes)
	return err
}

// open opens a directory below one of the machine's. Links lead to the latter, but not on from there.
func (l *locator) open(base, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	roots := l.roots()
	defer closeAll(roots)
	// The machine's root is the last one.
	dir, err := openat2(roots[len(roots)-1], base, &how)
	if err != nil {
		return -1, hostfs.Kind(base, err)
	}
	below := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: stayBelow &^ unix.RESOLVE_NO_XDEV}
	fd, err := openat2(dir, name, &below)
	_ = unix.Close(dir)
	return fd, hostfs.Kind(base+"/"+name, err)
}

// roots opens the root directories of this process and of process 1, which no workload can change. Without the right to the latter the former
// is all there is.
func (l *locator) roots() (fds []int) {
	for _, p := range []string{l.host.Path("/"), l.host.Path("/proc/1/root")} {
		if fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// diskTypes are the file systems of local disks, by the numbers of statfs(2).
var diskTypes = map[int64]bool{unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true,
	0x2fc12fc1: true /* ZFS */, 0xca451a4e: true /* bcachefs */}

// onDisk returns the identity of a directory on a local disk.
func onDisk(fd int) (fileID, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fileID{}, err
	}
	if !diskTypes[int64(fs.Type)] {
		return fileID{}, fmt.Errorf("type %#x: %w", fs.Type, errOtherDisk)
	}
	st, err := status(fd, "", unix.AT_EMPTY_PATH)
	return idOf(&st), err
}

// findLogs returns the directories below /var/log/pods of the logs of containers, by their ids: the kubelet makes a link for each in
// /var/log/containers, whose name ends with the id and whose target is NAMESPACE_POD_UID/CONTAINER/N.log. pods are the UIDs of their pods.
func (l *locator) findLogs(pods map[string]string) (map[string]string, error) {
	if err := l.enter(l.cfg.Logs); err != nil {
		return nil, err
	}
	fd, err := l.open(l.cfg.Logs, "containers")
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "containers")
	defer func() { _ = dir.Close() }() // it was only read
	all, buf := map[string]string{}, make([]byte, unix.PathMax)
	for range maxLogs / logsAtOnce {
		names, err := dir.Readdirnames(logsAtOnce)
		for _, name := range names {
			id := strings.TrimSuffix(name, ".log")
			id = id[max(0, len(id)-64):]
			uid, ok := pods[id]
			if !ok {
				continue
			}
			n, err := unix.Readlinkat(fd, name, buf)
			if err != nil {
				continue
			}
			if at := logDir(string(buf[:n]), uid); at != "" {
				all[id] = at
			}
		}
		if err != nil || len(names) == 0 {
			break // the end, or what there is
		}
	}
	return all, nil
}

// Limits of the links that are read.
const (
	maxLogs    = 64 << 10
	logsAtOnce = 256
)

// logDir returns the last two directories of the path of a log, "" unless they are of the pod with this UID.
func logDir(log, uid string) string {
	of := path.Dir(path.Clean(log))
	pod, name := path.Base(path.Dir(of)), path.Base(of)
	_, id, _ := strings.Cut(pod, "_")
	_, id, _ = strings.Cut(id, "_")
	if id == "" || id != uid && id != strings.ReplaceAll(uid, "-", "") {
		return ""
	}
	return pod + "/" + name
}

package proc

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// EachPID calls f for each PID in /proc. Unlike a directory listing it makes and sorts no names.
func EachPID(h *hostfs.FS, f func(pid int32)) error {
	dir, err := h.Open("/proc")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return list(dir, make([]byte, 16<<10), f)
}

// list calls f for each PID in /proc, which is open.
func list(dir *hostfs.File, buf []byte, f func(pid int32)) error {
	if _, err := unix.Seek(dir.Fd(), 0, unix.SEEK_SET); err != nil {
		return hostfs.Kind("/proc", err)
	}
	for {
		n, err := unix.Getdents(dir.Fd(), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return hostfs.Kind("/proc", err)
		}
		// struct linux_dirent64 of getdents(2): inode, offset, length, type,
		// name.
		const at = 19
		for b := buf[:n]; len(b) > at; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < at || size > len(b) {
				break
			}
			name, _, _ := bytes.Cut(b[at:size], []byte{0})
			if pid, ok := parsePID(name); ok {
				f(pid)
			}
			b = b[size:]
		}
	}
}

// parsePID reads a PID.
func parsePID(b []byte) (int32, bool) {
	v := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' || v > 1<<30 {
			return 0, false
		}
		v = v*10 + int64(c-'0')
	}
	// PIDs end below PID_MAX_LIMIT, 2^22 (linux/threads.h).
	return int32(v), v > 0 && v <= 1<<22
}

// parseGroup finds the path of a process's group in a hierarchy, in /proc/PID/cgroup.
func parseGroup(b []byte, hierarchy uint32) ([]byte, bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		id, rest, _ := bytes.Cut(line, []byte{':'})
		_, path, ok := bytes.Cut(rest, []byte{':'})
		if n, isNumber := parseUint32(id); !ok || !isNumber || n != hierarchy || len(path) == 0 || path[0] != '/' {
			continue
		}
		if hierarchy == 0 {
			path = bytes.TrimSuffix(path, []byte(" (deleted)"))
		}
		return path, true
	}
	return nil, false
}

func parseUint32(b []byte) (uint32, bool) {
	v := uint64(0)
	for _, c := range b {
		if c < '0' || c > '9' || v > 1<<32 {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	return uint32(v), len(b) > 0 && v < 1<<32
}

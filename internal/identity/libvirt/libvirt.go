// Package libvirt names the virtual machines of libvirt: it reads the files that the daemon keeps of running domains.
package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// Directory is where libvirt's daemon, as root, keeps a file of each running domain of QEMU: NAME.xml.
const Directory = "/run/libvirt/qemu"

// None is the directory that stands for no daemon.
const None = "none"

// CheckDirectory returns an error wrapping fault.ErrInvalid if path is neither [None] nor an absolute path.
func CheckDirectory(path string) error {
	if path != None && !filepath.IsAbs(path) {
		return fault.WithHint(fmt.Errorf("%q is not the path of a directory: %w", path, fault.ErrInvalid), "as "+Directory+"; or none")
	}
	return nil
}

const (
	// scanInterval is the time between two looks at the files while a virtual machine lives.
	scanInterval = 5 * time.Second
	// maxFiles limits the files that are read, and maxBytes the size of each: one of a large domain has some 100 KiB.
	maxFiles, maxBytes = 10_000, 1 << 20
)

// A Reader knows the running domains of a machine. Its methods are safe for concurrent use; nil is a reader of nothing.
type Reader struct {
	dir  string
	h    *hostfs.FS
	keep time.Duration
	log  *slog.Logger

	mu      sync.Mutex
	scanned time.Time
	files   map[string]file    // by name
	groups  map[string]grouped // by path of the virtual machine's control group
	failure string             // error of the latest scan that was logged
}

// A file is what was read of a file.
type file struct {
	at     changed
	parsed *Domain
	err    error   // why it cannot be parsed
	domain *Domain // the same; nil if its process is in no group of a virtual machine, or is another one's by now
	group  string  // of its process
}

// A changed tells states of a file apart: libvirt replaces the file with each change.
type changed struct {
	inode uint64
	size  int64
	mtime unix.Timespec
}

// A grouped is the domain in a group.
type grouped struct {
	*Domain
	seen time.Time
}

// New returns a reader of a directory of running domains, whose processes are those of h; of nothing for [None]. It keeps
// the name of a domain that ended for keep.
func New(h *hostfs.FS, dir string, keep time.Duration, log *slog.Logger) *Reader {
	if dir == None || dir == "" {
		return nil
	}
	return &Reader{h: h, dir: dir, keep: keep, log: log, files: map[string]file{}, groups: map[string]grouped{}}
}

// Find returns the domain of a workload of this kind and path: nil if it is not a virtual machine, or libvirt does not say
// that its process is in that group. The result never changes: after a change Find returns another one. A virtual machine
// that lives makes the reader look at the files again, at most every few seconds.
func (r *Reader) Find(kind workload.Kind, path string, lives bool) *Domain {
	if r == nil || kind != workload.VM {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); lives && now.Sub(r.scanned) >= scanInterval {
		r.scanned = now
		r.note(r.scan(now))
	}
	return r.groups[path].Domain
}

// DisplayName returns the name of a workload: that of its domain, if it has one.
func (r *Reader) DisplayName(of *workload.Workload) (name string, ok bool) {
	if d := r.Find(of.Kind, of.Path, false); d != nil {
		return d.Name, true
	}
	return "", false
}

// Name puts the names and owners of domains into rows.
func (r *Reader) Name(rows []live.Row) {
	for i := range rows {
		if d := r.Find(rows[i].Kind, rows[i].Path, !rows[i].Ended); d != nil {
			rows[i].Name, rows[i].User, rows[i].Project = d.Name, d.User, d.Project
		}
	}
}

// Count returns how many running domains a directory has. The error is that of the first file that cannot be opened.
func Count(dir string) (n int, err error) {
	names, err := list(dir)
	for _, name := range names {
		f, ferr := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		switch {
		case errors.Is(ferr, fs.ErrNotExist): // it ended
		case ferr != nil && err == nil:
			err = ferr
		case ferr != nil:
		default:
			n++
			_ = f.Close() // it was not written
		}
	}
	return n, err
}

// list returns the names of the files of a directory.
func list(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(maxFiles)
	_ = dir.Close() // it was only read
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".xml") }), err
}

// note logs why files cannot be read, once for each reason.
func (r *Reader) note(err error) {
	text := ""
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no libvirt runs
		text = err.Error()
	}
	if text != "" && text != r.failure {
		r.log.Warn("virtual machines are named by their domains", append([]any{"directory", r.dir}, fault.Attrs(err)...)...)
	}
	r.failure = text
}

// scan reads the files that changed. The error is that of the directory, or of the first file that cannot be read.
func (r *Reader) scan(now time.Time) error {
	names, err := list(r.dir)
	files := make(map[string]file, len(r.files))
	for _, name := range names {
		f, ferr := r.read(name)
		if errors.Is(ferr, fs.ErrNotExist) {
			continue // it ended
		}
		if ferr != nil && err == nil {
			err = ferr
		}
		files[name] = f
		if f.domain == nil {
			continue
		}
		if old := r.groups[f.group].Domain; old != nil && old.equal(f.domain) {
			f.domain = old
		}
		r.groups[f.group] = grouped{f.domain, now}
	}
	r.files = files
	for path, g := range r.groups {
		if now.Sub(g.seen) > r.keep {
			delete(r.groups, path)
		}
	}
	return err
}

// read reads a file, or returns what was read of it if it is the same. Only a file that root or the user of this process
// alone can write counts: otherwise others could name virtual machines.
func (r *Reader) read(name string) (file, error) {
	path := filepath.Join(r.dir, name)
	opened, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return file{}, err
	}
	defer func() { _ = opened.Close() }() // it was only read
	var st unix.Stat_t
	if err := unix.Fstat(int(opened.Fd()), &st); err != nil {
		return file{}, fmt.Errorf("%s: %w", path, err)
	}
	out := file{at: changed{st.Ino, st.Size, st.Mtim}}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return out, fmt.Errorf("%s: not a file that only root can write: %w", path, fault.ErrDenied)
	case st.Size > maxBytes:
		return out, fmt.Errorf("%s: %d bytes, more than %d: %w", path, st.Size, maxBytes, fault.ErrInvalid)
	}
	if old := r.files[name]; old.at == out.at && (old.parsed != nil || old.err != nil) {
		out.parsed, out.err = old.parsed, old.err
	} else {
		b, err := io.ReadAll(io.LimitReader(opened, maxBytes))
		if err != nil {
			return out, err
		}
		if out.parsed, err = parse(b); err != nil {
			out.err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if out.err != nil {
		return out, out.err
	}
	if group, ok := r.groupOf(out.parsed); ok {
		out.domain, out.group = out.parsed, group
	}
	return out, nil
}

// groupOf returns the path of the group of a virtual machine in which the process of a domain is. libvirt keeps the process
// in a group below it. The process must be one of the domain: after a crash of the daemon its number may be another one's.
func (r *Reader) groupOf(d *Domain) (path string, ok bool) {
	dir := "/proc/" + strconv.Itoa(d.pid)
	text, err := r.h.ReadFile(dir + "/cgroup")
	if err != nil {
		return "", false
	}
	groups, err := procfmt.Cgroups(text)
	if err != nil {
		return "", false
	}
	for _, g := range groups {
		for at := g.Path; len(at) > 1; at = filepath.Dir(at) {
			if n, ok := workload.Recognize(at); ok && n.Kind == workload.VM {
				// Not before: the kernel reads it from the memory of the process, which may be any user's.
				cmdline, err := r.h.ReadFile(dir + "/cmdline")
				return at, err == nil && bytes.Contains(cmdline, []byte(d.uuid))
			}
		}
	}
	return "", false
}

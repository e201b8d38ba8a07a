package qemu

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// An archive writes an initramfs in cpio's "newc" format, see
// Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
type archive struct {
	w    io.Writer
	n    int64 // bytes written
	ino  int
	dirs []string // directories written
	err  error
}

const (
	typeDir  = 0o040000
	typeFile = 0o100000
)

// file adds a file and its parent directories.
func (a *archive) file(name string, mode os.FileMode, content []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	a.dir(path.Dir(name))
	a.entry(name, typeFile|uint32(mode.Perm()), content)
}

// dir adds a directory and its parents, unless they were added already.
func (a *archive) dir(name string) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if name == "." || slices.Contains(a.dirs, name) {
		return
	}
	a.dir(path.Dir(name))
	a.dirs = append(a.dirs, name)
	a.entry(name, typeDir|0o755, nil)
}

// entry writes a header, a name and a content, each aligned to four bytes.
func (a *archive) entry(name string, mode uint32, content []byte) {
	a.ino++
	links := 1
	fields := []int{a.ino, int(mode), 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0}
	var head strings.Builder
	head.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&head, "%08X", f)
	}
	a.write([]byte(head.String() + name + "\x00"))
	a.pad()
	a.write(content)
	a.pad()
}

func (a *archive) pad() { a.write(make([]byte, -a.n&3)) }

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	var n int
	n, a.err = a.w.Write(b)
	a.n += int64(n)
}

// close ends the archive and returns its first error.
func (a *archive) close() error {
	a.ino = -1
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

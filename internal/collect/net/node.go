package net

import (
	"fmt"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
)

// node reads the namespace of process 1.
type node struct {
	interfaces
	file *hostfs.File // nil if it cannot be read
	name string
	seen bool
}

func openNode(h *hostfs.FS) *node {
	n := &node{}
	n.counts = notLoopback
	for _, name := range []string{"/proc/1/net/dev", "/proc/net/dev"} {
		if f, err := h.Open(name); err == nil {
			n.file, n.name = f, name
			break
		}
	}
	physical := map[string]bool{}
	links, err := h.ReadDir("/sys/class/net")
	if err != nil {
		return n // unknown: count all
	}
	for _, l := range links {
		to, err := h.Readlink("/sys/class/net/" + l.Name())
		if err == nil && !strings.Contains(to, "/devices/virtual/") {
			physical[l.Name()] = true
		}
	}
	if len(physical) > 0 {
		n.counts = func(name string) bool {
			if physical[name] {
				return true
			}
			// Plugged in since.
			to, err := h.Readlink("/sys/class/net/" + name)
			return err == nil && !strings.Contains(to, "/devices/virtual/")
		}
	}
	return n
}

func (n *node) read(t *Table) error {
	if n.file == nil {
		return nil
	}
	b, err := n.file.ReadInto(t.buf)
	if err != nil {
		return hostfs.Kind(n.name, err)
	}
	t.buf = b[:cap(b)]
	if _, err = n.add(b); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	n.seen = true
	return nil
}

func (n *node) close() {
	if n.file != nil {
		_ = n.file.Close() // nothing was written
	}
}

package net

import (
	"fmt"
	"strconv"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// netns is a network namespace held by a workload.
type netns struct {
	interfaces
	id     uint64
	pid    int32        // one of its processes
	path   string       // of the workload that holds it
	holder *target      // that workload, once it is certain
	file   *hostfs.File // its net/dev; nil if it is not kept open
	quiet  int          // readings since the last traffic
}

// holdNamespace opens the namespace of process pid.
func (t *Table) holdNamespace(id uint64, pid int32, path string) (*netns, error) {
	ns := &netns{id: id, pid: pid, path: path}
	ns.counts = notLoopback
	if t.spareDescriptors > 0 {
		f, err := t.h.Open(dev(pid))
		if err != nil {
			return nil, err
		}
		ns.file = f
		t.spareDescriptors--
	}
	if err := ns.read(t); err != nil {
		t.release(ns)
		return nil, err
	}
	// The process may have moved meanwhile, or its PID may be in use again.
	if now, err := t.namespaceID(pid); err != nil || now != id {
		t.release(ns)
		return nil, fmt.Errorf("%s: not in namespace %d any more: %w", dev(pid), id, fault.ErrNotFound)
	}
	t.namespaces[id] = ns
	return ns, nil
}

// release closes the descriptor of ns, so that the namespace can be removed.
func (t *Table) release(ns *netns) {
	if ns.file != nil {
		_ = ns.file.Close() // nothing was written
		ns.file = nil
		t.spareDescriptors++
	}
	delete(t.namespaces, ns.id)
}

// read reads the interfaces of ns.
func (ns *netns) read(t *Table) error {
	f := ns.file
	if f == nil {
		var err error
		if f, err = t.h.Open(dev(ns.pid)); err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // nothing was written
	}
	b, err := f.ReadInto(t.buf)
	if err != nil {
		return hostfs.Kind(dev(ns.pid), err)
	}
	t.buf = b[:cap(b)]
	if ns.file == nil {
		if now, err := t.namespaceID(ns.pid); err != nil || now != ns.id {
			return fmt.Errorf("%s: not in namespace %d any more: %w", dev(ns.pid), ns.id, fault.ErrNotFound)
		}
	}
	moved, err := ns.add(b)
	if err != nil {
		return fmt.Errorf("%s: %w", dev(ns.pid), err)
	}
	if ns.quiet++; moved {
		ns.quiet = 0
	}
	return nil
}

// namespaceID returns the id of the namespace of process pid.
func (t *Table) namespaceID(pid int32) (uint64, error) { return t.h.ID(link(strconv.Itoa(int(pid)))) }

func link(pid string) string { return "/proc/" + pid + "/ns/net" }
func dev(pid int32) string   { return "/proc/" + strconv.Itoa(int(pid)) + "/net/dev" }

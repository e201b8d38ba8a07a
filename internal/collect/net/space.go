package net

import (
	"fmt"
	"strconv"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// space is a network namespace that a workload holds.
type space struct {
	interfaces
	id    uint64
	pid   int32        // one of its processes
	path  string       // of the workload that holds it
	file  *hostfs.File // its net/dev; nil where it is not kept
	quiet int          // readings since anything moved
}

// hold opens the namespace that pid is in.
func (t *Table) hold(id uint64, pid int32, path string) (*space, error) {
	s := &space{id: id, pid: pid, path: path}
	s.counts = notLoopback
	if t.spare > 0 {
		f, err := t.h.Open(dev(pid))
		if err != nil {
			return nil, err
		}
		s.file = f
		t.spare--
	}
	if err := s.read(t); err != nil {
		t.release(s)
		return nil, err
	}
	// The process may have gone elsewhere, or be another, since it was asked.
	if now, err := t.namespace(pid); err != nil || now != id {
		t.release(s)
		return nil, fmt.Errorf("%s: not in namespace %d any more: %w", dev(pid), id, fault.ErrNotFound)
	}
	t.spaces[id] = s
	return s, nil
}

// release closes what is open of s, and its namespace can go.
func (t *Table) release(s *space) {
	if s.file != nil {
		_ = s.file.Close() // only read from
		s.file = nil
		t.spare++
	}
	delete(t.spaces, s.id)
}

// read reads the interfaces of s.
func (s *space) read(t *Table) error {
	f := s.file
	if f == nil {
		var err error
		if f, err = t.h.Open(dev(s.pid)); err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // only read from
	}
	b, err := f.ReadInto(t.buf)
	if err != nil {
		return hostfs.Kind(dev(s.pid), err)
	}
	t.buf = b[:cap(b)]
	if s.file == nil {
		if now, err := t.namespace(s.pid); err != nil || now != s.id {
			return fmt.Errorf("%s: not in namespace %d any more: %w", dev(s.pid), s.id, fault.ErrNotFound)
		}
	}
	moved, err := s.add(b)
	if err != nil {
		return fmt.Errorf("%s: %w", dev(s.pid), err)
	}
	if s.quiet++; moved {
		s.quiet = 0
	}
	return nil
}

// namespace returns the id of the namespace that pid is in.
func (t *Table) namespace(pid int32) (uint64, error) { return t.h.ID(link(strconv.Itoa(int(pid)))) }

func link(pid string) string { return "/proc/" + pid + "/ns/net" }
func dev(pid int32) string   { return "/proc/" + strconv.Itoa(int(pid)) + "/net/dev" }

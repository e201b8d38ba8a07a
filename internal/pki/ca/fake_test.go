package ca_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
)

// memory is a registry in memory.
type memory struct {
	mu      sync.Mutex
	nodes   []registry.Node
	sources []registry.Node
	revoked []string
	tokens  []registry.Token
	audits  []registry.Audit
	err     error              // returned by every method
	used    map[[2]string]bool // token and key

	delay  time.Duration // of every method
	calls  int
	failAt int // the number of the call that fails; 0 is none
}

var errDisk = errors.New("disk failure")

func (m *memory) lock() (unlock func(), err error) {
	time.Sleep(m.delay)
	m.mu.Lock()
	if m.calls++; m.calls == m.failAt {
		return m.mu.Unlock, errDisk
	}
	return m.mu.Unlock, m.err
}

func (m *memory) PutNode(_ context.Context, n registry.Node) error {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return err
	}
	if slices.Contains(m.revoked, n.Root) {
		return registry.RevokedError(n.Root)
	}
	if i := slices.IndexFunc(m.nodes, func(o registry.Node) bool { return o.ID == n.ID }); i >= 0 {
		n.Root = m.nodes[i].Root
		if m.nodes[i].Certified.After(n.Certified) {
			n.Certified = m.nodes[i].Certified
		}
	}
	m.nodes = append(slices.DeleteFunc(m.nodes, func(o registry.Node) bool { return o.ID == n.ID }), n)
	return nil
}

func (m *memory) Certify(_ context.Context, id string, until time.Time) error {
	unlock, err := m.lock()
	defer unlock()
	for i := range m.nodes {
		if err == nil && m.nodes[i].ID == id && until.After(m.nodes[i].Certified) {
			m.nodes[i].Certified = until
		}
	}
	return err
}

func (m *memory) PutSource(_ context.Context, n registry.Node) error {
	unlock, err := m.lock()
	defer unlock()
	if err == nil {
		m.sources = append(slices.DeleteFunc(m.sources, func(o registry.Node) bool { return o.ID == n.ID }), n)
	}
	return err
}

func (m *memory) Source(_ context.Context, id string) (registry.Node, error) {
	unlock, err := m.lock()
	defer unlock()
	if i := slices.IndexFunc(m.sources, func(n registry.Node) bool { return n.ID == id }); err == nil && i >= 0 {
		return m.sources[i], nil
	} else if err == nil {
		err = fmt.Errorf("source %s: %w", id, fault.ErrNotFound)
	}
	return registry.Node{}, err
}

func (m *memory) Enrolled(_ context.Context, tokenID, keyHash string) (string, error) {
	unlock, err := m.lock()
	defer unlock()
	for _, n := range slices.Concat(m.nodes, m.sources) {
		if err == nil && n.Token == tokenID && n.KeyHash == keyHash {
			return n.ID, nil
		}
	}
	return "", err
}

func (m *memory) Sources(_ context.Context, machine string) (found []registry.Node, err error) {
	unlock, err := m.lock()
	defer unlock()
	for _, n := range m.sources {
		if n.MachineID == machine {
			found = append(found, n)
		}
	}
	return found, err
}

func (m *memory) Node(_ context.Context, id string) (registry.Node, error) {
	unlock, err := m.lock()
	defer unlock()
	if i := slices.IndexFunc(m.nodes, func(n registry.Node) bool { return n.ID == id }); err == nil && i >= 0 {
		return m.nodes[i], nil
	} else if err == nil {
		err = fmt.Errorf("node %s: %w", id, fault.ErrNotFound)
	}
	return registry.Node{}, err
}

func (m *memory) NodesByMachine(_ context.Context, id string) (list []registry.Node, err error) {
	unlock, err := m.lock()
	defer unlock()
	for _, n := range m.nodes {
		if n.MachineID == id {
			list = append(list, n)
		}
	}
	return list, err
}

func (m *memory) RevokeNode(_ context.Context, id string, _ time.Time) error {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return err
	}
	m.revoked = append(m.revoked, id)
	for _, n := range m.nodes {
		if n.Root == id {
			m.revoked = append(m.revoked, n.ID)
		}
	}
	return err
}

func (m *memory) RevokedNodes(context.Context) ([]string, error) {
	unlock, err := m.lock()
	defer unlock()
	return slices.Clone(m.revoked), err
}

func (m *memory) PutToken(_ context.Context, t registry.Token) error {
	unlock, err := m.lock()
	defer unlock()
	if err == nil {
		m.tokens = append(m.tokens, t)
	}
	return err
}

func (m *memory) UseToken(_ context.Context, id string, hash [32]byte, role registry.Role, key string, now time.Time) (registry.Token, error) {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return registry.Token{}, err
	}
	for i := range m.tokens {
		t := &m.tokens[i]
		if t.ID != id || t.Hash != hash {
			continue
		}
		switch {
		case t.Role != role:
			err = fmt.Errorf("token %s is for role %s: %w", id, t.Role, fault.ErrDenied)
		case !t.Revoked.IsZero():
			err = fmt.Errorf("token %s is revoked: %w", id, fault.ErrDenied)
		case !t.Expires.IsZero() && !now.Before(t.Expires):
			err = fmt.Errorf("token %s has ended: %w", id, fault.ErrDenied)
		case m.used[[2]string{id, key}]:
		case t.Uses == 0:
			err = fmt.Errorf("token %s is used up: %w", id, fault.ErrDenied)
		case t.Uses > 0:
			t.Uses--
			if m.used == nil {
				m.used = map[[2]string]bool{}
			}
			m.used[[2]string{id, key}] = key != ""
		}
		return *t, err
	}
	return registry.Token{}, fmt.Errorf("token %s: %w", id, fault.ErrNotFound)
}

func (m *memory) Tokens(context.Context) ([]registry.Token, error) {
	unlock, err := m.lock()
	defer unlock()
	return slices.Clone(m.tokens), err
}

func (m *memory) RevokeToken(_ context.Context, id string, now time.Time) error {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for i := range m.tokens {
		if m.tokens[i].ID == id {
			m.tokens[i].Revoked = now
			return nil
		}
	}
	return fmt.Errorf("token %s: %w", id, fault.ErrNotFound)
}

func (m *memory) Audit(_ context.Context, a registry.Audit) error {
	unlock, err := m.lock()
	defer unlock()
	if err == nil {
		m.audits = append(m.audits, a)
	}
	return err
}

// actions lists what was audited, except setup.
func (m *memory) actions() (list []string) {
	unlock, _ := m.lock()
	defer unlock()
	for _, a := range m.audits {
		list = append(list, a.Action)
	}
	m.audits = nil
	return list
}

package net

import (
	"net/netip"

	"mete.dev/mete/internal/host/hostfs"
)

// SetCounters makes t count sockets, and traffic by class.
func (t *Table) SetCounters(sockets func(f func(group uint64, c Count)), c classCounter, operator Rules) {
	t.sockets, t.uncounted = counting(sockets), ""
	t.classes, t.unclassified = newClasses(c, operator), ""
}

// CountConnections makes t count traffic by peer too.
func (t *Table) CountConnections() { t.classes.byPeer = true }

type counting func(f func(group uint64, c Count))

func (c counting) each(f func(group uint64, c Count)) { c(f) }
func (counting) close() error                         { return nil }

// OwnPrefixes returns the addresses of a machine and of its workloads.
func OwnPrefixes(h *hostfs.FS) ([]netip.Prefix, error) {
	return (&Table{h: h, classes: &classes{}}).ownPrefixes()
}

// MaxRules is how many rules an operator may give.
const MaxRules = maxRules

package hosttest_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A load is the use of a group itself, without groups below it: times, traffic and events
// per second of its age, and levels.
type load struct {
	user, system  int64 // us per second
	anon, file    int64 // bytes
	kernel        int64 // bytes: stacks, slab
	read, written int64 // bytes per second
	throttled     int64 // us per second
	ooms          int64 // in total
}

// A group is a group in the tree of a constructed machine. Its age in milliseconds at the
// first tick determines its counters.
type group struct {
	name  string
	age   int64 // at the first tick; negative: created that long afterwards
	load  load
	pids  []int
	kids  []*group
	limit string   // memory limit in bytes, else max
	quota int64    // us per 100 ms, else none
	only  []string // controllers, named hierarchies and v2 that have the group; else as its parent
	ctl   string   // controllers enabled in it on v2, else those of its parent
	gone  bool     // does not exist at the second tick
	again int64    // if not 0, it was recreated that many ms before the second tick

	path   string // set by place
	parent *group
}

// place sets paths and parents, from the root.
func (g *group) place(parent *group) {
	g.parent, g.path = parent, "/"
	if parent != nil {
		g.path = path.Join(parent.path, g.name)
		if g.ctl == "" {
			g.ctl = parent.ctl
		}
		if g.only == nil {
			g.only = parent.only
		}
	}
	if g.age == 0 {
		g.age = 3_600_000
	}
	for _, k := range g.kids {
		k.place(g)
	}
}

// existsAt reports whether the group exists at a tick, 0 or 1.
func (g *group) existsAt(tick int) bool { return !(tick == 0 && g.age < 0) && !(tick == 1 && g.gone) }

// isIn reports whether a hierarchy has the group.
func (g *group) isIn(y hierarchy) bool {
	return g.only == nil || slices.Contains(g.only, y.name) || y.v2 && slices.Contains(g.only, "v2") ||
		slices.ContainsFunc(y.controllers, func(c string) bool { return slices.Contains(g.only, c) })
}

// id returns the group's kernfs id in a hierarchy; a recreated group has a higher
// generation.
func (g *group) id(y hierarchy, tick int) uint64 {
	if g.parent == nil {
		return 1
	}
	id := uint64(seed(fmt.Sprint(y.id, g.path))%50000) + 100
	if tick == 1 && g.again > 0 {
		id += 1 << 32
	}
	return id
}

// counts are the values of a group at a tick.
type counts struct {
	user, system, extra          int64 // us; extra is additional us
	anon, file, kernel           int64
	read, written, reads, writes int64
	periods, throttled           int64 // us
	some                         int64 // us of pressure
	ooms, pids                   int64
}

// own returns the values of the group itself, without living groups below it.
func (g *group) own(tick int) counts {
	ms := g.age + 1000*int64(tick)
	if tick == 1 && g.again > 0 {
		ms = g.again
	}
	n := int64(seed(g.path))
	c := counts{
		user: g.load.user*ms/1000 + n%997, system: g.load.system*ms/1000 + n%499, extra: n % 1000,
		anon: g.load.anon, file: g.load.file, kernel: g.load.kernel,
		read: g.load.read * ms / 1000 &^ 4095, written: g.load.written * ms / 1000 &^ 4095,
		throttled: g.load.throttled * ms / 1000, ooms: g.load.ooms, pids: int64(len(g.pids)),
	}
	if c.anon > 0 && tick == 1 {
		c.anon += 4096 * (n % 64)
	}
	c.reads, c.writes = c.read/16384, c.written/32768
	if g.quota > 0 {
		c.periods = ms / 100
	}
	c.some = c.user / 50
	for _, k := range g.kids {
		// A parent keeps the counters of removed groups, but not their levels.
		if tick == 1 && (k.gone || k.again > 0) {
			c.keep(k.all(0))
		}
	}
	return c
}

func (c *counts) keep(k counts) {
	c.user, c.system, c.extra = c.user+k.user, c.system+k.system, c.extra+k.extra
	c.read, c.written, c.reads, c.writes = c.read+k.read, c.written+k.written, c.reads+k.reads, c.writes+k.writes
}

// all returns the values of the group with all groups below it.
func (g *group) all(tick int) counts {
	c := g.own(tick)
	for _, k := range g.kids {
		if !k.existsAt(tick) {
			continue
		}
		a := k.all(tick)
		c.keep(a)
		c.anon, c.file, c.kernel = c.anon+a.anon, c.file+a.file, c.kernel+a.kernel
		c.ooms, c.pids, c.some = c.ooms+a.ooms, c.pids+a.pids, max(c.some, a.some)
	}
	return c
}

// each calls f for the group and all existing groups below it, parents first.
func (g *group) each(tick int, f func(*group)) {
	if !g.existsAt(tick) {
		return
	}
	f(g)
	for _, k := range g.kids {
		k.each(tick, f)
	}
}

// count returns the number of groups below g.
func (g *group) count(tick int) (n int) {
	g.each(tick, func(*group) { n++ })
	return n - 1
}

// seed derives a number from a name.
func seed(name string) uint32 {
	h := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint32(h[:]) >> 1
}

// id64 derives a container id from a name, uid the UID of a pod.
func id64(name string) string {
	h := sha256.Sum256([]byte(name))
	return hex.EncodeToString(h[:])
}

func uid(name, dash string) string {
	s := id64("uid " + name)
	return strings.Join([]string{s[:8], s[8:12], "4" + s[13:16], "a" + s[17:20], s[20:32]}, dash)
}

// A hierarchy is a hierarchy of a constructed machine.
type hierarchy struct {
	id          int
	v2          bool
	controllers []string
	name        string
	mount       string
}

// A process is a process of a constructed machine. Its times and memory are its part of its
// group's own values, its age is the group's.
type process struct {
	pid, parent int
	comm        string
	state       byte // else S
	kernel      bool
	uid         int
	threads     int    // else 1
	net         uint64 // namespace; 0 is the host's
	hidden      bool   // /proc/PID/io and /proc/PID/ns cannot be read
}

// A disk is a block device of a constructed machine.
type disk struct {
	name         string
	major, minor int
	slaves       []string
	parts        []string // names of partitions
	io           bool     // counts in the I/O of groups
}

// A machine is a constructed machine.
type machine struct {
	name, header, release string
	cpus                  int
	memory                int64 // bytes
	uptime                int64 // s
	hierarchies           []hierarchy
	root                  *group
	processes             []process
	disks                 []disk
	devices               []string // lines of /proc/devices
	pressure              bool     // the kernel has PSI
}

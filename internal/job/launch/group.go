package launch

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// Limits apply to a job as a whole; zero means unlimited.
type Limits struct {
	CPUs   float64 // CPU time per time
	Memory int64   // bytes
}

// A Group is a job's control groups, one in each useful hierarchy. It is not safe for concurrent
// use.
type Group struct {
	h         *hostfs.FS
	name      string
	parts     []*part
	abandoned []*part // dropped: to be removed but not read
	limits    Limits
	leaves    map[procfmt.Dev]bool // devices that are known, and whether they count in sums
	notes     []string
	own       int64 // CPU ns of starting the job, included in its cpuacct group
	buf       []byte
}

// A part is the job's group in one hierarchy.
type part struct {
	y       hostfs.Hierarchy
	parent  string // directory of the parent group
	dir     string // directory of the group
	entry   string // directory of the group that the command starts in: dir, or its leaf
	lock    int    // descriptor that is locked while this process lives, or -1
	sources []source
}

// title returns the display name of the part's hierarchy.
func (p *part) title() string {
	if p.y.V2 {
		return "cgroup2"
	}
	return strings.Join(p.y.Controllers, ",")
}

// Open creates the groups of the job with this ID and sets its limits. The error wraps
// fault.ErrDenied or fault.ErrUnsupported if they cannot be created, and then nothing is left
// behind; an error of a limit is a [*LimitError]. The caller calls Remove.
func Open(h *hostfs.FS, ys []hostfs.Hierarchy, id string, limits Limits) (*Group, error) {
	g := &Group{h: h, name: Prefix + id, limits: limits}
	var errs []error
	for _, y := range ys {
		if !isUseful(y) {
			continue
		}
		if err := g.add(y); err != nil {
			errs = append(errs, err)
		}
	}
	if !g.hasCPUTime() {
		g.Remove()
		if errs == nil {
			errs = []error{fmt.Errorf("no hierarchy counts CPU time by group: %w", fault.ErrUnsupported)}
		}
		return nil, errs[0]
	}
	for _, err := range errs {
		g.addNote(err)
	}
	if err := g.setLimits(limits); err != nil {
		g.Remove()
		return nil, err
	}
	g.listDevices()
	for _, p := range g.parts {
		p.open(g)
	}
	return g, nil
}

func (g *Group) addNote(err error) { g.notes = append(g.notes, "no group in "+err.Error()) }

// add creates the group in hierarchy y.
func (g *Group) add(y hostfs.Hierarchy) error {
	parent, err := parentDir(g.h, y)
	if err != nil {
		return err
	}
	p := &part{y: y, parent: parent, dir: path.Join(parent, g.name), lock: -1}
	if y.V2 && !isWritable(g.h, parent+"/cgroup.procs") {
		// The kernel requires write access to the common ancestor of the source and target groups.
		return fmt.Errorf("%s/cgroup.procs: %w", parent, fault.ErrDenied)
	}
	if err := g.makeLocked(p); err != nil {
		return err
	}
	p.entry = p.dir
	if y.V2 {
		g.addLeaf(p)
	}
	g.parts = append(g.parts, p)
	return nil
}

// lockTries is how often a new group is locked or made again: for about a second.
const lockTries = 60

// makeLocked creates the part's group and locks it. Another mete that ends may sweep the group before it
// is locked, and holds its lock meanwhile: then it is made again. If all tries fail, the
// group is used without a lock.
func (g *Group) makeLocked(p *part) error {
	pause := 100 * time.Microsecond
	for try := range lockTries {
		if err := g.h.Mkdir(p.dir); err != nil && (try == 0 || !errors.Is(err, fault.ErrConflict)) { // later it may still exist
			return err
		}
		if p.lock = lockShared(g.h, p.dir); p.lock >= 0 {
			break
		}
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
	return nil
}

// leaf is the group in a job's v2 group that the command starts in.
const leaf = "job"

// addLeaf creates a leaf in the job's v2 group for the command, and gives the controllers to the
// children of the job's group: a mete run within the job then creates a group beside the leaf,
// which has the controllers and counts for both jobs. Without controllers the job needs no leaf.
func (g *Group) addLeaf(p *part) {
	dir := p.dir + "/" + leaf
	if err := g.h.Mkdir(dir); err != nil {
		return
	}
	for _, c := range neededControllers {
		// One at a time: a refused controller affects only its own figures.
		_ = g.h.WriteFile(p.dir+"/cgroup.subtree_control", []byte("+"+c))
	}
	if hasController(g.h, p.dir) {
		p.entry = dir
		return
	}
	_ = g.h.Rmdir(dir) // else it is removed with the job's group
}

func isWritable(h *hostfs.FS, file string) bool {
	return unix.Faccessat(unix.AT_FDCWD, h.Path(file), unix.W_OK, unix.AT_EACCESS) == nil
}

// hasCPUTime reports whether a group shows CPU time.
func (g *Group) hasCPUTime() bool {
	return slices.ContainsFunc(g.parts, func(p *part) bool { return p.y.V2 || p.y.Has("cpuacct") })
}

// DirV2 returns the directory of the job's v2 group, to which BPF programs can be attached.
func (g *Group) DirV2() (string, bool) {
	for _, p := range g.parts {
		if p.y.V2 {
			return p.dir, true
		}
	}
	return "", false
}

// Dir returns the directory of the job's group in the v1 hierarchy of a controller, or else in v2.
func (g *Group) Dir(controller string) (string, bool) {
	_, dir, ok := g.Hierarchy(controller)
	return dir, ok
}

// Hierarchy is Dir with the hierarchy.
func (g *Group) Hierarchy(controller string) (y hostfs.Hierarchy, dir string, ok bool) {
	for _, p := range g.parts {
		if !p.y.V2 && p.y.Has(controller) {
			return p.y, p.dir, true
		}
		if p.y.V2 {
			y, dir, ok = p.y, p.dir, true
		}
	}
	return y, dir, ok
}

// Path returns the kernel's path of the job's group in the hierarchy that counts its CPU time.
func (g *Group) Path() string {
	for _, p := range g.parts {
		if p.y.V2 || p.y.Has("cpuacct") {
			return path.Join("/", p.y.Root, strings.TrimPrefix(p.dir, p.y.Mount))
		}
	}
	return ""
}

// Notes returns why groups are missing in some hierarchies.
func (g *Group) Notes() []string { return g.notes }

// Read adds the job's use so far to r: totals of counters and present levels. Unreadable files are
// left out.
func (g *Group) Read(r *usage.Reading) { g.read(r, false) }

// ReadLevels adds only the present levels to r.
func (g *Group) ReadLevels(r *usage.Reading) { g.read(r, true) }

func (g *Group) read(r *usage.Reading, levels bool) {
	for _, p := range g.parts {
		for i := range p.sources {
			if s := &p.sources[i]; s.level || !levels {
				g.buf = s.read(g.buf, r)
			}
		}
	}
	if !r.Has.Has(usage.Memory) {
		// No memory controller: sum the memory of the processes.
		addMemory(g.h, g.Members(), r)
	}
}

// Members lists the living processes of the job, including those in groups that it created.
func (g *Group) Members() []Member { return livingOf(g.h, g.pids) }

// maxLists limits how often the processes of a job are listed for one result.
const maxLists = 100

// livingOf returns the living processes of a list. A process may start another one and end after it was
// listed and before its state is read. So if none of the list is alive, list is called again, until it has
// only processes that had ended before the call, such as those that no parent waits for.
func livingOf(h *hostfs.FS, list func() map[int]bool) []Member {
	ended := map[int]bool{}
	for range maxLists {
		pids := list()
		ms, before := members(h, pids), len(ended)
		maps.Copy(ended, pids)
		if len(ms) > 0 || len(ended) == before {
			return ms
		}
	}
	return nil
}

// pids lists the processes in the job's groups, without this one.
func (g *Group) pids() map[int]bool {
	pids := map[int]bool{}
	for _, p := range g.parts {
		g.walk(p.dir, func(dir string) {
			var err error
			if g.buf, err = g.h.ReadInto(dir+"/cgroup.procs", g.buf); err != nil {
				return // removed meanwhile
			}
			for line := range strings.Lines(string(g.buf)) {
				// Zero is a process outside this PID namespace.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 && pid != unix.Getpid() {
					pids[pid] = true
				}
			}
		})
	}
	return pids
}

// members returns the processes that are alive, with names.
func members(h *hostfs.FS, pids map[int]bool) []Member {
	var ms []Member
	for pid := range pids {
		b, err := h.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		s, err := procfmt.ProcStat(b)
		if err != nil || s.State == 'Z' || s.State == 'X' {
			continue
		}
		ms = append(ms, Member{pid, string(s.Comm)})
	}
	slices.SortFunc(ms, func(a, b Member) int { return a.PID - b.PID })
	return ms
}

// walk calls f for the group and all groups below it, children before parents.
func (g *Group) walk(dir string, f func(dir string)) {
	es, err := g.h.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range es {
		if e.IsDir() {
			g.walk(path.Join(dir, e.Name()), f)
		}
	}
	f(dir)
}

// AddExit does nothing: the groups have counted the command's use.
func (g *Group) AddExit(Exit) {}

// LeftGroups names the hierarchies in which the process has left the job's group, so that its use
// there is not in the readings. For an ended process only v2 still knows.
func (g *Group) LeftGroups(pid int, ended bool) []string {
	b, err := g.h.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return nil
	}
	var away []string
	for _, p := range g.parts {
		for _, m := range ms {
			if m.Hierarchy != int(p.y.ID) || ended && !p.y.V2 {
				continue
			}
			if dir, ok := p.y.Dir(m.Path); !ok || dir != p.dir && !strings.HasPrefix(dir, p.dir+"/") {
				away = append(away, p.title())
			}
		}
	}
	return away
}

// IsGone reports whether a group of the job was removed externally.
func (g *Group) IsGone() bool {
	return slices.ContainsFunc(g.parts, func(p *part) bool {
		_, err := g.h.ReadFile(p.dir + "/cgroup.procs")
		return errors.Is(err, fault.ErrNotFound)
	})
}

// EachGroup calls f with every group of the job, including those that it created, and the number of
// its hierarchy.
func (g *Group) EachGroup(f func(hierarchy uint32, dir string)) {
	for _, p := range g.parts {
		g.walk(p.dir, func(dir string) { f(p.y.ID, dir) })
	}
}

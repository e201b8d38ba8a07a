package run

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// loadTimeout limits how long a job waits for the BPF programs: several times what loading takes,
// but too short to notice. Tests raise it.
var loadTimeout = 250 * time.Millisecond

// counter counts with BPF what the job's files do not show: started processes, block I/O without
// the controller, network traffic. It loads while mete creates the job's groups.
type counter struct {
	h      *hostfs.FS
	want   string // auto, bpf or files
	opened chan struct{}
	ready  chan struct{}
	late   bool

	kernel  *bpf.Kernel
	loadErr error
	net     *bpf.Attachment
	netErr  error
	group   *launch.Group
	io      bool // the v2 group has the controller that counts block I/O by group
	ids     map[owner]bool
}

// owner is a counted group.
type owner struct {
	hierarchy uint32
	id        uint64
}

func openCounter(h *hostfs.FS, reader string) *counter {
	c := &counter{h: h, want: reader, opened: make(chan struct{}), ids: map[owner]bool{}}
	if reader == "files" {
		c.loadErr = fmt.Errorf("not requested: %w", fault.ErrUnsupported)
		close(c.opened)
		return c
	}
	go func() {
		defer close(c.opened)
		// Without the list, loop and device-mapper devices would count twice.
		majors, err := h.StackedMajors()
		if err == nil {
			c.kernel, err = bpf.Open(bpf.Config{
				Parts: bpf.Forks | bpf.Disk | bpf.Net, Groups: 4096,
				SkipMajors: slices.Collect(maps.Keys(majors)), Unified: true,
			})
		}
		c.loadErr = err
	}()
	return c
}

// attachTo starts counting for this group; nil is none.
func (c *counter) attachTo(g *launch.Group) {
	ready := make(chan struct{})
	c.group, c.ready = g, ready
	go func() {
		defer close(ready)
		<-c.opened
		if c.kernel == nil || g == nil {
			return
		}
		c.netErr = c.attach(g)
		if dir, ok := g.DirV2(); ok {
			b, err := c.h.ReadFile(dir + "/cgroup.controllers")
			c.io = err == nil && slices.Contains(strings.Fields(string(b)), "io")
		}
	}()
}

var (
	errNoV2 = fmt.Errorf("no cgroup2 group: %w", fault.ErrUnsupported)
	errNoIO = fmt.Errorf("no group with the controller io or blkio: %w", fault.ErrUnsupported)
)

// groupErr returns why a part counts nothing in the job's groups, or nil. The kernel then counts for groups
// above, and 0 is not what the job used.
func (c *counter) groupErr(p bpf.Part) error {
	switch p {
	case bpf.Net:
		return c.netErr
	case bpf.Disk:
		if y, _, ok := c.group.Hierarchy("blkio"); !ok || y.V2 && !c.io {
			return errNoIO
		}
	case bpf.Forks:
		if _, ok := c.group.DirV2(); !ok {
			return errNoV2
		}
	}
	return nil
}

func (c *counter) attach(g *launch.Group) error {
	if err := c.kernel.Err(bpf.Net); err != nil {
		return err
	}
	dir, ok := g.DirV2()
	if !ok {
		return errNoV2
	}
	f, err := c.h.Open(dir)
	if err != nil {
		return err
	}
	c.net, err = c.kernel.AttachNet(f.Fd())
	return errors.Join(err, f.Close())
}

// wait returns when counting has started, or after a time limit.
func (c *counter) wait() {
	if c.want == "bpf" {
		<-c.ready
		return
	}
	select {
	case <-c.ready:
	case <-time.After(loadTimeout):
		c.late = true
	}
}

// err returns why nothing is counted, or nil.
func (c *counter) err() error {
	<-c.opened
	return c.loadErr
}

// isCounting reports whether counting is active.
func (c *counter) isCounting() bool {
	if c.group == nil || c.late {
		return false
	}
	select {
	case <-c.ready:
		return c.kernel != nil
	default:
		return false
	}
}

// read adds the job's counts to r.
func (c *counter) read(r *usage.Reading) {
	if !c.isCounting() {
		return
	}
	c.group.EachGroup(func(hierarchy uint32, dir string) {
		if id, err := c.h.ID(dir); err == nil {
			c.ids[owner{hierarchy, id}] = true
		}
	})
	var sum bpf.Counts
	for n := range c.kernel.Counts() {
		if c.ids[owner{n.Hierarchy, n.ID}] {
			sum.Forks += n.Forks
			sum.ReadBytes += n.ReadBytes
			sum.WrittenBytes += n.WrittenBytes
			sum.RxBytes += n.RxBytes
			sum.TxBytes += n.TxBytes
		}
	}
	can := c.kernel.WorkingParts()
	if can&bpf.Forks != 0 && c.groupErr(bpf.Forks) == nil {
		r.Put(usage.Processes, int64(sum.Forks))
	}
	if can&bpf.Disk != 0 && !r.Has.Has(usage.DiskRead) && c.groupErr(bpf.Disk) == nil {
		r.Put(usage.DiskRead, int64(sum.ReadBytes))
		r.Put(usage.DiskWritten, int64(sum.WrittenBytes))
	}
	if c.net != nil {
		r.Put(usage.NetworkRx, int64(sum.RxBytes))
		r.Put(usage.NetworkTx, int64(sum.TxBytes))
	}
}

// reader returns the source of the figures.
func (c *counter) reader() string {
	switch {
	case c.group == nil:
		return "tree"
	case c.isCounting():
		return "bpf"
	}
	return "files"
}

// notes returns which figures are not present, and why.
func (c *counter) notes(present usage.Set) []string {
	var absent []string
	for _, a := range []struct {
		res  usage.Resource
		name string
	}{{usage.DiskRead, "disk"}, {usage.NetworkRx, "network"}, {usage.Processes, "processes"}} {
		if !present.Has(a.res) {
			absent = append(absent, a.name)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	if !c.isCounting() {
		are := "are"
		if len(absent) == 1 && absent[0] != "processes" {
			are = "is"
		}
		return []string{fmt.Sprintf("%s %s absent: %s", join(absent), are, c.failure())}
	}
	var notes []string
	for _, p := range []struct {
		part bpf.Part
		name string
	}{{bpf.Disk, "disk"}, {bpf.Net, "network"}, {bpf.Forks, "processes"}} {
		if err := cmp.Or(c.groupErr(p.part), c.kernel.Err(p.part)); err != nil && slices.Contains(absent, p.name) {
			notes = append(notes, fmt.Sprintf("%s: absent: %v", p.name, err))
		}
	}
	return notes
}

// failure returns why nothing was counted.
func (c *counter) failure() string {
	switch {
	case c.group == nil:
		return "only a control group shows more"
	case c.want == "files":
		return "only BPF counts more here, and --reader files does without it"
	case c.late:
		return fmt.Sprintf("BPF was not ready within %v", loadTimeout)
	}
	<-c.opened
	return explainRefusal(c.loadErr)
}

// explainRefusal returns in one line why the kernel rejects the programs.
func explainRefusal(err error) string {
	if errors.Is(err, fault.ErrDenied) {
		return "BPF is not permitted: run as root or with CAP_BPF and CAP_PERFMON"
	}
	return firstLine(err.Error())
}

// close detaches the programs.
func (c *counter) close() {
	if c.late {
		// The process is about to end, which unloads everything.
		return
	}
	<-c.opened
	if c.ready != nil {
		<-c.ready
	}
	var err error
	if c.net != nil {
		err = c.net.Close()
	}
	if c.kernel != nil {
		err = errors.Join(err, c.kernel.Close())
	}
	if err != nil {
		// The kernel detaches it at the end of the process.
		fmt.Fprintln(os.Stderr, "mete:", err)
	}
}

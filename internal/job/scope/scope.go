// Package scope asks systemd for a transient scope: a subtree of control groups that is delegated
// to this process (systemd.scope(5), and "Control Group APIs and Delegation" in systemd's
// documentation).
//
// Where systemd manages a machine with cgroup v2, a process may not create groups with controllers
// beside its own. In a delegated scope it may: this process moves into one leaf of the scope, the
// job into another.
package scope

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// startTimeout limits the time for systemd to start the scope. Tests raise it.
var startTimeout = 3 * time.Second

// leaf is the group in the scope for this process itself.
const leaf = "meter"

// IsUseful reports whether a scope would show more than a group below the caller's own: systemd
// manages the machine, and v2 has the controllers.
func IsUseful(h *hostfs.FS, ys []hostfs.Hierarchy) bool {
	_, err := h.ReadDir("/run/systemd/system") // sd_booted(3)
	return err == nil && slices.ContainsFunc(ys, func(y hostfs.Hierarchy) bool { return y.V2 && y.Has("memory") })
}

// Enter moves this process into a new scope, mete-ID.scope, beside its present group, and returns
// the scope's group in the v2 hierarchy, whose children have all delegated controllers. The scope
// ends with its last process.
//
// Limits of the present groups below their slice would not apply in the scope. A limit of tasks is
// copied to the scope; with any other limit Enter returns fault.ErrDenied.
func Enter(ctx context.Context, h *hostfs.FS, y hostfs.Hierarchy, id string) (string, error) {
	uid := unix.Geteuid()
	slice, chain := locate(y.Self, uid)
	tasks, err := tasksLimit(h, y, chain)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	unit := "mete-" + id + ".scope"
	if err := start(ctx, uid, unit, slice, tasks); err != nil {
		return "", err
	}
	group, err := waitUntilMoved(ctx, h, unit)
	if err != nil {
		return "", err
	}
	return group, delegate(h, y, group)
}

// locate returns the slice of a group, as known to the manager of user uid, and the groups from the
// given one up to that slice. The slice is empty if the manager does not manage the path.
func locate(group string, uid int) (slice string, chain []string) {
	top := "/"
	slice = "-.slice"
	if uid != 0 {
		manager := fmt.Sprintf("/user@%d.service", uid)
		slice = ""
		if before, _, ok := strings.Cut(group+"/", manager+"/"); ok {
			top = before + manager
			slice = "-.slice"
		}
	}
	for ; group != top && group != "/" && group != "."; group = path.Dir(group) {
		if strings.HasSuffix(group, ".slice") {
			if slice != "" {
				slice = path.Base(group)
			}
			break
		}
		chain = append(chain, group)
	}
	return slice, chain
}

// tasksLimit returns the lowest limit of tasks among the groups, or math.MaxUint64, and fails if
// there is another limit.
func tasksLimit(h *hostfs.FS, y hostfs.Hierarchy, chain []string) (uint64, error) {
	tasks := uint64(math.MaxUint64)
	for _, group := range chain {
		dir, ok := y.Dir(group)
		if !ok {
			continue
		}
		for _, f := range []string{"memory.max", "memory.high", "memory.swap.max", "cpu.max", "io.max", "cpuset.cpus", "cpuset.mems"} {
			b, err := h.ReadFile(dir + "/" + f)
			if w := strings.Fields(string(b)); err == nil && len(w) > 0 && w[0] != "max" {
				return 0, fmt.Errorf("%s/%s: a scope would escape this limit: %w", dir, f, fault.ErrDenied)
			}
		}
		if b, err := h.ReadFile(dir + "/pids.max"); err == nil {
			if n, err := procfmt.Int(b); err == nil && n < math.MaxInt64 {
				tasks = min(tasks, uint64(n))
			}
		}
	}
	return tasks, nil
}

// property is a(sv) of StartTransientUnit.
type property struct {
	Name  string
	Value dbus.Variant
}

type aux struct {
	Name       string
	Properties []property
}

// connectSessionBus is dbus.ConnectSessionBus, but does not start a missing bus: that would have no manager
// and outlive the job.
func connectSessionBus(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	conn, err := dbus.SessionBusPrivateNoAutoStartup(opts...)
	if err != nil {
		return nil, err
	}
	if err = conn.Auth(nil); err == nil {
		err = conn.Hello()
	}
	if err != nil {
		_ = conn.Close() // the connection is of no use
		return nil, err
	}
	return conn, nil
}

// start asks the manager for the scope (org.freedesktop.systemd1(5)).
func start(ctx context.Context, uid int, unit, slice string, tasks uint64) error {
	connect := dbus.ConnectSystemBus
	if uid != 0 {
		connect = connectSessionBus
	}
	conn, err := connect(dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("systemd: %w: %w", fault.ErrUnsupported, err)
	}
	defer func() { _ = conn.Close() }() // the reply has arrived by then
	ps := []property{
		{"Description", dbus.MakeVariant("job of mete run")},
		{"PIDs", dbus.MakeVariant([]uint32{uint32(unix.Getpid())})},
		{"Delegate", dbus.MakeVariant(true)},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
		{"TasksMax", dbus.MakeVariant(tasks)},
	}
	if slice != "" {
		ps = append(ps, property{"Slice", dbus.MakeVariant(slice)})
	}
	var job dbus.ObjectPath
	manager := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	err = manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.StartTransientUnit", 0, unit, "fail", ps, []aux{}).Store(&job)
	if err != nil {
		return fmt.Errorf("systemd: %s: %w: %w", unit, fault.ErrDenied, err)
	}
	return nil
}

// waitUntilMoved waits until this process is in the unit's group. The kernel's view of the process
// is more reliable than the state of systemd's job.
func waitUntilMoved(ctx context.Context, h *hostfs.FS, unit string) (string, error) {
	for {
		b, err := h.ReadFile("/proc/self/cgroup")
		if err != nil {
			return "", err
		}
		ms, err := procfmt.Cgroups(b)
		if err != nil {
			return "", err
		}
		for _, m := range ms {
			if m.Hierarchy == 0 && path.Base(m.Path) == unit {
				return m.Path, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("systemd: %s: not started within %v: %w", unit, startTimeout, fault.ErrUnavailable)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// delegate moves this process into a leaf of the scope, since a group with processes cannot give
// controllers to children, and then enables all controllers.
func delegate(h *hostfs.FS, y hostfs.Hierarchy, group string) error {
	dir, ok := y.Dir(group)
	if !ok {
		return fmt.Errorf("%s: scope %s is not visible: %w", y.Mount, group, fault.ErrUnsupported)
	}
	if err := h.Mkdir(dir + "/" + leaf); err != nil && !errors.Is(err, fault.ErrConflict) {
		return err
	}
	if err := h.WriteFile(dir+"/"+leaf+"/cgroup.procs", []byte("0")); err != nil {
		return err
	}
	b, err := h.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return err
	}
	for c := range strings.FieldsSeq(string(b)) {
		// One at a time: a refused controller affects only its own figures.
		_ = h.WriteFile(dir+"/cgroup.subtree_control", []byte("+"+c))
	}
	return nil
}

package vm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// firstUser is the first number of users who are people: those below are of the system, as that of
// QEMU in most distributions and in KubeVirt (login.defs(5), SYS_UID_MAX).
const firstUser = 1000

// hypervisorUsers are the users as whom libvirt runs QEMU, where their number is above that.
var hypervisorUsers = sync.OnceValue(func() (uids []int) {
	for _, name := range []string{"libvirt-qemu", "qemu"} {
		if u, err := user.Lookup(name); err == nil {
			if uid, err := strconv.Atoi(u.Uid); err == nil {
				uids = append(uids, uid)
			}
		}
	}
	return uids
})

// distrust returns why the command line of a process does not say which virtual machine it is, or
// "". Any user can give a program the name of QEMU, and QEMU the UUID of a virtual machine of
// another, whose share of energy it would then take. So the program must be root's, and the process
// root's or the hypervisor's. The user of this process counts as root. gid is the effective group of
// the process.
func (t *Table) distrust(pid int32) (why string, gid int, err error) {
	if !t.h.Live() {
		return "", os.Getegid(), nil // a captured machine has no owners
	}
	b, err := t.h.ReadFile(dir(pid) + "/status")
	if err != nil {
		return "", 0, err
	}
	uids, err := statusIDs(b, "Uid:")
	gids, gerr := statusIDs(b, "Gid:")
	if err = errors.Join(err, gerr); err != nil {
		return "", 0, fmt.Errorf("%s/status: %w", dir(pid), err)
	}
	why, err = t.distrustUser(pid, uids[:2])
	return why, gids[1], err
}

// statusIDs returns the real, effective, saved and file system id in a line of proc_pid_status(5).
func statusIDs(status []byte, key string) (ids [4]int, err error) {
	_, rest, _ := bytes.Cut(status, []byte("\n"+key))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) != len(ids) {
		return ids, fmt.Errorf("%s %d ids: %w", key, len(fields), fault.ErrInvalid)
	}
	for i, f := range fields {
		if ids[i], err = strconv.Atoi(string(f)); err != nil {
			return ids, fmt.Errorf("%s %.20q: %w", key, f, fault.ErrInvalid)
		}
	}
	return ids, nil
}

// distrustUser is distrust for a process that runs as these users.
func (t *Table) distrustUser(pid int32, uids []int) (why string, err error) {
	for _, uid := range uids {
		if uid >= firstUser && uid != os.Geteuid() && !slices.Contains(hypervisorUsers(), uid) {
			return fmt.Sprintf("it runs as user %d, who is neither of the system nor that of the hypervisor", uid), nil
		}
	}
	var st unix.Stat_t
	switch err := unix.Stat(t.h.Path(dir(pid)+"/exe"), &st); {
	case errors.Is(err, unix.ENOENT):
		return "", fmt.Errorf("%s/exe: %w", dir(pid), fault.ErrNotFound)
	case err != nil:
		return "its program cannot be read: " + err.Error(), nil
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return "its program can be changed by others than root", nil
	}
	return "", nil
}

// keepFirst removes UUID and CID from a virtual machine of whose UUID or CID another one has that
// started before it: the first one keeps them.
func keepFirst(vms []*VM) {
	slices.SortFunc(vms, func(a, b *VM) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID)) })
	uuids, cids := map[string]bool{"": true}, map[uint32]bool{0: true}
	for _, v := range vms {
		if v.UUID != "" && uuids[v.UUID] || v.CID != 0 && cids[v.CID] {
			v.UUID, v.CID = "", 0
			continue
		}
		uuids[v.UUID], cids[v.CID] = true, true
	}
}

package bpf

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/bpf.h.
const (
	cmdLinkCreate = 28
	cmdIterCreate = 33
	attachIter    = 28 // BPF_TRACE_ITER

	iterSelf           = 1 // BPF_CGROUP_ITER_SELF_ONLY
	iterDescendantsPre = 2 // BPF_CGROUP_ITER_DESCENDANTS_PRE
)

func bpfCall(cmd uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINTR, unix.EAGAIN:
			continue
		}
		return -1, errno
	}
}

// linkGroups links program p to the group whose open directory is dirfd, in the given
// order.
func linkGroups(p *ebpf.Program, order, dirfd int) (int, error) {
	info := struct {
		order, fd uint32
		id        uint64
	}{order: uint32(order), fd: uint32(dirfd)}
	attr := struct {
		prog, target, attach, flags uint32
		info                        uint64
		infoLen                     uint32
		_                           uint32
	}{
		prog:    uint32(p.FD()),
		attach:  attachIter,
		info:    uint64(uintptr(unsafe.Pointer(&info))),
		infoLen: uint32(unsafe.Sizeof(info)),
	}
	fd, err := bpfCall(cmdLinkCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(&info)
	runtime.KeepAlive(p)
	return fd, os.NewSyscallError("bpf link", err)
}

// openIter starts one iteration over the link.
func openIter(link int) (int, error) {
	attr := struct{ link, flags uint32 }{link: uint32(link)}
	fd, err := bpfCall(cmdIterCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return fd, os.NewSyscallError("bpf iter", err)
}

// runIter runs a program without output over everything that its link covers.
func runIter(link int) error {
	fd, err := openIter(link)
	if err != nil {
		return err
	}
	var buf [8]byte
	for {
		if _, err = unix.Read(fd, buf[:]); err != unix.EINTR {
			break
		}
	}
	return errors.Join(os.NewSyscallError("read bpf iter", err), unix.Close(fd))
}

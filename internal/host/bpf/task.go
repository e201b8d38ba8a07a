package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TaskFlag is a set of the kernel's task flags, PF_... of include/linux/sched.h.
type TaskFlag uint32

const (
	// Exiting is set on a task that is exiting.
	Exiting TaskFlag = 0x00000004
	// KernelThread is set on a task that never runs in user mode.
	KernelThread TaskFlag = 0x00200000
)

// A Task is one thread.
type Task struct {
	PID  uint32 // of the thread
	TGID uint32 // of its process
	PPID uint32 // of the parent process
	// Flags of the task.
	Flags TaskFlag
	// Start of the thread, in ns of CLOCK_BOOTTIME. With PID it identifies the thread
	// uniquely.
	Start uint64
	// CPU time of the thread in ns, exact. User and System are the kernel's sampled split;
	// they do not sum to CPU.
	CPU, User, System uint64
	// ReadBytes and WrittenBytes are the bytes of storage I/O that the thread caused.
	ReadBytes, WrittenBytes uint64
	// CPU time of the ended threads of the process, the same on each of its rows: the
	// process used this once plus the CPU of all its rows.
	DeadCPU, DeadUser, DeadSystem uint64
	// The same for storage, but including ended children that the process has waited for.
	DeadReadBytes, DeadWrittenBytes uint64
	// RSS is the resident memory of the process in bytes, if HasRSS.
	RSS uint64
	// Group is the kernfs id of the task's group: in the hierarchy of cpuacct if that has
	// its own and [Config.Unified] is not set, else in the default hierarchy.
	Group uint64
	// Hierarchy of Group.
	Hierarchy uint32
	// HasRSS is 1 on one row of each process that has memory: that of its main thread
	// unless it has ended.
	HasRSS uint32
	comm   [16]byte
}

// Comm returns the name of the thread, at most 15 bytes.
func (t *Task) Comm() string {
	if i := bytes.IndexByte(t.comm[:], 0); i >= 0 {
		return string(t.comm[:i])
	}
	return string(t.comm[:])
}

type taskPart struct {
	iter *link.Iter
	buf  []Task
}

func (k *Kernel) openTask(l *loader) {
	if l.cfg.Parts&Tasks != 0 {
		k.setResult(Tasks, k.task.open(k, l))
	}
}

func (t *taskPart) open(k *Kernel, l *loader) error {
	spec, err := loadTask()
	if err != nil {
		return err
	}
	if err := l.setConstants(spec); err != nil {
		return err
	}
	c, err := ebpf.NewCollectionWithOptions(spec, l.options())
	if err != nil {
		return err
	}
	defer c.Close()
	if t.iter, err = link.AttachIter(link.IterOptions{Program: c.Programs["tasks"]}); err != nil {
		return err
	}
	k.onClose(t.iter.Close)
	return nil
}

// taskRows is how many tasks one system call fetches.
const taskRows = 224

// Tasks calls f for every thread in the caller's PID namespace and those below (on the
// host: all threads) until f returns false. PIDs are the host's. The Task is valid until f
// returns. Tasks may miss a thread that starts or ends meanwhile.
func (k *Kernel) Tasks(f func(*Task) bool) (err error) {
	if err := k.Err(Tasks); err != nil {
		return err
	}
	t := &k.task
	if t.buf == nil {
		t.buf = make([]Task, taskRows)
	}
	const size = int(unsafe.Sizeof(Task{}))
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&t.buf[0])), taskRows*size)
	r, err := t.iter.Open()
	if err != nil {
		return fmt.Errorf("bpf: tasks: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for have := 0; ; {
		n, err := r.Read(raw[have:])
		have += n
		for i := range have / size {
			if !f(&t.buf[i]) {
				return nil
			}
		}
		// The beginning of an incomplete task.
		have = copy(raw, raw[have/size*size:have])
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("bpf: tasks: %w", err)
		}
	}
}

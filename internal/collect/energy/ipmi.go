package energy

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// ipmiTimeout is how long to wait for an answer. A controller behind a slow interface takes
// about 10 ms; one that is starting may take seconds.
const ipmiTimeout = time.Second

// An ipmi is the kernel's device of a management controller
// (include/uapi/linux/ipmi.h).
type ipmi struct {
	fd      int
	path    string
	limit   time.Duration                                        // how long to wait for an answer
	control func(request uintptr, argument unsafe.Pointer) error // ioctl of fd
	id      int64                                                // of the latest request
	owed    bool                                                 // the latest request has not been answered
	buf     [272]byte
}

func openIPMI(path string) (bmc, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, hostfs.Kind(path, err)
	}
	control := func(request uintptr, argument unsafe.Pointer) error { return ioctl(fd, request, argument) }
	return &ipmi{fd: fd, path: path, limit: ipmiTimeout, control: control}, nil
}

func (d *ipmi) Close() error { return unix.Close(d.fd) }

// Ask sends a request to the controller and waits for the answer. If the controller does
// not answer, the kernel eventually does, with a completion code; until then Ask sends no
// further request.
func (d *ipmi) Ask(netfn, cmd byte, data []byte) ([]byte, error) {
	end := time.Now().Add(d.limit)
	if d.owed {
		if _, err := d.receive(end); err != nil {
			return nil, err
		}
	}
	addr := unix.IPMISystemInterfaceAddr{Type: unix.IPMI_SYSTEM_INTERFACE_ADDR_TYPE, Channel: unix.IPMI_BMC_CHANNEL}
	d.id++
	req := unix.IPMIReq{Addr: (*byte)(unsafe.Pointer(&addr)), Len: uint32(unsafe.Sizeof(addr)), Msgid: d.id,
		Msg: unix.IPMIMsg{Netfn: netfn, Cmd: cmd, Len: uint16(len(data)), Data: unsafe.SliceData(data)}}
	if err := d.call(unix.IPMICTL_SEND_COMMAND, unsafe.Pointer(&req)); err != nil {
		return nil, err
	}
	d.owed = true
	return d.receive(end)
}

// receive waits for the answer to the latest request. It is valid until the next call.
func (d *ipmi) receive(end time.Time) ([]byte, error) {
	for {
		if err := d.wait(end); err != nil {
			return nil, err
		}
		var from [unix.IPMI_MAX_ADDR_SIZE]byte
		recv := unix.IPMIRecv{Addr: unsafe.SliceData(from[:]), Addr_len: uint32(len(from)),
			Msg: unix.IPMIMsg{Len: uint16(len(d.buf)), Data: unsafe.SliceData(d.buf[:])}}
		if err := d.call(unix.IPMICTL_RECEIVE_MSG, unsafe.Pointer(&recv)); err != nil {
			return nil, err
		}
		// Skip events.
		if recv.Recv_type == unix.IPMI_RESPONSE_RECV_TYPE && recv.Msgid == d.id {
			d.owed = false
			return d.buf[:recv.Msg.Len], nil
		}
	}
}

// wait waits until a message can be received.
func (d *ipmi) wait(end time.Time) error {
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	var n int
	err := uninterrupted(func() (err error) {
		n, err = unix.Poll(fds, int(max(0, time.Until(end).Milliseconds()))) // less than 0 waits forever
		return err
	})
	if err == nil && n == 0 {
		return fmt.Errorf("%s: no answer within %v: %w", d.path, d.limit, fault.ErrUnavailable)
	}
	return hostfs.Kind(d.path, err)
}

// call calls the device.
func (d *ipmi) call(request uintptr, argument unsafe.Pointer) error {
	return hostfs.Kind(d.path, uninterrupted(func() error { return d.control(request, argument) }))
}

// uninterrupted repeats a system call that a signal interrupts.
func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

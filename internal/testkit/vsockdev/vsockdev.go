// Package vsockdev is a virtio-vsock device for tests: it gives a QEMU guest
// AF_VSOCK where the kernel of the host has no vhost_vsock, as that of the machine
// that runs the tests (docs/decisions/0019-hand-made.md).
//
// QEMU speaks to it by the vhost-user protocol (docs/interop/vhost-user.rst of
// QEMU), as `-device vhost-user-vsock-pci`, and shares the guest's memory with
// it. The device is that of Virtio 1.2, section 5.10, streams only. The guest
// connects to the host, CID 2; the host connects to no guest.
package vsockdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"mete.dev/mete/internal/model/fault"
)

// Host is the CID of a host, as its guests see it.
const Host = 2

// A Device is that of one guest, over all the times that it is started.
type Device struct {
	cid  uint32
	dial Dial
	log  *slog.Logger
	ln   *net.UnixListener
}

// Dial is asked for the other end of what a guest wants to connect to. An error
// refuses the guest. It is called by several goroutines.
type Dial func(port uint32) (net.Conn, error)

// Open makes the socket that QEMU connects to, at a path of at most 107 bytes.
// The CID is the guest's, 3 or more.
func Open(path string, cid uint32, dial Dial, log *slog.Logger) (*Device, error) {
	if cid <= Host || cid == 1<<32-1 {
		return nil, fmt.Errorf("vsockdev: CID %d is not a guest's: %w", cid, fault.ErrInvalid)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("vsockdev: %w", err)
	}
	return &Device{cid: cid, dial: dial, log: log, ln: ln}, nil
}

// Run serves one QEMU after the other until ctx ends. When a QEMU goes, the
// connections of its guest go too.
func (d *Device) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = d.ln.Close() })
	defer stop()
	for {
		c, err := d.ln.AcceptUnix()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("vsockdev: %w", err)
		}
		if err := d.serve(ctx, c); err != nil && ctx.Err() == nil {
			d.log.Warn("vsock device", "err", err)
		}
	}
}

// Close removes the socket. It may be called while Run runs, which ends then
// with the QEMU that it serves.
func (d *Device) Close() error {
	if err := d.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Args are QEMU's arguments for a device at this socket. The guest's memory has to be
// shared: `-object memory-backend-memfd,id=memory,share=on,size=N` and `-machine
// memory-backend=memory`.
func Args(path string) []string {
	return []string{"-chardev", "socket,id=vsock,path=" + path, "-device", "vhost-user-vsock-pci,chardev=vsock"}
}

// serve serves one QEMU until it goes.
func (d *Device) serve(ctx context.Context, c *net.UnixConn) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	s := newSession(d, c)
	defer func() { err = errors.Join(err, s.close(), quiet(c.Close())) }()
	for {
		m, err := receive(c)
		if err != nil {
			return end(err)
		}
		if err := s.handle(&m); err != nil {
			return fmt.Errorf("request %d: %w", m.request, err)
		}
	}
}

// quiet takes an error of closing twice for none.
func quiet(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

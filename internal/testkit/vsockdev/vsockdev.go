// Package vsockdev is a virtio-vsock device for tests. It gives a QEMU guest AF_VSOCK on
// hosts whose kernel has no vhost_vsock (docs/decisions/0019-hand-made.md).
//
// QEMU speaks the vhost-user protocol with it (docs/interop/vhost-user.rst of QEMU), as
// `-device vhost-user-vsock-pci`, and shares the guest's memory. The device implements the
// streams of Virtio 1.2, section 5.10. The guest can connect to the host, CID 2; the host
// cannot connect to the guest.
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

// Host is the CID of the host.
const Host = 2

// A Device is the device of one guest, across restarts of the guest.
type Device struct {
	cid  uint32
	dial Dial
	log  *slog.Logger
	ln   *net.UnixListener
}

// Dial opens the host's side of a connection of the guest to a port. An error refuses the
// connection. It must be safe for concurrent use.
type Dial func(port uint32) (net.Conn, error)

// Open creates the socket that QEMU connects to, at a path of at most 107 bytes. cid is that
// of the guest, 3 or more.
func Open(path string, cid uint32, dial Dial, log *slog.Logger) (*Device, error) {
	if cid <= Host || cid == 1<<32-1 {
		return nil, fmt.Errorf("vsockdev: CID %d is reserved: %w", cid, fault.ErrInvalid)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("vsockdev: %w", err)
	}
	return &Device{cid: cid, dial: dial, log: log, ln: ln}, nil
}

// Run serves one QEMU process at a time until ctx ends. The end of a QEMU process closes the
// connections of its guest.
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

// Close removes the socket. A concurrent Run returns when its QEMU process ends.
func (d *Device) Close() error {
	if err := d.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Args returns QEMU's arguments for a device at this socket. The guest's memory must be
// shared: `-object memory-backend-memfd,id=memory,share=on,size=N` and `-machine
// memory-backend=memory`.
func Args(path string) []string {
	return []string{"-chardev", "socket,id=vsock,path=" + path, "-device", "vhost-user-vsock-pci,chardev=vsock"}
}

// serve serves one QEMU process until it disconnects.
func (d *Device) serve(ctx context.Context, c *net.UnixConn) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	s := newSession(d, c)
	defer func() { err = errors.Join(err, s.close(), ignoreClosed(c.Close())) }()
	for {
		m, err := receive(c)
		if err != nil {
			return ignoreEOF(err)
		}
		if err := s.handle(&m); err != nil {
			return fmt.Errorf("request %d: %w", m.request, err)
		}
	}
}

// ignoreClosed returns nil for errors of closing twice.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

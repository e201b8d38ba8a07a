package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// receive reads one connection to its end. It prints a line on standard error when it is
// ready.
func receive(listen string) (int64, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	fmt.Fprintln(os.Stderr, "ready")
	c, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	return io.Copy(io.Discard, c)
}

// send sends the given number of bytes, waits until the peer has received them, and reads
// TCP_INFO.
func send(to string, bytes int64, d *result) error {
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	c := conn.(*net.TCPConn)
	block := make([]byte, 64<<10)
	for d.Bytes < bytes {
		n, err := c.Write(block[:min(int64(len(block)), bytes-d.Bytes)])
		d.Bytes += int64(n)
		if err != nil {
			return err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	// The peer closes when it has read everything.
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	return info(c, d)
}

func info(c *net.TCPConn, d *result) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var t *unix.TCPInfo
	var terr error
	err = raw.Control(func(fd uintptr) { t, terr = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil {
		return err
	}
	if terr != nil {
		return terr
	}
	d.Segments, d.Sent = int64(t.Segs_out), int64(t.Bytes_sent)
	return nil
}

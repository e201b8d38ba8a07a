package net_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// datagram is the payload of the datagrams that peers send.
const datagram = 1200

// peer answers each line of its input, until the end: "listen ADDRESS" serves TCP and UDP there, "tcp ADDRESS BYTES" sends
// bytes over one connection, "short ADDRESS N BYTES" sends them over each of N connections, one after another, "leave
// ADDRESS N BYTES" does so and closes each at once, "udp ADDRESS N" sends N datagrams, "udpfrom ADDRESS N PORT" does so from a
// port, and "query ADDRESS N" sends each from a port of its own and waits for an answer of the same size. The answer to those that send is what TCP_INFO has of the connections: bytes
// and segments sent, bytes sent again, and segments received; and of datagrams their payload and number.
func peer() error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var what, addr string
		var n, size int64
		_, _ = fmt.Sscan(in.Text(), &what, &addr, &n, &size)
		var sum sentSum
		var err error
		switch what {
		case "listen":
			err = serve(addr)
		case "tcp":
			err = sum.send(addr, n)
		case "short":
			for range n {
				if err = sum.send(addr, size); err != nil {
					break
				}
			}
		case "leave":
			for range n {
				if err = leave(addr, size); err != nil {
					break
				}
			}
		case "udp":
			err = sum.datagrams(addr, n, 0)
		case "udpfrom":
			err = sum.datagrams(addr, n, int(size))
		case "query":
			err = sum.query(addr, n)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		fmt.Println(sum.bytes, sum.segments, sum.again, sum.received)
	}
	return in.Err()
}

// sentSum is what was sent: the payload with that of retransmissions, segments, the payload that was sent again, and segments
// received.
type sentSum struct{ bytes, segments, again, received int64 }

func serve(addr string) error {
	l, err := stdnet.Listen("tcp", addr)
	if err != nil {
		return err
	}
	u, err := stdnet.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	go func() {
		buf := make([]byte, 65536)
		for n := 1; ; n++ {
			size, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			switch {
			case size == 1+datagram:
				_, _ = u.WriteTo(buf[:size], from)
				n--
			case n%burst == 0:
				_, _ = u.WriteTo([]byte{1}, from)
			}
		}
	}()
	return nil
}

// burst is how many datagrams are sent until one is answered, with one byte.
const burst = 32

// send sends bytes over a connection, and returns when the other end has closed it too.
func (s *sentSum) send(addr string, size int64) error {
	conn, err := stdnet.Dial("tcp", addr)
	if err != nil {
		return err
	}
	c := conn.(*stdnet.TCPConn)
	defer func() { _ = c.Close() }()
	if _, err := io.CopyN(c, zero{}, size); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("instead of the end: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	if failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	s.bytes += int64(info.Bytes_sent)
	s.segments += int64(info.Segs_out)
	s.again += int64(info.Bytes_retrans)
	s.received += int64(info.Segs_in)
	return nil
}

// leave sends bytes over a connection and closes it without waiting for the other end.
func leave(addr string, size int64) error {
	c, err := stdnet.Dial("tcp", addr)
	if err != nil {
		return err
	}
	_, err = c.Write(make([]byte, size))
	return errors.Join(err, c.Close())
}

func (s *sentSum) datagrams(addr string, n int64, port int) error {
	c, err := (&stdnet.Dialer{LocalAddr: &stdnet.UDPAddr{Port: port}}).Dial("udp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	buf := make([]byte, datagram)
	for i := range n {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		s.bytes, s.segments = s.bytes+datagram, s.segments+1
		if (i+1)%burst == 0 {
			if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return err
			}
			s.received++
		}
	}
	return nil
}

// query sends datagrams from a port each, one byte larger than others, and waits for the answers.
func (s *sentSum) query(addr string, n int64) error {
	buf := make([]byte, 1+datagram)
	for range n {
		c, err := stdnet.Dial("udp", addr)
		if err != nil {
			return err
		}
		if _, err = c.Write(buf); err == nil {
			if err = c.SetReadDeadline(time.Now().Add(10 * time.Second)); err == nil {
				_, err = c.Read(buf)
			}
		}
		if err := errors.Join(err, c.Close()); err != nil {
			return err
		}
		s.bytes, s.segments, s.received = s.bytes+int64(len(buf)), s.segments+1, s.received+1
	}
	return nil
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

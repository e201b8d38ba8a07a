package bpf_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/fault"
)

// actions are what a child process can do; each returns one line for its parent.
var actions = map[string]func(args []string) (string, error){
	"burn":   burn,
	"forks":  forks,
	"write":  write,
	"tcp":    tcp,
	"udp":    udp,
	"wait":   func([]string) (string, error) { return "waited", nil },
	"memory": useMemory,
	"open":   open,
}

// open opens the given parts and returns the error as text.
func open(args []string) (string, error) {
	parts, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil {
		return "", err
	}
	cfg := bpf.Default()
	cfg.Parts = bpf.Part(parts)
	_, err = bpf.Open(cfg)
	if errors.Is(err, fault.ErrDenied) && !errors.Is(err, fault.ErrUnsupported) {
		return "denied", nil
	}
	return strings.ReplaceAll(fmt.Sprint(err), "\n", " "), nil
}

// burn uses the given amount of CPU time.
func burn(args []string) (string, error) {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return "", err
	}
	var ts unix.Timespec
	for end := int64(0); ; {
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
			return "", err
		}
		switch {
		case end == 0: // its start, perhaps in another group, does not count
			end = ts.Nano() + d.Nanoseconds()
		case ts.Nano() > end:
			return "burnt", nil
		}
	}
}

// forks runs the given number of processes, one after another.
func forks(args []string) (string, error) {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	for range n {
		if err := exec.Command("/bin/true").Run(); err != nil {
			return "", err
		}
	}
	return "forked", nil
}

// write writes a file with direct I/O or with fsync, and reads it back.
func write(args []string) (string, error) {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	flags := os.O_RDWR | os.O_CREATE | os.O_EXCL
	if args[2] == "direct" {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(args[0], flags, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	// Direct I/O needs aligned memory, such as a mapping.
	const block = 1 << 20
	buf, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "", err
	}
	for i := range buf {
		buf[i] = byte(i)
	}
	for n := 0; n < size; n += block {
		if _, err := f.Write(buf); err != nil {
			return "", err
		}
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	if args[2] == "direct" {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		for n := 0; n < size; n += block {
			if _, err := io.ReadFull(f, buf); err != nil {
				return "", err
			}
		}
	}
	return "written", nil
}

// useMemory touches the given number of bytes.
func useMemory(args []string) (string, error) {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return "", err
	}
	mem[0] = 1
	return "used", nil
}

// tcp sends the given number of bytes over the loopback of its network namespace, with
// Ethernet-sized packets, from a client with the given address if it is not empty. It returns the TCP_INFO of both sockets: bytes sent, segments
// sent, bytes received, segments received, segments retransmitted.
func tcp(args []string) (string, error) {
	size, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return "", err
	}
	if err := raiseLoopback(); err != nil {
		return "", err
	}
	ln, err := net.Listen("tcp", args[1])
	if err != nil {
		return "", err
	}
	dialer := net.Dialer{}
	if args[2] != "" {
		if dialer.LocalAddr, err = net.ResolveTCPAddr("tcp", args[2]); err != nil {
			return "", err
		}
	}
	client, err := dialer.Dial("tcp", ln.Addr().String())
	if err != nil {
		return "", err
	}
	server, err := ln.Accept()
	if err != nil {
		return "", err
	}
	// Closing them would send more packets, so both stay open until the process ends.
	keepOpen = []io.Closer{ln, client, server}

	failed := make(chan error, 1)
	go func() {
		_, err := io.CopyN(client, zeroes{}, size)
		failed <- err
	}()
	if _, err := io.CopyN(io.Discard, server, size); err != nil {
		return "", err
	}
	if err := <-failed; err != nil {
		return "", err
	}
	var sum [5]uint64
	for _, c := range []net.Conn{client, server} {
		info, err := settled(c.(*net.TCPConn))
		if err != nil {
			return "", err
		}
		sum[0] += info.Bytes_sent
		sum[1] += uint64(info.Segs_out)
		sum[2] += info.Bytes_received
		sum[3] += uint64(info.Segs_in)
		sum[4] += uint64(info.Total_retrans)
	}
	return strings.Trim(fmt.Sprint(sum), "[]"), nil
}

var keepOpen []io.Closer

// datagram is the payload of the datagrams of udp.
const datagram = 1000

// udp sends datagrams over the loopback of its network namespace, where all addresses of 127.0.0.0/8 and of fd00::/8
// are. Each line of its input says from where, to where and how many; it answers each one when all are received, and
// ends with an empty one.
func udp([]string) (string, error) {
	if err := raiseLoopback(); err != nil {
		return "", err
	}
	// Addresses that are added would be there some time later only.
	if err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0); err != nil {
		return "", err
	}
	if out, err := exec.Command("ip", "-6", "route", "add", "local", "fd00::/8", "dev", "lo").CombinedOutput(); err != nil {
		return "", fmt.Errorf("ip: %w: %s", err, out)
	}
	fmt.Println("up")
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != ""; {
		var from, to string
		var n int
		if _, err := fmt.Sscan(in.Text(), &from, &to, &n); err != nil {
			return "", err
		}
		if err := sendDatagrams(net.ParseIP(from), net.ParseIP(to), n); err != nil {
			return "", err
		}
		fmt.Println("sent")
	}
	return "done", nil
}

func sendDatagrams(from, to net.IP, n int) error {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: to})
	if err != nil {
		return err
	}
	client, err := net.DialUDP("udp", &net.UDPAddr{IP: from}, server.LocalAddr().(*net.UDPAddr))
	if err != nil {
		return errors.Join(err, server.Close())
	}
	err = server.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, datagram)
	for i := 0; i < n && err == nil; i++ {
		if _, err = client.Write(buf); err != nil {
			break
		}
		_, err = server.Read(buf)
	}
	return errors.Join(err, client.Close(), server.Close())
}

// settled returns TCP_INFO once everything is acknowledged.
func settled(c *net.TCPConn) (info *unix.TCPInfo, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		cerr := raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		if cerr != nil || err != nil {
			return nil, fmt.Errorf("%w %w", cerr, err)
		}
		if info.Unacked == 0 && info.Notsent_bytes == 0 {
			return info, nil
		}
		time.Sleep(time.Millisecond)
	}
}

func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint32(1500)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, ifr); err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

package exclusive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Constants of include/uapi/linux/sock_diag.h and unix_diag.h.
const (
	sockDiagByFamily = 20
	showName         = 0x01
	showUID          = 0x40
	attrName         = 0
	attrUID          = 7 // since Linux 5.3
	stateListen      = 10
)

// diagLimit is how long the kernel may take to send its list.
const diagLimit = 5 * time.Second

// listeners asks the kernel, by sock_diag(7), which users created the listening abstract
// unix sockets whose names begin with start. It needs no privilege, and the holders of the
// sockets take no part, so they cannot withhold the answer. A user outside this user
// namespace is the overflow user.
func listeners(start string) (map[string]uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	limit := unix.NsecToTimeval(int64(diagLimit))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	// A struct nlmsghdr, then a struct unix_diag_req.
	q := make([]byte, unix.NLMSG_HDRLEN+24)
	n := binary.NativeEndian
	n.PutUint32(q, uint32(len(q)))
	n.PutUint16(q[4:], sockDiagByFamily)
	n.PutUint16(q[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	q[unix.NLMSG_HDRLEN] = unix.AF_UNIX
	n.PutUint32(q[unix.NLMSG_HDRLEN+4:], 1<<stateListen)
	n.PutUint32(q[unix.NLMSG_HDRLEN+12:], showName|showUID)
	if err := unix.Sendto(fd, q, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	users := map[string]uint32{}
	b := make([]byte, 64<<10)
	for {
		got, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		done, err := parseMessages(b[:got], start, users)
		if done || err != nil {
			return users, err
		}
	}
}

// parseMessages reads the messages of one datagram; done is true after the last one.
func parseMessages(b []byte, start string, users map[string]uint32) (done bool, err error) {
	n := binary.NativeEndian
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(n.Uint32(b))
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			break
		}
		body := b[unix.NLMSG_HDRLEN:length]
		switch n.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("sock_diag: an error message without a number")
			}
			return false, fmt.Errorf("sock_diag: %w", unix.Errno(-int32(n.Uint32(body))))
		case sockDiagByFamily:
			name, uid, owned := parseSocket(body)
			text, abstract := strings.CutPrefix(name, "\x00")
			switch {
			case !abstract || !strings.HasPrefix(text, start):
			case !owned:
				return false, fmt.Errorf("sock_diag: the kernel does not report users: %w", fault.ErrUnsupported)
			default:
				users[text] = uid
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return false, nil
}

// parseSocket reads a struct unix_diag_msg, of 16 bytes, and its attributes; owned is false
// without a user attribute.
func parseSocket(b []byte) (name string, uid uint32, owned bool) {
	n := binary.NativeEndian
	for b = b[min(16, len(b)):]; len(b) >= 4; {
		length := int(n.Uint16(b))
		if length < 4 || length > len(b) {
			break
		}
		switch value := b[4:length]; n.Uint16(b[2:]) {
		case attrName:
			name = string(value)
		case attrUID:
			if len(value) == 4 {
				uid, owned = n.Uint32(value), true
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return name, uid, owned
}

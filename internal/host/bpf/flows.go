package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// maxTranslated is for how many connections to translated addresses there is room. Of those beyond, the latest are known.
const maxTranslated = 1 << 16

// A flow is a connection before its destination is translated, as struct flow of flows.h.
type flow struct {
	source, destination [16]byte // IPv4 in the first four
	ports               [4]byte  // of both, in network byte order
	protocol            uint8
	six                 uint8 // 1 if the addresses are of IPv6
	_                   uint16
}

// A realEnd is what is behind the destination of a flow, as struct real_end of flows.h.
type realEnd struct {
	address [16]byte
	port    [2]byte // in network byte order
	here    uint16
}

// A service is a destination that is translated, as struct service of flows.h.
type service struct {
	Address  [16]byte
	Port     [2]byte
	Protocol uint8
	Six      uint8
}

// FollowTranslations gives the traffic of connections whose destination the network namespace of the calling thread
// translates the class of their real end, in both directions and from the first packet on. Addresses that have a class by [Kernel.SetClasses] keep
// it. Existing connections count from now on. The error wraps fault.ErrUnsupported where the
// namespace tracks no connections yet: a later call may succeed. It follows one namespace, and more calls do nothing.
func (k *Kernel) FollowTranslations() error {
	if err := errors.Join(k.Err(Classes), k.count.eventsErr); err != nil {
		return err
	}
	if k.count.followed {
		return nil
	}
	// To open the socket would make the kernel load the module.
	switch b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_events"); {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("bpf: the machine tracks no connections: %w", fault.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("bpf: connection tracking: %w", classify(err))
	case strings.TrimSpace(string(b)) == "0":
		return fmt.Errorf("bpf: the sysctl net.netfilter.nf_conntrack_events is 0: %w", fault.ErrUnsupported)
	}
	if err := k.count.follow(k); err != nil {
		return fmt.Errorf("bpf: connection tracking: %w", classify(err))
	}
	k.count.followed = true
	return nil
}

// Numbers of include/uapi/linux/netfilter/nfnetlink_compat.h, nfnetlink.h and nfnetlink_conntrack.h of Linux.
const (
	groupNew, groupDestroy = 1, 4 // bits
	subsysConntrack        = 1
	msgNew, msgGet         = 0, 1

	attrOriginal, attrReply, attrZone              = 1, 2, 18
	attrAddresses, attrPorts, attrTupleZone        = 1, 2, 3
	attrSource4, attrDest4, attrSource6, attrDest6 = 1, 2, 3, 4
	attrProtocol, attrSourcePort, attrDestPort     = 1, 2, 3
)

func (c *countPart) follow(k *Kernel) error {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	// The program drops every event, so nothing is ever queued.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, c.events.FD())
	if err == nil {
		err = c.maps["following"].Put(uint32(0), k.following(ns.Ino))
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupNew | groupDestroy})
	}
	if err == nil {
		err = k.addTranslated(ns.Ino)
	}
	if err != nil {
		_ = c.maps["following"].Put(uint32(0), &countFlowState{})
		return errors.Join(err, unix.Close(fd))
	}
	k.onClose(func() error { return unix.Close(fd) })
	return nil
}

// addTranslated adds existing connections. The kernel may not report the end of these, so they take at most half of
// the room.
func (k *Kernel) addTranslated(netns uint64) error {
	c := &k.count
	room := maxTranslated / 2
	var failed error
	err := dumpConnections(func(f flow, e realEnd) {
		if room == 0 || failed != nil {
			return
		}
		room--
		// An entry that exists comes from an event, which is newer.
		if failed = c.maps["real_ends"].Update(&f, &e, ebpf.UpdateNoExist); failed == nil || errors.Is(failed, ebpf.ErrKeyExist) {
			failed = c.maps["services"].Put(&service{f.destination, [2]byte(f.ports[2:]), f.protocol, f.six}, uint8(1))
		}
	})
	if err = errors.Join(err, failed); err != nil || room == maxTranslated/2 {
		return err
	}
	state := k.following(netns)
	state.Seen = 1
	return c.maps["following"].Put(uint32(0), state)
}

// following is the state in which the connection tracking of a namespace is followed. The programs that count are those by edge, if
// the kernel took these.
func (k *Kernel) following(netns uint64) *countFlowState {
	s := &countFlowState{Netns: netns}
	if k.Err(Connections) == nil {
		s.ByEdge = 1
	}
	return s
}

// dumpConnections calls f with each translated connection of the thread's network namespace.
func dumpConnections(f func(flow, realEnd)) (err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return err
	}
	request := make([]byte, unix.SizeofNlMsghdr+4)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], subsysConntrack<<8|msgGet)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for buf := make([]byte, 64<<10); ; {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		done, err := connections(buf[:n], f)
		if done || err != nil {
			return err
		}
	}
}

// connections calls f with each translated connection of a part of a dump. done says that it was the last one.
func connections(b []byte, f func(flow, realEnd)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fmt.Errorf("message of %d bytes: %w", size, fault.ErrInvalid)
		}
		m := b[unix.SizeofNlMsghdr:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(m) >= 4 {
				err = unix.Errno(-int32(binary.NativeEndian.Uint32(m)))
			}
			return true, err
		case subsysConntrack<<8 | msgNew:
			if one, end, ok := connection(m); ok {
				f(one, end)
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return false, nil
}

// connection returns the connection of a message if its destination is translated.
func connection(m []byte) (f flow, end realEnd, ok bool) {
	if len(m) < 4 {
		return f, end, false
	}
	all := attributes(m[4:])
	original, ok := tuple(all[attrOriginal])
	reply, both := tuple(all[attrReply])
	if !ok || !both || all[attrZone] != nil || original.six != reply.six || original.destination == reply.source {
		return f, end, false
	}
	end.address, end.port = reply.source, [2]byte(reply.ports[:2])
	if reply.source == original.source || original.six == 0 && reply.source[0] == 127 {
		end.here = 1
	}
	return original, end, true
}

func tuple(b []byte) (f flow, ok bool) {
	all := attributes(b)
	addresses, ports := attributes(all[attrAddresses]), attributes(all[attrPorts])
	source, dest, size := addresses[attrSource4], addresses[attrDest4], 4
	if source == nil {
		source, dest, size = addresses[attrSource6], addresses[attrDest6], 16
	}
	protocol, from, to := ports[attrProtocol], ports[attrSourcePort], ports[attrDestPort]
	if len(source) != size || len(dest) != size || len(protocol) != 1 || len(from) != 2 || len(to) != 2 || all[attrTupleZone] != nil {
		return f, false
	}
	copy(f.source[:], source)
	copy(f.destination[:], dest)
	copy(f.ports[:2], from)
	copy(f.ports[2:], to)
	f.protocol = protocol[0]
	if size == 16 {
		f.six = 1
	}
	return f, true
}

// attributes returns the attributes of netlink in b by their type.
func attributes(b []byte) (all [32][]byte) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		if kind := int(binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)); kind < len(all) {
			all[kind] = b[unix.SizeofNlAttr:size:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return all
}

// Services calls f with the destinations that were translated lately: the address of each of their ports.
func (k *Kernel) Services(f func(netip.Addr)) error {
	if !k.count.followed {
		return nil
	}
	const batch = 256
	var cursor ebpf.MapBatchCursor
	keys, values := make([]service, batch), make([]uint8, batch)
	for {
		n, err := k.count.maps["services"].BatchLookup(&cursor, keys, values, nil)
		for _, s := range keys[:n] {
			if s.Six != 0 {
				f(netip.AddrFrom16(s.Address))
			} else {
				f(netip.AddrFrom4([4]byte(s.Address[:4])))
			}
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("bpf: translated addresses: %w", classify(err))
		}
	}
}

package sameuser

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// socketOwner returns the user of the TCP socket with these addresses, by the tables tcp and
// tcp6 in dir. ok is false if no process has such a socket. A connection that no process has
// accepted yet, or that its process has closed, is listed without an inode, and as root's: it
// does not count.
func socketOwner(dir string, local, remote netip.AddrPort) (uid uint32, ok bool, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		uid, ok, err := ownerIn(filepath.Join(dir, name), unmapped(local), unmapped(remote))
		if name == "tcp6" && errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no IPv6
		}
		if ok || err != nil {
			return uid, ok, err
		}
	}
	return 0, false, nil
}

func ownerIn(path string, local, remote netip.AddrPort) (uid uint32, ok bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = f.Close() }() // it was only read
	// proc(5): sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[0] == "sl" || fields[9] == "0" {
			continue
		}
		if at, err := parseAddress(fields[1]); err != nil || at != local {
			if err != nil {
				return 0, false, fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		if at, err := parseAddress(fields[2]); err != nil || at != remote {
			if err != nil {
				return 0, false, fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		id, err := strconv.ParseUint(fields[7], 10, 32)
		if err != nil {
			return 0, false, fmt.Errorf("%s: uid: %w", path, err)
		}
		return uint32(id), true, nil
	}
	return 0, false, lines.Err()
}

// parseAddress parses an address as the kernel prints it: the bytes of each 32-bit word in the
// order of the machine, then the port.
func parseAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", text, err)
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("address %q is not one", text)
	}
	return unmapped(netip.AddrPortFrom(ip, uint16(n))), nil
}

// unmapped returns an address without the forms that the same IPv4 address has in IPv6.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

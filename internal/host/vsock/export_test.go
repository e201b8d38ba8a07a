package vsock

import "net"

// NewConn makes a connection of a socket of any family.
func NewConn(fd int) net.Conn { return newConn(fd, Addr{}) }

package vsockdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Requests of the vhost-user protocol that QEMU sends to a device with two rings.
const (
	getFeatures = iota + 1
	setFeatures
	setOwner
	resetOwner
	setMemory
	_ // for migration
	_
	setNum
	setAddr
	setBase
	getBase
	setKick
	setCall
	setErr
	getProtocol
	setProtocol

	setEnable = 18
	getConfig = 24
)

const (
	version   = 1      // in the flags of each message
	reply     = 1 << 2 // in the flags of replies
	mostBytes = 4096
	mostFDs   = 8

	// Features of the device and of the protocol.
	virtioVersion1   = 1 << 32
	protocolFeatures = 1 << 30
	protocolConfig   = 1 << 9

	noDescriptor = 1 << 8 // flag in the ring number of a message
)

// A message is a vhost-user message of QEMU.
type message struct {
	request uint32
	payload []byte
	fds     []int
}

// receive reads a message and its file descriptors.
func receive(c *net.UnixConn) (m message, err error) {
	var head [12]byte
	oob := make([]byte, unix.CmsgSpace(4*mostFDs))
	n, oobn, _, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return m, err
	}
	if m.fds, err = descriptors(oob[:oobn]); err != nil {
		return m, err
	}
	if n == 0 {
		return m, io.EOF
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return m, errors.Join(err, m.close())
	}
	m.request = binary.LittleEndian.Uint32(head[:])
	size := binary.LittleEndian.Uint32(head[8:])
	if size > mostBytes {
		return m, errors.Join(fmt.Errorf("request %d of %d bytes", m.request, size), m.close())
	}
	m.payload = make([]byte, size)
	if _, err := io.ReadFull(c, m.payload); err != nil {
		return m, errors.Join(err, m.close())
	}
	return m, nil
}

// descriptors returns the file descriptors of a control message.
func descriptors(oob []byte) (fds []int, err error) {
	all, err := unix.ParseSocketControlMessage(oob)
	for _, c := range all {
		some, e := unix.ParseUnixRights(&c)
		fds, err = append(fds, some...), errors.Join(err, e)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, err
}

// close closes the descriptors that remain in the message.
func (m *message) close() (err error) {
	for _, fd := range m.fds {
		err = errors.Join(err, unix.Close(fd))
	}
	m.fds = nil
	return err
}

// take removes and returns the descriptor of a message, or -1 if it has none.
func (m *message) take() int {
	if len(m.fds) == 0 {
		return -1
	}
	fd := m.fds[0]
	m.fds = m.fds[1:]
	return fd
}

// handle handles a message.
func (s *session) handle(m *message) (err error) {
	defer func() { err = errors.Join(err, m.close()) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	le := binary.LittleEndian
	switch m.request {
	case getFeatures:
		return s.answer(m, le.AppendUint64(nil, virtioVersion1|protocolFeatures))
	case getProtocol:
		return s.answer(m, le.AppendUint64(nil, protocolConfig))
	case setFeatures, setProtocol, setOwner, resetOwner, setErr:
		return nil
	case getConfig:
		return s.config(m)
	case setMemory:
		return s.remap(m)
	}
	if len(m.payload) < 8 {
		return fmt.Errorf("payload of %d bytes", len(m.payload))
	}
	n := le.Uint32(m.payload) &^ noDescriptor
	if n >= uint32(len(s.rings)) {
		return fmt.Errorf("ring %d", n)
	}
	return s.handleRing(m, int(n))
}

// handleRing handles a message about one ring.
func (s *session) handleRing(m *message, n int) error {
	r, le := &s.rings[n], binary.LittleEndian
	value := le.Uint32(m.payload[4:])
	switch m.request {
	case setNum:
		if value == 0 || value > mostRing {
			return fmt.Errorf("ring size %d", value)
		}
		r.num = uint16(value)
	case setAddr:
		if len(m.payload) < 40 {
			return fmt.Errorf("of %d bytes", len(m.payload))
		}
		for i := range r.addr {
			r.addr[i] = le.Uint64(m.payload[8+8*i:])
		}
	case setBase:
		r.base = uint16(value)
	case getBase:
		err := s.stop(n)
		return errors.Join(err, s.answer(m, le.AppendUint32(le.AppendUint32(nil, uint32(n)), uint32(r.base))))
	case setKick:
		return s.start(n, m.take())
	case setCall:
		if err := closeFD(&r.call); err != nil {
			return err
		}
		if r.call = m.take(); r.on {
			return r.notify() // the guest may have missed a notification
		}
	case setEnable:
		// QEMU enables only rings that it has started, and stops rings before it disables
		// them.
	default:
		return errors.New("unknown request")
	}
	return nil
}

// answer replies to a message. The write does not block, because QEMU waits for the reply.
func (s *session) answer(m *message, payload []byte) error {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, m.request)
	b = le.AppendUint32(b, version|reply)
	b = le.AppendUint32(b, uint32(len(payload)))
	_, err := s.front.Write(append(b, payload...))
	return err
}

// config answers with the configuration of the device: the guest's CID.
func (s *session) config(m *message) error {
	const head = 12
	if len(m.payload) < head {
		return fmt.Errorf("of %d bytes", len(m.payload))
	}
	whole := binary.LittleEndian.AppendUint64(nil, uint64(s.d.cid))
	b := append([]byte(nil), m.payload...)
	if from := binary.LittleEndian.Uint32(b); from < uint32(len(whole)) {
		copy(b[head:], whole[from:])
	}
	return s.answer(m, b)
}

// remap replaces the mapping of the guest's memory.
func (s *session) remap(m *message) error {
	mem, err := mapMemory(m.payload, m.fds)
	if err != nil {
		return err
	}
	old := s.mem
	s.mem = mem
	for i := range s.rings {
		if r := &s.rings[i]; r.on {
			if err := r.locate(mem); err != nil {
				return err
			}
		}
	}
	return old.unmap()
}

// start starts a ring whose eventfd is kick.
func (s *session) start(n, kick int) error {
	r := &s.rings[n]
	if kick < 0 {
		return errors.New("no descriptor: polled rings are not supported")
	}
	if r.num == 0 {
		return errors.Join(errors.New("ring without a size"), unix.Close(kick))
	}
	if err := errors.Join(s.stop(n), r.locate(s.mem), unix.SetNonblock(kick, true)); err != nil {
		return errors.Join(err, unix.Close(kick))
	}
	f := os.NewFile(uintptr(kick), "kick")
	s.kicks[n], r.on = f, true
	s.work.Go(func() { s.wait(n, f) })
	return s.turn()
}

// stop stops a ring and closes its eventfd.
func (s *session) stop(n int) error {
	s.rings[n].on = false
	f := s.kicks[n]
	if f == nil {
		return nil
	}
	s.kicks[n] = nil
	return f.Close()
}

// wait calls turn each time that the guest kicks a ring.
func (s *session) wait(n int, kick *os.File) {
	var b [8]byte
	for {
		if _, err := kick.Read(b[:]); err != nil {
			return // closed
		}
		s.mu.Lock()
		var err error
		if s.kicks[n] == kick {
			err = s.turn()
		}
		s.mu.Unlock()
		if err != nil {
			s.d.log.Warn("vsock device", "err", err)
			_ = s.front.Close() // ends serve
			return
		}
	}
}

// closeFD closes a descriptor unless it is -1.
func closeFD(fd *int) error {
	if *fd < 0 {
		return nil
	}
	err := unix.Close(*fd)
	*fd = -1
	return err
}

// ignoreEOF returns nil for errors that report the end of a connection.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

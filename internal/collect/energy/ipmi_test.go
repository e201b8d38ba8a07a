package energy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// An ipmiKernel is the kernel's side of an IPMI device. A pipe tells, as the kernel does, that a
// message waits.
type ipmiKernel struct {
	t       *testing.T
	pipe    [2]int
	waiting []deviceMessage
	sent    []unix.IPMIReq
	asked   [][]byte
	refuses error // the result of the next call
}

type deviceMessage struct {
	kind int32
	id   int64
	data []byte
}

// newDevice returns an open device that does not wait for answers.
func newDevice(t *testing.T) (*ipmiKernel, *ipmi) {
	t.Helper()
	k := &ipmiKernel{t: t}
	if err := unix.Pipe2(k.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	d := &ipmi{fd: k.pipe[0], path: "/dev/ipmi0", control: k.control}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), unix.Close(k.pipe[1])); err != nil {
			t.Error(err)
		}
	})
	return k, d
}

// give puts a message into the queue.
func (k *ipmiKernel) give(kind int32, id int64, data ...byte) {
	k.t.Helper()
	k.waiting = append(k.waiting, deviceMessage{kind, id, data})
	if _, err := unix.Write(k.pipe[1], []byte{1}); err != nil {
		k.t.Fatal(err)
	}
}

func (k *ipmiKernel) control(request uintptr, argument unsafe.Pointer) error {
	if err := k.refuses; err != nil {
		k.refuses = nil
		return err
	}
	if request == unix.IPMICTL_SEND_COMMAND {
		r := *(*unix.IPMIReq)(argument)
		k.sent = append(k.sent, r)
		k.asked = append(k.asked, slices.Clone(unsafe.Slice(r.Msg.Data, r.Msg.Len)))
		return nil
	}
	if _, err := unix.Read(k.pipe[0], make([]byte, 1)); err != nil {
		return err
	}
	m := k.waiting[0]
	k.waiting = k.waiting[1:]
	r := (*unix.IPMIRecv)(argument)
	into := unsafe.Slice(r.Msg.Data, r.Msg.Len)
	if len(m.data) > len(into) {
		return unix.EMSGSIZE
	}
	r.Recv_type, r.Msgid, r.Msg.Len = m.kind, m.id, uint16(copy(into, m.data))
	return nil
}

const event = unix.IPMI_RESPONSE_RECV_TYPE + 1 // IPMI_ASYNC_EVENT_RECV_TYPE

// A request has the answer with its id: events and answers to earlier requests are skipped.
func TestIPMIAnswer(t *testing.T) {
	k, d := newDevice(t)
	longest := make([]byte, 272) // the kernel's IPMI_MAX_MSG_LENGTH
	for i, want := range [][]byte{{0, 1, 2}, {}, longest} {
		id := int64(i + 1)
		k.give(event, id, 7)
		k.give(unix.IPMI_RESPONSE_RECV_TYPE, id-1, 8)
		k.give(unix.IPMI_RESPONSE_RECV_TYPE, id, want...)
		got, err := d.Ask(0x2c, 2, []byte{5, 6, byte(i)})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("request %d: % x, %v, want % x", id, got, err, want)
		}
		r := k.sent[i]
		if r.Msgid != id || r.Msg.Netfn != 0x2c || r.Msg.Cmd != 2 || !slices.Equal(k.asked[i], []byte{5, 6, byte(i)}) {
			t.Errorf("sent %+v with % x", r, k.asked[i])
		}
	}
}

// While a request has no answer no further one is sent, and the late answer is not taken for that to the
// next request.
func TestIPMILate(t *testing.T) {
	k, d := newDevice(t)
	for range 3 {
		if _, err := d.Ask(1, 2, []byte{3}); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "no answer") {
			t.Fatalf("without an answer: %v", err)
		}
	}
	if len(k.sent) != 1 {
		t.Fatalf("%d requests sent, want one", len(k.sent))
	}
	k.give(unix.IPMI_RESPONSE_RECV_TYPE, 1, 11)
	k.give(unix.IPMI_RESPONSE_RECV_TYPE, 2, 22)
	for _, want := range []byte{22, 33} {
		if got, err := d.Ask(1, 2, []byte{3}); err != nil || !slices.Equal(got, []byte{want}) {
			t.Errorf("then: %v, %v, want %d", got, err, want)
		}
		k.give(unix.IPMI_RESPONSE_RECV_TYPE, 3, 33)
	}
	if len(k.sent) != 3 {
		t.Errorf("%d requests sent, want 3", len(k.sent))
	}
}

// An error of a call is returned with the path of the device and does not count as a request without
// an answer unless the request was sent. Interrupted calls are repeated.
func TestIPMIErrors(t *testing.T) {
	k, d := newDevice(t)
	k.refuses = unix.EPERM
	if _, err := d.Ask(1, 2, []byte{3}); !errors.Is(err, fault.ErrDenied) || err.Error() != "/dev/ipmi0: operation not permitted" {
		t.Errorf("a request is refused: %v", err)
	}
	k.refuses = unix.EINTR
	k.give(unix.IPMI_RESPONSE_RECV_TYPE, 2, 22)
	if got, err := d.Ask(1, 2, []byte{3}); err != nil || !slices.Equal(got, []byte{22}) {
		t.Errorf("after an interrupted call: %v, %v", got, err)
	}
	if _, err := d.Ask(1, 2, []byte{3}); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	k.give(unix.IPMI_RESPONSE_RECV_TYPE, 3, make([]byte, 273)...)
	if _, err := d.Ask(1, 2, []byte{3}); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("the answer cannot be received: %v", err)
	}
	if len(k.sent) != 2 {
		t.Errorf("%d requests sent, want 2", len(k.sent))
	}
	calls := 0
	err := uninterrupted(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EIO
	})
	if calls != 3 || !errors.Is(err, unix.EIO) {
		t.Errorf("%d calls, then %v", calls, err)
	}
}

// The calls of the device are those of the kernel.
func TestIPMIControl(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(pipe[1], []byte("abc")); err != nil {
		t.Fatal(err)
	}
	n := int32(0)
	if err := ioctl(pipe[0], unix.TIOCINQ, unsafe.Pointer(&n)); err != nil || n != 3 {
		t.Errorf("%d bytes wait in a pipe, %v, want 3", n, err)
	}
	if err := ioctl(pipe[0], unix.IPMICTL_SEND_COMMAND, unsafe.Pointer(&n)); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a request to a pipe: %v", err)
	}
	if err := errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1])); err != nil {
		t.Error(err)
	}
	b, err := openIPMI("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := (&ipmi{fd: -1}).Close(); !errors.Is(err, unix.EBADF) {
		t.Errorf("Close of a closed device: %v", err)
	}
}

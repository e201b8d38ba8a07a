package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// answerTimeout is how long QEMU has to answer, all in all.
const answerTimeout = time.Second

// maxAnswer is how long QEMU's answers may be together, in bytes. Of one CPU it
// tells some 700.
const maxAnswer = 4 << 20

// An Exits is how often, and why, the CPUs of a virtual machine left guest mode
// since it was started, all of them together: what KVM counts, by the names that
// QEMU gives it ("exits" is all of them, "halt_exits", "io_exits"). Values whose
// names end in _ns are ns. What a machine does not count is not in it.
type Exits map[string]int64

// counted are the counters that are asked for: those of x86, and of arm64.
var counted = []string{"exits", "halt_exits", "io_exits", "mmio_exits", "irq_exits", "irq_window_exits", "request_irq_exits",
	"nmi_window_exits", "signal_exits", "notify_window_exits", "hypercalls", "irq_injections", "insn_emulation",
	"halt_wait_ns", "halt_poll_success_ns", "halt_poll_fail_ns",
	"wfi_exit_stat", "wfe_exit_stat", "hvc_exit_stat", "mmio_exit_user", "mmio_exit_kernel"}

// noExits is why QEMU has no counters although it answers.
const noExits = "QEMU counts none: it runs without KVM"

// QueryExits asks QEMU, once, how often the virtual machine's CPUs left guest mode. It
// takes a second at most, and costs each of these CPUs one such exit. Nobody else
// can talk to that monitor meanwhile, which is a few milliseconds.
//
// The error, with a hint where there is one, says why it is not known: it wraps
// fault.ErrUnsupported where there is no monitor to be joined, or one that does not
// count, fault.ErrUnavailable where QEMU does not answer in time, as while somebody
// else is joined, and fault.ErrConflict where the socket is another process's.
func QueryExits(ctx context.Context, h *hostfs.FS, v *VM) (Exits, error) {
	switch {
	case v.Monitor.Path == "":
		return nil, fault.WithHint(fmt.Errorf("%s: %w", v.Monitor.Why, fault.ErrUnsupported), v.Monitor.Hint)
	case !h.Live():
		return nil, fmt.Errorf("a captured machine: %w", fault.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := dial(ctx, h, v)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // nothing is left to send
	e, err := queryStats(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.WithHint(fmt.Errorf("QMP: no answer within %v: %w", answerTimeout, fault.ErrUnavailable),
			"QEMU answers one caller at a time on a socket: "+hintOption)
	}
	return e, err
}

// dial joins the monitor: in QEMU's own view of the file system, and only if it is
// QEMU that listens there, as its command line is its owner's to write.
func dial(ctx context.Context, h *hostfs.FS, v *VM) (*net.UnixConn, error) {
	at := h.Path(dir(v.PID) + "/cwd/" + v.Monitor.Path)
	if path.IsAbs(v.Monitor.Path) {
		at = h.Path(dir(v.PID)+"/root") + v.Monitor.Path
	}
	// By descriptor, as an address of a socket has 107 bytes at most.
	fd, err := unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		err = hostfs.Kind(v.Monitor.Path, err)
		if errors.Is(err, fault.ErrDenied) {
			err = fault.WithHint(err, "run as root, or as the user whose QEMU it is")
		}
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			err = hostfs.Kind(v.Monitor.Path, errno)
		}
		return nil, err
	}
	c := conn.(*net.UnixConn)
	if err := checkPeer(c, v.PID); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if by, ok := ctx.Deadline(); ok {
		err = c.SetDeadline(by)
	}
	return c, err
}

// checkPeer reports what is wrong where another process than pid listens.
func checkPeer(c *net.UnixConn, pid int32) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if who.Pid != pid {
		return fmt.Errorf("QMP: process %d listens on its socket: %w", who.Pid, fault.ErrConflict)
	}
	return nil
}

// queryStats speaks QMP: a greeting comes, capabilities are agreed upon, a question is
// asked (QEMU's docs/interop/qmp-spec).
func queryStats(rw io.ReadWriter) (Exits, error) {
	r := bufio.NewReader(io.LimitReader(rw, maxAnswer))
	greeting, err := readMessage(r)
	if err != nil {
		return nil, err
	}
	if greeting.QMP == nil {
		return nil, fmt.Errorf("QMP: no greeting: %w", fault.ErrInvalid)
	}
	if _, err := execute(rw, r, `{"execute":"qmp_capabilities"}`); err != nil {
		return nil, err
	}
	names, err := json.Marshal(counted)
	if err != nil {
		return nil, err
	}
	answer, err := execute(rw, r, `{"execute":"query-stats","arguments":{"target":"vcpu","providers":[{"provider":"kvm","names":`+string(names)+`}]}}`)
	if err != nil {
		return nil, err
	}
	return parseStats(answer)
}

// A message is a line of QMP.
type message struct {
	QMP    json.RawMessage `json:"QMP"`
	Event  string          `json:"event"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// execute sends a command and returns the answer, past events.
func execute(w io.Writer, r *bufio.Reader, command string) (json.RawMessage, error) {
	if _, err := io.WriteString(w, command+"\n"); err != nil {
		return nil, err
	}
	for {
		m, err := readMessage(r)
		switch {
		case err != nil:
			return nil, err
		case m.Error != nil && m.Error.Class == "CommandNotFound":
			return nil, fmt.Errorf("QEMU is older than 7.1, which tells: %w", fault.ErrUnsupported)
		case m.Error != nil:
			return nil, fmt.Errorf("QMP: %s: %w", printable(m.Error.Desc), fault.ErrUnsupported)
		case m.Return != nil:
			return m.Return, nil
		}
	}
}

// readMessage reads a line, past empty ones.
func readMessage(r *bufio.Reader) (m message, err error) {
	for {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) == 0 && err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			return m, fmt.Errorf("QMP: QEMU hung up, or told more than %d bytes: %w", maxAnswer, fault.ErrUnavailable)
		}
		if err != nil {
			return m, err
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return m, fmt.Errorf("QMP: %w: %w", err, fault.ErrInvalid)
		}
		return m, nil
	}
}

// parseStats sums up what query-stats answers, over the CPUs. Values that are no
// counts (switches, histograms) are left out.
func parseStats(answer []byte) (Exits, error) {
	var cpus []struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(answer, &cpus); err != nil {
		return nil, fmt.Errorf("QMP: query-stats: %w: %w", err, fault.ErrInvalid)
	}
	e := Exits{}
	for _, cpu := range cpus {
		for _, s := range cpu.Stats {
			if v, err := strconv.ParseInt(string(s.Value), 10, 64); err == nil && v >= 0 {
				if sum := e[s.Name] + v; sum >= 0 {
					e[s.Name] = sum
				}
			}
		}
	}
	if _, ok := e["exits"]; !ok {
		return nil, fmt.Errorf("%s: %w", noExits, fault.ErrUnsupported)
	}
	return e, nil
}

// Since returns how often each was counted from before to e, a second; of what is
// in ns, seconds a second. Else it says why that is not known.
func (e Exits) Since(before Exits, span time.Duration) (rates map[string]float64, why string) {
	if span <= 0 {
		return nil, "no time went by"
	}
	rates = map[string]float64{}
	for name, now := range e {
		then, ok := before[name]
		switch {
		case !ok:
			continue
		case now < then:
			return nil, "CPUs were taken away meanwhile"
		}
		rates[name] = float64(now-then) / span.Seconds()
		if strings.HasSuffix(name, "_ns") {
			rates[name] /= 1e9
		}
	}
	return rates, ""
}

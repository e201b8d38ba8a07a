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
	"mete.dev/mete/internal/x/peercred"
)

// answerTimeout is how long QEMU may take in total.
const answerTimeout = time.Second

// maxAnswer is the maximum length of QEMU's answers in total, in bytes. It sends about 700
// per CPU.
const maxAnswer = 4 << 20

// An Exits is how often, and why, the CPUs of a virtual machine left guest mode since it
// started, summed over the CPUs: KVM's counters by QEMU's names ("exits" is all of them,
// "halt_exits", "io_exits"). Values whose names end in _ns are ns. It omits what a machine
// does not count.
type Exits map[string]int64

// counted are the requested counters: those of x86 and of arm64.
var counted = []string{"exits", "halt_exits", "io_exits", "mmio_exits", "irq_exits", "irq_window_exits", "request_irq_exits",
	"nmi_window_exits", "signal_exits", "notify_window_exits", "hypercalls", "irq_injections", "insn_emulation",
	"halt_wait_ns", "halt_poll_success_ns", "halt_poll_fail_ns",
	"wfi_exit_stat", "wfe_exit_stat", "hvc_exit_stat", "mmio_exit_user", "mmio_exit_kernel"}

// noExits is why QEMU answers without counters.
const noExits = "QEMU counts none: it runs without KVM"

// QueryExits asks QEMU how often the virtual machine's CPUs left guest mode. It takes a
// second at most, and costs each of these CPUs one such exit. It occupies the monitor for a
// few milliseconds.
//
// The error, with a hint if there is one, wraps fault.ErrUnsupported without a usable
// monitor or counters, fault.ErrUnavailable if QEMU does not answer in time, for example
// while another client is connected, and fault.ErrConflict if the socket belongs to another
// process.
func QueryExits(ctx context.Context, h *hostfs.FS, v *VM) (Exits, error) {
	switch {
	case v.Monitor.Path == "":
		return nil, fault.WithHint(fmt.Errorf("%s: %w", v.Monitor.Why, fault.ErrUnsupported), v.Monitor.Hint)
	case !h.Live():
		return nil, fmt.Errorf("a captured machine: %w", fault.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var e Exits
	c, err := dial(ctx, h, v)
	if err == nil {
		defer func() { _ = c.Close() }() // nothing is left to send
		e, err = queryStats(c)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		err = fault.WithHint(fmt.Errorf("QMP: no answer within %v: %w", answerTimeout, fault.ErrUnavailable),
			"QEMU serves one client at a time on a socket: "+hintOption)
	}
	return e, err
}

// dial connects to the monitor, in QEMU's view of the file system, and only if QEMU itself
// listens there, because the owner of a process can write any path into its command line.
func dial(ctx context.Context, h *hostfs.FS, v *VM) (*net.UnixConn, error) {
	at := h.Path(dir(v.PID) + "/cwd/" + v.Monitor.Path)
	if path.IsAbs(v.Monitor.Path) {
		at = h.Path(dir(v.PID)+"/root") + v.Monitor.Path
	}
	// By descriptor, since a socket address has 107 bytes at most.
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

// checkPeer returns an error if another process than pid listens.
func checkPeer(c *net.UnixConn, pid int32) error {
	who, err := peercred.Of(c)
	if err != nil {
		return err
	}
	if who.Pid != pid {
		return fmt.Errorf("QMP: process %d listens on its socket: %w", who.Pid, fault.ErrConflict)
	}
	return nil
}

// queryStats speaks QMP: it reads the greeting, negotiates capabilities, and queries the
// counters (QEMU's docs/interop/qmp-spec).
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

// execute sends a command and returns its answer, skipping events.
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

// readMessage reads a line, skipping empty ones.
func readMessage(r *bufio.Reader) (m message, err error) {
	for {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) == 0 && err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			return m, fmt.Errorf("QMP: QEMU closed the connection, or sent more than %d bytes: %w", maxAnswer, fault.ErrUnavailable)
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

// parseStats sums the answer of query-stats over the CPUs. It omits values that are not
// counts (switches, histograms).
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

// Since returns the rate per second of each counter from before to e; for counters in ns,
// in seconds per second. why is the reason if the rates are unknown.
func (e Exits) Since(before Exits, span time.Duration) (rates map[string]float64, why string) {
	if span <= 0 {
		return nil, "no time passed"
	}
	rates = map[string]float64{}
	for name, now := range e {
		then, ok := before[name]
		switch {
		case !ok:
			continue
		case now < then:
			return nil, "CPUs were removed meanwhile"
		}
		rates[name] = float64(now-then) / span.Seconds()
		if strings.HasSuffix(name, "_ns") {
			rates[name] /= 1e9
		}
	}
	return rates, ""
}

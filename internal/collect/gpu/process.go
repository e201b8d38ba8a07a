package gpu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/trusted"
)

// errNone is the error on a machine without the accelerators' library.
var errNone = errors.New("none")

// maxLine is the maximum length of an answer.
const maxLine = 64 << 10

// A process is a running mete-nvml.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
	devices []string // "energy GPU-...", "power GPU-...", "!why"
}

// start starts the program, unless others could have changed it, and waits for its list of
// devices. The process ends with ctx.
func start(ctx context.Context, path string) (_ *process, err error) {
	real, err := trusted.File(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(fmt.Errorf("%s: %w", path, err))
	}
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, real)}
	p.cmd.Env = secretenv.Strip(os.Environ())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C does not reach it
	p.cmd.Stderr = &limitedWriter{b: &p.stderr, left: 4 << 10}
	p.cmd.WaitDelay = time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, maxLine)
	if err := p.cmd.Start(); err != nil {
		return nil, missing(err)
	}
	late := time.AfterFunc(startTimeout, func() { _ = p.cmd.Process.Kill() })
	fields, err := p.line()
	if !late.Stop() {
		err = fmt.Errorf("%s: no answer within %v: %w", path, startTimeout, fault.ErrUnavailable)
	}
	if err == nil {
		switch fields[0] {
		case "meters":
			p.devices = fields[1:]
			return p, nil
		case "none":
			err = errNone
		case "failed":
			err = fmt.Errorf("%s: %w", strings.Join(fields[1:min(2, len(fields))], ""), fault.ErrUnavailable)
			if len(fields) > 2 && fields[2] != "" {
				err = fault.WithHint(err, fields[2])
			}
		default:
			err = fmt.Errorf("%s: unexpected answer %q: %w", path, fields[0], fault.ErrInvalid)
		}
	}
	_ = p.cmd.Process.Kill() // it may have exited
	if e := p.wait(); e != nil && !errors.Is(err, errNone) && fault.Hint(err) == "" {
		err = fmt.Errorf("%w; %w", err, e)
	}
	return nil, err
}

func missing(err error) error {
	return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnsupported), "install "+program+" in the directory of this program, or disable accelerators with --nvml off")
}

// line reads one answer.
func (p *process) line() ([]string, error) {
	b, err := p.out.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", program, err, fault.ErrUnavailable)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\t"), nil
}

// ask requests the current readings.
func (p *process) ask() ([]string, error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", program, err, fault.ErrUnavailable)
	}
	return p.line()
}

// wait ends the program and returns its error output as an error.
func (p *process) wait() error {
	_ = p.in.Close() // this ends the program
	err := p.cmd.Wait()
	if text := bytes.TrimSpace(p.stderr.Bytes()); len(text) > 0 && err != nil {
		text, _, _ = bytes.Cut(text, []byte("\n"))
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// store stores an answer of time at: for each device its number, or ! and the error.
func (r *Reader) store(place []int, values []string, at int64) {
	r.mu.Lock()
	for i, k := range place {
		if k < 0 {
			continue
		}
		l := power.Reading{At: at}
		if i >= len(values) {
			l.Err = "no answer for this device"
		} else if why, ok := strings.CutPrefix(values[i], "!"); ok {
			l.Err = why
		} else if v, err := strconv.ParseInt(values[i], 10, 64); err != nil || v < 0 || v > maxValue {
			l.Err = "not a number: " + strconv.Quote(values[i])
		} else {
			l.Value = v * 1000 // mJ and mW to uJ and uW
		}
		r.latest[k] = l
	}
	r.mu.Unlock()
	r.signalAnswer()
}

// maxValue is above any device's reading, in mJ and mW.
const maxValue = 1 << 53

// storeError stores why there is no answer.
func (r *Reader) storeError(err error) {
	r.mu.Lock()
	for i := range r.latest {
		r.latest[i] = power.Reading{Err: err.Error()}
	}
	r.mu.Unlock()
	r.signalAnswer()
}

// signalAnswer signals that an answer has arrived.
func (r *Reader) signalAnswer() {
	select {
	case r.answers <- struct{}{}:
	default:
	}
}

// limitedWriter keeps the beginning of what is written to it.
type limitedWriter struct {
	b    *bytes.Buffer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.b.Write(p[:n])
	l.left -= n
	return len(p), nil
}

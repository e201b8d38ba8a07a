package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/text"
	"mete.dev/mete/internal/x/trusted"
)

// Limits of a command of Slurm. A job takes about 250 bytes.
const (
	commandTimeout = 30 * time.Second
	maxOutput      = 128 << 20
	maxComplaint   = 4 << 10
)

// find returns the path of a command of Slurm that only root and this user can have changed.
func (c *Config) find(name string) (string, error) {
	path := filepath.Join(c.Commands, name)
	if c.Commands == "" {
		var err error
		if path, err = exec.LookPath(name); err != nil {
			return "", fault.WithHint(fmt.Errorf("%s: %w", name, cmp.Or(errors.Unwrap(err), err)), "install Slurm's commands (slurm-client), or name their directory with --slurm-commands")
		}
	}
	return trusted.File(path)
}

// environment is that of the commands: nothing of this program's own, and nothing that changes what they print. Times are
// seconds since 1970, so that no zone and no shift of clocks matters.
func (c *Config) environment(more ...string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s"}
	for _, name := range []string{"SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	if c.File != "" {
		env = append(env, "SLURM_CONF="+c.File) // the last one counts
	}
	return append(env, more...)
}

// run runs a command of Slurm. No argument comes from a job.
func (c *Config) run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	path, err := c.find(name)
	if err != nil {
		return nil, err
	}
	in, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(in, path, args...)
	out, complaint := &limited{left: maxOutput, stop: cancel}, &limited{left: maxComplaint}
	cmd.Args[0], cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = name, "/", env, out, complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C does not reach it
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case out.full:
		return nil, fmt.Errorf("%s: more than %d MiB of output: %w", name, maxOutput>>20, fault.ErrUnavailable)
	case in.Err() != nil:
		return nil, fmt.Errorf("%s: no answer within %v: %w", name, commandTimeout, fault.ErrUnavailable)
	case err != nil:
		said, _, _ := strings.Cut(strings.TrimSpace(complaint.String()), "\n")
		return nil, fmt.Errorf("%s: %w: %s", name, err, text.Clean(said))
	}
	return out.Bytes(), nil
}

// A limited keeps the first bytes written to it.
type limited struct {
	bytes.Buffer
	left int
	full bool
	stop func() // called when more are written; nil is nothing
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	if n < len(b) {
		l.full = true
		if l.stop != nil {
			l.stop()
		}
	}
	l.Buffer.Write(b[:n])
	return len(b), nil
}

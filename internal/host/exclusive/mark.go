package exclusive

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"mete.dev/mete/internal/x/trusted"
)

// Mark notes in a directory that an agent measures this machine for a ledger. The note remains
// when the agent ends, because the restarted agent books what was used meanwhile. So that the
// jobs of all users find it, a directory of root's lets them pass.
func Mark(dir, ledger string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := os.WriteFile(mark(dir, ledger), nil, 0o644); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); os.Geteuid() == 0 && mode&0o011 != 0o011 {
		return os.Chmod(dir, mode|0o011)
	}
	return nil
}

// MarkAll is Mark in the state directory, where the note survives a reboot, and beside a socket, if
// there is one.
func MarkAll(ledger, state, socket string) error {
	err := Mark(state, ledger)
	if socket != "" {
		err = errors.Join(err, Mark(filepath.Dir(socket), ledger))
	}
	return err
}

// Marked returns the note in dir that an agent has measured this machine for a ledger. A note
// counts only if root, this user or the user of the machine's agent owns it.
func Marked(dir, ledger string) (file string, ok bool) {
	file = mark(dir, ledger)
	info, err := os.Lstat(file)
	if err != nil {
		return file, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return file, ok && trusted.Agent(trusted.AgentDir, st.Uid)
}

func mark(dir, ledger string) string { return filepath.Join(dir, "ledger-"+ledger) }

package exclusive

import (
	"os"
	"path/filepath"
	"syscall"
)

// Mark notes in the directory of an agent's socket that an agent measures this machine for
// a ledger. The note remains when the agent ends, because the restarted agent books what
// was used meanwhile; a reboot clears /run.
func Mark(dir, ledger string) error { return os.WriteFile(mark(dir, ledger), nil, 0o644) }

// Marked returns the note in dir that an agent has measured this machine for a ledger since
// boot. A note counts only if root or this user owns it.
func Marked(dir, ledger string) (file string, ok bool) {
	file = mark(dir, ledger)
	info, err := os.Lstat(file)
	if err != nil {
		return file, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return file, ok && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
}

func mark(dir, ledger string) string { return filepath.Join(dir, "ledger-"+ledger) }

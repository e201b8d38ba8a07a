package exclusive

import (
	"os"
	"path/filepath"
	"syscall"
)

// Mark notes in a directory, which is that of an agent's socket, that an agent
// measures this machine for a ledger. The note stays when the agent ends, as it
// books what was used meanwhile when it is back; a reboot takes it away with
// /run.
func Mark(dir, ledger string) error { return os.WriteFile(mark(dir, ledger), nil, 0o644) }

// Marked returns the note in a directory that an agent has measured this machine
// for a ledger, since it was started. One that is neither root's nor this user's
// does not count.
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

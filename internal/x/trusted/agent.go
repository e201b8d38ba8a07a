package trusted

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// AgentDir is the directory of the machine's agent: of its socket, by default.
const AgentDir = "/run/mete"

// IsAgentUser reports whether root gave AgentDir to the user: the units give it to the user that
// the machine's agent runs as.
func IsAgentUser(uid uint32) bool { return IsGivenTo(AgentDir, uid) }

// IsGivenTo reports whether root gave a directory to the user: the user owns it, and root alone can
// have put it at its path, as root owns all directories above it and others cannot write in them.
func IsGivenTo(dir string, uid uint32) bool { return isGivenTo("/", dir, uid) }

// isGivenTo is IsGivenTo below a directory top, for tests.
func isGivenTo(top, dir string, uid uint32) bool {
	real, err := filepath.EvalSymlinks(filepath.Join(top, dir))
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil || real == top {
		return false
	}
	info, err := os.Lstat(real)
	if err != nil || !info.IsDir() || !isOwnedBy(info, uid) {
		return false
	}
	for real != top && real != "/" {
		real = filepath.Dir(real)
		// Not even with the sticky bit: others could create entries.
		if info, err := os.Lstat(real); err != nil || !isOwnedBy(info, 0) || info.Mode().Perm()&0o022 != 0 {
			return false
		}
	}
	return true
}

func isOwnedBy(info fs.FileInfo, uid uint32) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uid
}

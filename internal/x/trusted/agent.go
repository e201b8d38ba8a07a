package trusted

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// AgentDir is the directory of the machine's agent: of its socket, by default.
const AgentDir = "/run/mete"

// Agent reports whether this process trusts an agent of the user whose directory is dir: one of
// root, of its own user, or of the user to whom root gave the directory, as the agent's unit does
// with AgentDir.
func Agent(dir string, uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || isGivenTo("/", dir, uid)
}

// isGivenTo reports whether root gave a directory below top to the user: the user owns it, and root
// alone can have put it at its path, as root owns all directories above it and others cannot write
// in them.
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

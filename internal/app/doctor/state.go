package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/x/statedir"
)

// Kinds of state directories.
const (
	serverState = "server" // of mete server, or of the server in mete up
	agentState  = "agent"  // of mete-agent, or of the agent in mete up
)

// A state is a state directory.
type state struct {
	kind, dir string
	info      fs.FileInfo // nil if it cannot be examined
	err       error       // why
	holder    int         // process that has it locked; 0 is none, or not known
}

// packaged are the state directories of the units of the packages.
var packaged = []state{{kind: serverState, dir: "/var/lib/mete-server"}, {kind: agentState, dir: "/var/lib/mete-agent"}}

// findStates finds the state directories: that of --state, else those of the settings, and those of the
// packages where they exist.
func (d *doctor) findStates() []state {
	var out []state
	add := func(kind, dir string) {
		if dir, err := filepath.Abs(dir); err == nil && !slices.ContainsFunc(out, func(s state) bool { return s.dir == dir }) {
			out = append(out, state{kind: kind, dir: dir})
		}
	}
	base := d.config.state
	switch {
	case base != "" && (exists(base, "authority") || exists(base, "ledger.db") || exists(base, v1.AdminSocket)):
		add(serverState, base) // of mete server
	case base != "" && (exists(base, "identity") || exists(base, "spool")):
		add(agentState, base) // of mete-agent
	case base != "":
		add(serverState, filepath.Join(base, "server"))
		add(agentState, filepath.Join(base, "agent"))
	default:
		if up := d.programs[1].value("state"); up != "" {
			add(serverState, filepath.Join(up, "server"))
			add(agentState, filepath.Join(up, "agent"))
		}
		if own := d.programs[0].value("state"); own != "" {
			add(serverState, own)
		} else if all, err := statedir.Default(d.getenv, d.uid); err == nil {
			add(serverState, filepath.Join(all, "server"))
		}
		if d.agent.State != "" {
			add(agentState, d.agent.State)
		}
		for _, p := range packaged {
			if exists(p.dir) {
				add(p.kind, p.dir)
			}
		}
	}
	locks, _ := d.host.ReadFile("/proc/locks") // without it no holder is known
	for i := range out {
		out[i].look(string(locks))
	}
	return out
}

// exists reports whether a path exists, as far as this user can see.
func exists(elements ...string) bool {
	_, err := os.Lstat(filepath.Join(elements...))
	return err == nil
}

// look examines the directory. locks is the kernel's list of locks.
func (s *state) look(locks string) {
	if s.info, s.err = os.Stat(s.dir); s.err != nil {
		return
	}
	files := []string{filepath.Join(s.dir, "lock")}
	if s.kind == agentState { // each identity has a spool of its own
		files, _ = filepath.Glob(filepath.Join(s.dir, "spool", "*", "lock"))
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && s.holder == 0 {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				s.holder = lockHolder(locks, st.Dev, st.Ino)
			}
		}
	}
}

// lockHolder returns the process that has locked a file by flock(2), 0 if none is listed. locks is the
// content of /proc/locks, as proc_locks(5) describes it. The file is not locked to find out, as that
// could stop a server that starts at the same time.
func lockHolder(locks string, dev, inode uint64) int {
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), inode)
	for line := range strings.Lines(locks) {
		if f := strings.Fields(line); len(f) >= 6 && f[1] == "FLOCK" && f[5] == want {
			if pid, err := strconv.Atoi(f[4]); err == nil {
				return pid
			}
		}
	}
	return 0
}

// state is about the state directories and the file systems on which they are.
func (d *doctor) state(ctx context.Context, states []state) (out []Check) {
	for i := range states {
		s := &states[i]
		c := s.check(d.uid)
		if c.State == OK && s.info != nil {
			c.Found += ", " + size(ctx, s.dir)
		}
		out = append(out, c)
		if s.info == nil {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(s.dir, &st); err != nil {
			out = append(out, failed(s.kind+" space", err))
		} else {
			out = append(out, space(s, &st))
		}
		if s.kind == serverState {
			if c, ok := s.ledger(d.programs[0].value("database")); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// check judges owner and mode of the directory for the user uid.
func (s *state) check(uid int) Check {
	name := s.kind
	switch {
	case errors.Is(s.err, fs.ErrNotExist):
		return of(name, Missing, "%s does not exist: no %s has kept its state there", s.dir, s.kind)
	case denied(s.err):
		return of(name, Limited, "this user may not see %s", s.dir).do("run mete doctor as its owner, or as root")
	case s.err != nil:
		return failed(name, s.err)
	case !s.info.IsDir():
		return of(name, Failed, "%s is not a directory", s.dir).do("move it away, or name another directory with the setting state")
	}
	owner := "an unknown user"
	own := -1
	if st, ok := s.info.Sys().(*syscall.Stat_t); ok {
		own = int(st.Uid)
		owner = fmt.Sprintf("uid %d", own)
	}
	mode := s.info.Mode().Perm()
	found := fmt.Sprintf("%s, of %s, mode %04o", s.dir, owner, mode)
	if s.holder != 0 {
		found += fmt.Sprintf(", in use by process %d", s.holder)
	} else {
		found += ", not in use as far as this user sees"
	}
	switch {
	case mode&0o022 != 0:
		return of(name, Failed, "%s: others than its owner may change it", found).do("check who has changed it, then: chmod 700 " + s.dir)
	case mode&0o055 != 0 && mode&0o044 != 0:
		return of(name, Limited, "%s: others may list it", found).do("chmod 700 " + s.dir)
	case uid != 0 && own != uid:
		return of(name, Limited, "%s", found).do("run mete doctor as its owner, or as root")
	}
	return of(name, OK, "%s", found)
}

// Limits of free space: below the first, a fraction and bytes, a check is limited; below the last it
// failed, as neither a spool nor a ledger can go on for long.
const (
	lowFraction   = 0.05
	lowBytes      = 1 << 30
	noBytes       = 64 << 20
	lowInodes     = 0.05
	leastInodes   = 100
	spaceRemedy   = "make room, or move the state to another file system (docs/guide/restore.md)"
	spaceEffect   = "without space an agent drops its oldest windows, and a server takes none: both become gaps"
	sizeFileLimit = 100_000
)

// space judges the file system of a directory.
func space(s *state, st *unix.Statfs_t) Check {
	name := s.kind + " space"
	block := float64(st.Bsize)
	free, total := float64(st.Bavail)*block, float64(st.Blocks)*block
	found := fmt.Sprintf("%s of %s free", unit.Bytes(free), unit.Bytes(total))
	inodes := st.Files > 0 // some file systems have no fixed number
	if inodes {
		found += fmt.Sprintf(", %d of %d inodes", st.Ffree, st.Files)
	}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return of(name, Failed, "the file system is read-only").figures(spaceEffect).do("mount it writable, after its check")
	case free < noBytes || inodes && st.Ffree < leastInodes:
		return of(name, Failed, "%s", found).figures(spaceEffect).do(spaceRemedy)
	case free < lowBytes && free < lowFraction*total || inodes && float64(st.Ffree) < lowInodes*float64(st.Files):
		return of(name, Limited, "%s", found).figures(spaceEffect).do(spaceRemedy)
	}
	return of(name, OK, "%s", found)
}

// size returns the size of the files in a directory, as far as ctx and this user's rights allow.
func size(ctx context.Context, dir string) string {
	var bytes float64
	files, part := 0, false
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			part = true
			return nil
		}
		if files++; files > sizeFileLimit || ctx.Err() != nil {
			part = true
			return fs.SkipAll
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			bytes += float64(info.Size())
		}
		return nil
	})
	if part {
		return unit.Bytes(bytes) + " or more"
	}
	return unit.Bytes(bytes)
}

// ledger looks at the header of a ledger in SQLite; ok is false if there is none. database is the
// setting.
func (s *state) ledger(database string) (c Check, ok bool) {
	file := filepath.Join(s.dir, "ledger.db")
	switch {
	case strings.Contains(database, "://"):
		return of("ledger", OK, "in the database that the setting names, which is not checked").do("mete check ADDRESS reads it"), true
	case database != "":
		file = database
	}
	bytes, err := ledger.CheckFile(file, s.holder == 0)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return c, false
	case denied(err):
		return of("ledger", Limited, "this user may not read %s", file).do("run mete doctor as the user of the server, or as root"), true
	case err != nil:
		return failed("ledger", err).figures("the server does not start"), true
	}
	return of("ledger", OK, "%s, %s, has a ledger's header; mete check %s reads all of it", file, unit.Bytes(float64(bytes)), s.dir), true
}

// packagedToken is the file of a token that the unit of the agent reads.
const packagedToken = "/etc/mete/token"

// tokens is about the files of enrollment tokens.
func (d *doctor) tokens(states []state) (out []Check) {
	enrolled := slices.ContainsFunc(states, func(s state) bool {
		return s.kind == agentState && (exists(s.dir, "identity", "identity.json") || exists(s.dir, "identity", "local.json"))
	})
	for _, f := range []string{d.agent.TokenFile, packagedToken} {
		if f != "" && (f != packagedToken || exists(f)) && (len(out) == 0 || f != d.agent.TokenFile) {
			out = append(out, tokenFile(f, enrolled))
		}
	}
	return out
}

// tokenFile judges a file with a token. An enrolled machine needs none.
func tokenFile(path string, enrolled bool) Check {
	const create = "on the server: mete token create --role agent >token"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && enrolled:
		return of("token", OK, "%s is gone, and is not needed: this machine is enrolled", path)
	case errors.Is(err, fs.ErrNotExist):
		return of("token", Failed, "%s does not exist, and this machine is not enrolled", path).figures("the agent does not start").do(create)
	case err != nil:
		return of("token", Limited, "%s", err).do("run mete doctor as the user of the agent, or as root")
	case info.Size() == 0 && enrolled:
		return of("token", OK, "%s is empty: this machine is enrolled", path)
	case info.Mode().Perm()&0o077 != 0:
		return of("token", Failed, "%s has mode %04o: others can read the token, and enroll with it", path, info.Mode().Perm()).
			do("chmod 600 " + path + "; on the server: mete token list, then mete token revoke ID")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return of("token", Limited, "%s", err).do("run mete doctor as the user of the agent, or as root")
	}
	tok, err := token.Parse(string(b))
	switch {
	case err != nil && enrolled:
		return of("token", Limited, "%s: %s; it is not needed, as this machine is enrolled", path, err)
	case err != nil:
		return failed("token", fmt.Errorf("%s: %w", path, err)).do(create)
	case enrolled:
		return of("token", Limited, "%s holds token %s, which this machine needs no more", path, tok.ID()).do(": >" + path)
	}
	return of("token", OK, "%s holds token %s, for the first start of the agent", path, tok.ID())
}

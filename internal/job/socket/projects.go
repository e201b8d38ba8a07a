package socket

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"mete.dev/mete/internal/model/fault"
)

// Projects are the projects of users, by number. A job of theirs counts for that project.
type Projects map[uint32]string

// ProjectsFile is the file in which the administrator of a machine assigns users to projects.
const ProjectsFile = "/etc/mete/projects"

// ReadProjects reads a file with a line "USER PROJECT" for each user, where USER is a name or a
// number; empty lines and those that begin with # are ignored. A missing file assigns none. The
// error wraps fault.ErrInvalid and names the line, or says who can change the file, if users other
// than root and that of this process can.
func ReadProjects(file string) (Projects, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, fault.WithHint(fmt.Errorf("%s: others than root can change it: %w", file, fault.ErrInvalid), "chown root and chmod 644 it")
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	return parseProjects(file, string(b))
}

func parseProjects(file, text string) (Projects, error) {
	out := Projects{}
	for i, line := range strings.Split(text, "\n") {
		invalid := func(why string) error {
			return fault.WithHint(fmt.Errorf("%s:%d: %s: %w", file, i+1, why, fault.ErrInvalid), "write USER PROJECT, one user on a line")
		}
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if len(fields) != 2 {
			return nil, invalid(fmt.Sprintf("%d words instead of 2", len(fields)))
		}
		uid, err := lookupUser(fields[0])
		if err != nil {
			return nil, invalid(err.Error())
		}
		if _, twice := out[uid]; twice {
			return nil, invalid(fmt.Sprintf("user %.40q is in another line too", fields[0]))
		}
		if err := checkText("project", fields[1], maxText); err != nil {
			return nil, invalid(err.Error())
		}
		out[uid] = fields[1]
	}
	return out, nil
}

// lookupUser returns the number of a user who is given by name or number.
func lookupUser(name string) (uint32, error) {
	if u, err := user.Lookup(name); err == nil {
		name = u.Uid
	}
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("there is no user %.40q", name)
	}
	return uint32(uid), nil
}

// Of returns the project of a user's job that asks for a project, or for none. Root may use any. The
// error wraps fault.ErrDenied.
func (p Projects) Of(uid uint32, wanted string) (string, error) {
	own := p[uid]
	switch {
	case wanted == "" || wanted == own:
		return own, nil
	case uid == 0:
		return wanted, nil
	}
	return "", fault.WithHint(fmt.Errorf("project %.40q of user %d: %w", wanted, uid, fault.ErrDenied), "the administrator of the machine assigns users to projects in "+ProjectsFile)
}

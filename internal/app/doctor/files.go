package doctor

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/settings"
	"mete.dev/mete/internal/x/trusted"
)

// A companion is a program that belongs beside this one.
type companion struct{ name, use string }

// companions are the programs of mete.
var companions = []companion{
	{"mete", "the commands"},
	{"mete-server", "mete up, mete server, mete check and this command"},
	{"mete-agent", "a machine that sends to a server"},
	{"mete-nvml", "energy of NVIDIA's accelerators"},
}

// installed is about the programs beside this one.
func (d *doctor) installed() []Check {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return []Check{failed("programs", err)}
	}
	dir := filepath.Dir(self)
	if cache, err := os.UserCacheDir(); err == nil && dir == filepath.Join(cache, "mete") {
		return []Check{of("programs", OK, "built from source by go run, in %s", dir).do("go build -o /usr/local/bin/ ./cmd/... installs all of them")}
	}
	_, err = d.host.ReadFile("/proc/driver/nvidia/version")
	return programs(dir, d.version, err == nil)
}

// programs judges the programs in a directory. version is that of this program; accelerators says that
// the driver of NVIDIA's is loaded.
func programs(dir, version string, accelerators bool) (out []Check) {
	for _, p := range companions {
		path := filepath.Join(dir, p.name)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && p.name == "mete-nvml" && !accelerators:
			out = append(out, of(p.name, OK, "not installed, and not needed: no driver of NVIDIA's accelerators is loaded"))
			continue
		case errors.Is(err, fs.ErrNotExist):
			out = append(out, of(p.name, Missing, "not in %s; it is for %s", dir, p.use).
				do(fmt.Sprintf("install its package, or from source: go build -o %s/ ./cmd/%s", dir, p.name)))
			continue
		case err != nil:
			out = append(out, failed(p.name, err))
			continue
		}
		out = append(out, programCheck(p, path, info, version))
	}
	return out
}

// programCheck judges one program.
func programCheck(p companion, path string, info fs.FileInfo, version string) Check {
	if info.Mode().Perm()&0o111 == 0 || !info.Mode().IsRegular() {
		return of(p.name, Failed, "%s is not executable", path).do("chmod 755 " + path)
	}
	if _, err := trusted.File(path); err != nil {
		return failed(p.name, err).figures("other programs of mete do not start it")
	}
	owner := "an unknown user"
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = fmt.Sprintf("uid %d", st.Uid)
	}
	found := fmt.Sprintf("%s, of %s, mode %04o", path, owner, info.Mode().Perm())
	b, err := buildinfo.ReadFile(path)
	if err != nil {
		return of(p.name, Limited, "%s; its version is not known: %s", found, err)
	}
	if v := cli.Version(b); v != version {
		return of(p.name, Failed, "%s, has version %s, and mete-server has %s", found, v, version).
			do("install all programs of one version: they start each other")
	}
	return of(p.name, OK, "%s, %s", found, version)
}

// settings is about the file of settings and the environment, as each program reads them.
func (d *doctor) settings() (out []Check) {
	path := ""
	for i := range d.programs {
		p := &d.programs[i]
		if p.err != nil {
			c := failed("section "+p.set.Section, p.err).figures(p.name + " does not start")
			if errors.Is(p.err, fault.ErrDenied) && c.Do == "" {
				c.Do = "run mete doctor as the user of that program, or as root"
			}
			out = append(out, c)
			continue
		}
		if path = p.set.Path(); path == "" {
			continue
		}
		n := 0
		for _, s := range p.set.All() {
			if s.InFile && s.Origin().Kind != settings.Default {
				n++
			}
		}
		out = append(out, of("section "+p.set.Section, OK, "not the default: %s; mete config %s shows them", plural(n, "setting"), p.set.Section))
	}
	if path != "" {
		return append([]Check{fileCheck(path)}, out...)
	}
	if len(out) == 0 {
		out = append(out, of("file", OK, "no %s: all settings are from the environment, or the defaults", settings.DefaultFile))
	}
	return out
}

// fileCheck judges the file of settings, which the programs have accepted.
func fileCheck(path string) Check {
	info, err := os.Stat(path)
	if err != nil {
		return failed("file", err)
	}
	owner := "an unknown user"
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = fmt.Sprintf("uid %d", st.Uid)
	}
	return of("file", OK, "%s, of %s, mode %04o", path, owner, info.Mode().Perm())
}

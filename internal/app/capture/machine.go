package capture

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// A machine is a machine during its capture.
type machine struct {
	host   *hostfs.FS
	redact *redactor
	limit  limits
	out    *archive
	ids    map[string]uint64 // by redacted path
	// pids are the processes to capture, sorted.
	pids    []int
	counts  map[string]int
	missing int // unreadable files
}

type limits struct {
	groups    int // per hierarchy
	processes int
}

// read captures the machine's present state.
func read(h *hostfs.FS, r *redactor, limit limits) (*machine, error) {
	m := &machine{host: h, redact: r, limit: limit, out: newArchive(), ids: map[string]uint64{}, counts: map[string]int{}}
	// Read the clocks before everything else.
	c, err := h.Clocks()
	if err != nil {
		return nil, err
	}
	m.out.put("mete/clocks", fmt.Appendf(nil, "boottime %d\nmonotonic %d\nrealtime %d\n", c.Boottime, c.Monotonic, c.Realtime))
	if err := m.hierarchies(); err != nil {
		return nil, err
	}
	if err := m.processes(); err != nil {
		return nil, err
	}
	m.mounts("/proc/self")
	m.memberships("/proc/self")
	m.system()
	m.identity()
	m.blockDevices()
	m.meters()
	m.writeIDs()
	return m, nil
}

// file copies a file through f and reports whether it exists. The capture omits missing and
// unreadable files.
func (m *machine) file(p string, f func([]byte) []byte) bool { return m.fileAs(p, p, f) }

func (m *machine) fileAs(from, to string, f func([]byte) []byte) bool {
	b, err := m.host.ReadFile(from)
	if err != nil {
		// Ignore processes and groups that are gone.
		if !errors.Is(err, fault.ErrNotFound) {
			m.missing++
		}
		return false
	}
	if f != nil {
		b = f(b)
	}
	m.out.put(to, b)
	m.counts["files"]++
	return true
}

// system captures the files about the whole machine.
func (m *machine) system() {
	for _, p := range []string{"/proc/meminfo", "/proc/devices", "/proc/cgroups", "/proc/uptime", "/proc/loadavg",
		"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
		"/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible"} {
		m.file(p, nil)
	}
	// Omit the counts of each interrupt: they reveal the hardware and have no use.
	m.file("/proc/stat", keepLines(`^(cpu|ctxt|btime|processes|procs_)`))
	m.file("/proc/cpuinfo", keepLines(`^(processor|vendor_id|cpu family|model|model name|stepping|physical id|siblings|core id|cpu cores|cpu MHz|CPU (implementer|architecture|variant|part|revision))\s*:|^$`))
	m.file("/proc/diskstats", m.columns(2))
	m.file("/proc/net/dev", m.interfaces)
}

// keepLines returns a filter that drops lines that do not match the pattern.
func keepLines(pattern string) func([]byte) []byte {
	re := regexp.MustCompile(pattern)
	return func(b []byte) []byte {
		var kept []byte
		for line := range bytes.Lines(b) {
			if re.Match(bytes.TrimSuffix(line, []byte("\n"))) {
				kept = append(kept, line...)
			}
		}
		return kept
	}
}

// columns returns a filter that redacts the device name in column n of each line.
func (m *machine) columns(n int) func([]byte) []byte {
	re := regexp.MustCompile(fmt.Sprintf(`(?m)^((?:\s*\S+){%d}\s+)(\S+)`, n))
	return func(b []byte) []byte {
		return re.ReplaceAllFunc(b, func(line []byte) []byte {
			at := re.FindSubmatchIndex(line)
			return append(bytes.Clone(line[:at[4]]), m.redact.device(string(line[at[4]:at[5]]))...)
		})
	}
}

// interfaces redacts the names in net/dev.
func (m *machine) interfaces(b []byte) []byte {
	var out []byte
	for line := range bytes.Lines(b) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			out = append(out, line...) // headings
			continue
		}
		trimmed := bytes.TrimLeft(name, " ")
		out = append(out, name[:len(name)-len(trimmed)]...)
		out = append(out, m.redact.device(string(trimmed))...)
		out = append(append(out, ':'), rest...)
	}
	return out
}

// identity captures the machine's names, all replaced.
func (m *machine) identity() {
	id := func(b []byte) []byte {
		return append([]byte(m.redact.replace("ids", string(bytes.TrimSpace(b)))), '\n')
	}
	m.file("/proc/sys/kernel/random/boot_id", id)
	m.file("/etc/machine-id", id)
	m.file("/proc/sys/kernel/hostname", func([]byte) []byte {
		m.redact.counts["host names"] = 1
		return []byte("machine\n")
	})
	m.file("/proc/sys/kernel/osrelease", func(b []byte) []byte {
		// Keep the version and redact the builder's suffix.
		n := len(regexp.MustCompile(`^[0-9]+(?:[.-][0-9]+)*`).Find(b))
		return append(b[:n:n], m.redact.text(string(b[n:]))...)
	})
}

// blockDevices captures each device's number, the devices below it, and whether it is rotational.
func (m *machine) blockDevices() {
	const dir = "/sys/block"
	es, err := m.host.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range es {
		from, to := path.Join(dir, e.Name()), path.Join(dir, m.redact.device(e.Name()))
		for _, f := range []string{"dev", "size", "ro", "removable", "queue/rotational"} {
			m.fileAs(path.Join(from, f), path.Join(to, f), nil)
		}
		m.counts["block devices"]++
		m.partitions(from, to)
		below, err := m.host.ReadDir(path.Join(from, "slaves"))
		if err != nil {
			continue
		}
		for _, s := range below {
			name := m.redact.device(s.Name())
			m.out.link(path.Join(to, "slaves", name), "../../"+name)
		}
	}
}

// partitions captures the numbers of a device's partitions.
func (m *machine) partitions(from, to string) {
	es, err := m.host.ReadDir(from)
	if err != nil {
		return
	}
	for _, e := range es {
		if strings.HasPrefix(e.Name(), path.Base(from)) {
			m.fileAs(path.Join(from, e.Name(), "dev"), path.Join(to, m.redact.device(e.Name()), "dev"), nil)
		}
	}
}

// writeIDs writes the answers of the method ID of hostfs.FS.
func (m *machine) writeIDs() {
	var b []byte
	for _, p := range slices.Sorted(maps.Keys(m.ids)) {
		b = strconv.AppendUint(b, m.ids[p], 10)
		b = append(append(append(b, ' '), p...), '\n')
	}
	m.out.put("mete/ids", b)
}

// mounts captures the mounts of control groups, of /proc and /sys, and their parent mounts.
func (m *machine) mounts(dir string) {
	m.file(path.Join(dir, "mountinfo"), func(b []byte) []byte {
		ms, err := procfmt.Mountinfo(b)
		if err != nil {
			return nil
		}
		var out []byte
		for _, mt := range ms {
			if !isRelevant(mt, ms) {
				m.counts["mounts left out"]++
				continue
			}
			out = m.mountLine(out, mt)
		}
		return out
	})
}

// isRelevant reports whether a mount is of a captured kind, or a parent of one.
func isRelevant(mt procfmt.Mount, all []procfmt.Mount) bool {
	for _, o := range all {
		if !strings.HasPrefix(o.Type, "cgroup") && o.Point != "/proc" && o.Point != "/sys" {
			continue
		}
		if mt.ID == o.ID || mt.Point == "/" || mt.Point == o.Point || strings.HasPrefix(o.Point, mt.Point+"/") {
			return true
		}
	}
	return false
}

func (m *machine) mountLine(b []byte, mt procfmt.Mount) []byte {
	source, super := "none", "rw"
	if procfmt.Has(mt.Super, "ro") {
		super = "ro"
	}
	if strings.HasPrefix(mt.Type, "cgroup") {
		source = mt.Type
		os := strings.Split(mt.Super, ",")
		for i, o := range os {
			if key, value, ok := strings.Cut(o, "="); ok {
				os[i] = key + "=" + m.redact.path(value)
			}
		}
		super = strings.Join(os, ",")
	}
	escape := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	return fmt.Appendf(b, "%d %d %s %s %s %s - %s %s %s\n", mt.ID, mt.Parent, mt.Dev,
		escape.Replace(m.redact.path(mt.Root)), escape.Replace(m.redact.path(mt.Point)), mt.Options,
		mt.Type, source, escape.Replace(super))
}

// memberships captures the groups of a process.
func (m *machine) memberships(dir string) { m.file(path.Join(dir, "cgroup"), m.cgroupFile) }

func (m *machine) cgroupFile(b []byte) []byte {
	var out []byte
	for line := range bytes.Lines(b) {
		id, rest, _ := strings.Cut(string(line), ":")
		names, p, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		if key, value, ok := strings.Cut(names, "="); ok {
			names = key + "=" + m.redact.path(value)
		}
		deleted := ""
		if p = strings.TrimSuffix(p, "\n"); id == "0" {
			if q, ok := strings.CutSuffix(p, " (deleted)"); ok {
				p, deleted = q, " (deleted)"
			}
		}
		out = fmt.Appendf(out, "%s:%s:%s%s\n", id, names, m.redact.path(p), deleted)
	}
	return out
}

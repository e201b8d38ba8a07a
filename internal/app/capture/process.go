package capture

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/host/procfmt"
)

// processes captures the processes with the lowest PIDs, up to the limit.
func (m *machine) processes() error {
	es, err := m.host.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range es {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid > 0 && e.IsDir() {
			m.pids = append(m.pids, pid)
		}
	}
	slices.Sort(m.pids)
	if more := len(m.pids) - m.limit.processes; more > 0 {
		m.pids = m.pids[:m.limit.processes]
		m.counts["processes left out"] = more
	}
	networks := map[string]bool{}
	for _, pid := range m.pids {
		m.process(pid, networks)
	}
	return nil
}

// process captures one process, and the interfaces of its network namespace if it is the first
// process in it.
func (m *machine) process(pid int, networks map[string]bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := m.host.ReadFile(path.Join(dir, "stat"))
	if err != nil {
		return // the process ended
	}
	p, err := procfmt.ProcStat(b)
	if err != nil {
		m.missing++
		return
	}
	name := m.redact.comm(string(p.Comm), p.Kernel)
	m.out.put(path.Join(dir, "stat"), statLine(b, name))
	m.counts["files"]++
	m.counts["processes"]++
	m.memberships(dir)
	m.file(path.Join(dir, "io"), nil)
	m.file(path.Join(dir, "schedstat"), nil)
	m.file(path.Join(dir, "status"), func(b []byte) []byte {
		b = keepLines(`^(Tgid|Pid|PPid|Uid|Threads|VmRSS|VmHWM|VmSwap|RssAnon|RssFile|RssShmem|NStgid|NSpid|Kthread):`)(b)
		return append(fmt.Appendf(nil, "Name:\t%s\n", name), b...)
	})
	net := path.Join(dir, "ns/net")
	to, err := m.host.Readlink(net)
	if err != nil {
		return
	}
	m.out.link(net, to)
	if n, ok := namespace(to); ok {
		m.ids[net] = n
	}
	if !networks[to] {
		networks[to] = true
		m.file(path.Join(dir, "net/dev"), m.interfaces)
		m.counts["network namespaces"]++
	}
}

// namespace reads the number in "net:[4026531833]".
func namespace(link string) (uint64, bool) {
	_, s, _ := strings.Cut(link, ":[")
	n, err := strconv.ParseUint(strings.TrimSuffix(s, "]"), 10, 64)
	return n, err == nil
}

// statLine returns stat with another name and without addresses, as the kernel shows it to
// unprivileged readers.
func statLine(b []byte, name string) []byte {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	for i := range fields {
		// proc_pid_stat(5): the first field here is number 3; fields 26 to 30, 35 and 45 to 51 are
		// addresses.
		if n := i + 3; n >= 26 && n <= 30 || n == 35 || n >= 45 && n <= 51 {
			fields[i] = "0"
		}
	}
	return fmt.Appendf(nil, "%s(%s) %s\n", b[:open], name, strings.Join(fields, " "))
}

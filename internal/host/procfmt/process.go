package procfmt

import "bytes"

// A Process holds the values of /proc/PID/stat.
type Process struct {
	PID, Parent int
	Comm        []byte // a subslice of the input
	State       byte   // R running, S sleeping, D waiting for a device, Z zombie, ...
	Kernel      bool   // a kernel thread
	User        int64  // ns, in steps of 10 ms
	System      int64  // ns, in steps of 10 ms
	// ChildUser and ChildSystem are those of children that ended and that the process
	// waited for.
	ChildUser, ChildSystem int64
	Threads                int
	Start                  int64 // ns after boot, in steps of 10 ms
	RSSPages               int64 // resident pages of the machine's page size
}

// ProcStat reads /proc/PID/stat. The name may contain blanks and parentheses: it ends at
// the last closing one.
func ProcStat(b []byte) (Process, error) {
	// PF_KTHREAD of include/linux/sched.h.
	const pfKthread = 0x00200000

	var p Process
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Process{}, invalid("stat", b)
	}
	pid, ok := small(bytes.TrimSpace(b[:open]))
	if !ok {
		return Process{}, invalid("stat: pid", b[:open])
	}
	p.PID, p.Comm = int(pid), b[open+1:end]
	state, rest := cutField(b[end+1:])
	if len(state) != 1 {
		return Process{}, invalid("stat: state", state)
	}
	p.State = state[0]
	line, _ := cutLine(rest)
	// Fields 4 to 24 of proc_pid_stat(5).
	var v [21]int64
	if _, ok := numbers(line, v[:]); !ok {
		return Process{}, invalid("stat", line)
	}
	p.Parent = int(v[0])
	p.Kernel = v[5]&pfKthread != 0
	p.Threads = int(v[16])
	p.RSSPages = max(v[20], 0)
	for _, t := range [...]struct {
		into *int64
		from int64
	}{{&p.User, v[10]}, {&p.System, v[11]}, {&p.ChildUser, v[12]}, {&p.ChildSystem, v[13]}, {&p.Start, v[18]}} {
		if *t.into, ok = scale(t.from, tick); !ok {
			return Process{}, invalid("stat", line)
		}
	}
	return p, nil
}

// A ProcessIO holds the values of /proc/PID/io: a process's block I/O in bytes.
type ProcessIO struct {
	Read, Written int64
	// Canceled is what was counted as written but never was, because the file was truncated
	// first.
	Canceled int64
}

// ProcIO reads /proc/PID/io.
func ProcIO(b []byte) (ProcessIO, error) {
	var p ProcessIO
	seen := 0
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		key, rest := cutField(line)
		var into *int64
		switch string(key) {
		case "read_bytes:":
			into = &p.Read
		case "write_bytes:":
			into = &p.Written
		case "cancelled_write_bytes:":
			into = &p.Canceled
		default:
			continue
		}
		if !put(rest, 1, into) {
			return ProcessIO{}, invalid(string(key), rest)
		}
		seen++
	}
	if seen < 2 {
		return ProcessIO{}, invalid("io without read_bytes and write_bytes", nil)
	}
	return p, nil
}

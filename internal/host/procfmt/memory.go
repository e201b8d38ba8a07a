package procfmt

// Memory holds the values of memory.stat of a group and all groups below it, in bytes. The
// Has fields mark those that the file lacks.
type Memory struct {
	// Anon is anonymous memory, huge pages included. On v1 it is total_rss, which includes
	// swap cache; neither includes shared memory and tmpfs.
	Anon int64
	// File is page cache, with shared memory and tmpfs.
	File int64
	// InactiveFile is the part of the page cache that the kernel reclaims first.
	InactiveFile int64

	HasAnon, HasFile, HasInactiveFile bool
}

// MemoryStat reads memory.stat. On v1 the total_ lines, which include the groups below,
// take precedence over the plain ones.
func MemoryStat(b []byte) (Memory, error) {
	var m Memory
	var totals Memory
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		if len(line) == 0 || line[0] < 'a' || line[0] > 't' {
			continue
		}
		key, rest := cutField(line)
		var into *int64
		var has *bool
		switch string(key) {
		case "anon", "rss":
			into, has = &m.Anon, &m.HasAnon
		case "file", "cache":
			into, has = &m.File, &m.HasFile
		case "inactive_file":
			into, has = &m.InactiveFile, &m.HasInactiveFile
		case "total_rss":
			into, has = &totals.Anon, &totals.HasAnon
		case "total_cache":
			into, has = &totals.File, &totals.HasFile
		case "total_inactive_file":
			into, has = &totals.InactiveFile, &totals.HasInactiveFile
		default:
			continue
		}
		if !put(rest, 1, into) {
			return Memory{}, invalid(string(key), rest)
		}
		*has = true
	}
	if totals.HasAnon {
		m.Anon, m.HasAnon = totals.Anon, true
	}
	if totals.HasFile {
		m.File, m.HasFile = totals.File, true
	}
	if totals.HasInactiveFile {
		m.InactiveFile, m.HasInactiveFile = totals.InactiveFile, true
	}
	return m, nil
}

// Mem holds the values of /proc/meminfo, in bytes.
type Mem struct {
	Total, Free, Available int64
	// Buffers is page cache of block devices, Cached page cache of files with shared
	// memory, and Reclaimable reclaimable slab.
	Buffers, Cached, Reclaimable int64
	Shmem                        int64
	SwapTotal, SwapFree          int64

	// HasAvailable is false on kernels before 3.14.
	HasAvailable bool
}

// Meminfo reads /proc/meminfo. Total and Free are required.
func Meminfo(b []byte) (Mem, error) {
	var m Mem
	seen := 0
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		key, rest := cutField(line)
		var into *int64
		switch string(key) {
		case "MemTotal:":
			into = &m.Total
			seen |= 1
		case "MemFree:":
			into = &m.Free
			seen |= 2
		case "MemAvailable:":
			into = &m.Available
			m.HasAvailable = true
		case "Buffers:":
			into = &m.Buffers
		case "Cached:":
			into = &m.Cached
		case "SReclaimable:":
			into = &m.Reclaimable
		case "Shmem:":
			into = &m.Shmem
		case "SwapTotal:":
			into = &m.SwapTotal
		case "SwapFree:":
			into = &m.SwapFree
		default:
			continue
		}
		if !kib(rest, into) {
			return Mem{}, invalid(string(key), rest)
		}
	}
	if seen != 3 {
		return Mem{}, invalid("meminfo without MemTotal and MemFree", nil)
	}
	return m, nil
}

// kib reads "123 kB", in which kB means KiB.
func kib(b []byte, into *int64) bool {
	f, rest := cutField(b)
	if u, _ := cutField(rest); string(u) != "kB" {
		return false
	}
	return put(f, 1024, into)
}

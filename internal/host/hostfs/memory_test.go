package hostfs_test

import (
	"maps"
	"testing"
)

// MemoryLimit returns the least of the machine's memory and the groups' limits.
func TestMemoryLimit(t *testing.T) {
	const root = "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
	const v2 = root + "36 27 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
	const v1 = root + "34 27 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	for name, c := range map[string]struct {
		mounts, self string
		files        map[string]string
		want         int64
	}{
		"no groups":     {root, "", nil, 4 << 30},
		"no limit":      {v2, "0::/a/b\n", map[string]string{"sys/fs/cgroup/a/memory.max": "max\n"}, 4 << 30},
		"its own":       {v2, "0::/a/b\n", map[string]string{"sys/fs/cgroup/a/b/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 1 << 30},
		"one above":     {v2, "0::/a/b\n", map[string]string{"sys/fs/cgroup/a/b/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.max": "1048576\n"}, 1 << 20},
		"a container's": {v2, "0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20},
		"version 1":     {v1, "4:memory:/m\n", map[string]string{"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1 << 30},
	} {
		files := map[string]string{"proc/self/mountinfo": c.mounts, "proc/cgroups": cgroupsV1, "proc/meminfo": "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n",
			"proc/self/cgroup": c.self, "sys/fs/cgroup/cgroup.controllers": "memory\n"}
		maps.Copy(files, c.files)
		h, _ := captured(t, files)
		if got, err := h.MemoryLimit(); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
}

package hostfs_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

const cgroupsV1 = `#subsys_name	hierarchy	num_cgroups	enabled
cpuset	3	1	1
cpu	2	1	1
cpuacct	2	1	1
memory	4	12	1
hugetlb	0	1	1
`

func TestHierarchies(t *testing.T) {
	const root = "27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
	tests := []struct {
		name   string
		mounts string
		self   string
		files  map[string]string
		want   []hostfs.Hierarchy
	}{
		{
			name: "co-mounted, twice, named and unified",
			mounts: root + "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n" +
				"33 31 0:29 / /sys/fs/cgroup/again rw - cgroup cgroup rw,cpuacct,cpu\n" +
				"34 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,release_agent=/cpuset\n" +
				"35 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n" +
				"36 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n",
			self:  "5:name=systemd:/s\n4:memory:/m\n2:cpu,cpuacct:/c/d\n0::/u\n",
			files: map[string]string{"sys/fs/cgroup/unified/cgroup.controllers": "pids io\n"},
			want: []hostfs.Hierarchy{
				{ID: 0, V2: true, Controllers: []string{"io", "pids"}, Mount: "/sys/fs/cgroup/unified", Root: "/", Self: "/u"},
				{ID: 2, Controllers: []string{"cpu", "cpuacct"}, Mount: "/sys/fs/cgroup/again", Root: "/", Self: "/c/d"},
				{ID: 4, Controllers: []string{"memory"}, Mount: "/sys/fs/cgroup/memory", Root: "/", Self: "/m"},
				{ID: 5, Name: "systemd", Mount: "/sys/fs/cgroup/systemd", Root: "/", Self: "/s"},
			},
		},
		{
			name: "a container's view and the whole hierarchy",
			mounts: root + "32 31 0:29 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"33 31 0:29 / /host/memory ro - cgroup cgroup rw,memory\n" +
				"34 31 0:30 /docker/ab /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n",
			self: "4:memory:/docker/ab\n3:cpuset:/docker/ab\n",
			want: []hostfs.Hierarchy{
				{ID: 3, Controllers: []string{"cpuset"}, Mount: "/sys/fs/cgroup/cpuset", Root: "/docker/ab", ReadOnly: true, Self: "/docker/ab"},
				{ID: 4, Controllers: []string{"memory"}, Mount: "/host/memory", Root: "/", ReadOnly: true, Self: "/docker/ab"},
			},
		},
		{
			name: "a machine running from its initramfs, which is its own parent mount",
			mounts: "1 1 0:2 / / rw - rootfs none rw\n20 1 0:21 / /sys rw - sysfs sysfs rw\n" +
				"24 20 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			files: map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory\n"},
			want:  []hostfs.Hierarchy{{V2: true, Controllers: []string{"cpu", "memory"}, Mount: "/sys/fs/cgroup", Root: "/"}},
		},
		{
			name: "mounted over, at the point and above it",
			mounts: root + "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"33 32 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"34 27 0:30 / /mnt/a/cpuset rw - cgroup cgroup rw,cpuset\n" +
				"35 27 0:40 / /mnt/a rw - tmpfs tmpfs rw\n",
			want: []hostfs.Hierarchy{
				{Controllers: []string{"memory"}, Mount: "/sys/fs/cgroup/memory", Root: "/"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"proc/self/mountinfo": tt.mounts, "proc/cgroups": cgroupsV1}
			if tt.self != "" {
				files["proc/self/cgroup"] = tt.self
			}
			maps.Copy(files, tt.files)
			h, _ := captured(t, files)
			got, err := h.Hierarchies()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Hierarchies (-want +got):\n%s", d)
			}
		})
	}
}

func TestNoHierarchies(t *testing.T) {
	h, _ := captured(t, map[string]string{"proc/1/mountinfo": "27 1 254:0 / / rw - ext4 /dev/vda rw\n"})
	if ys, err := h.Hierarchies(); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("Hierarchies() = %v, %v, want not supported", ys, err)
	}
}

func TestDir(t *testing.T) {
	for _, tt := range []struct{ root, group, want string }{
		{"/", "/", "/m"},
		{"/", "/a/b", "/m/a/b"},
		{"/a", "/a/b", "/m/b"},
		{"/a", "/a", "/m"},
		{"/a", "/ab", ""},
		{"/..", "/", ""},
	} {
		y := hostfs.Hierarchy{Mount: "/m", Root: tt.root}
		if got, ok := y.Dir(tt.group); got != tt.want || ok != (tt.want != "") {
			t.Errorf("Dir(%s) below %s = %q, %v, want %q", tt.group, tt.root, got, ok, tt.want)
		}
	}
}

func TestLeafDevices(t *testing.T) {
	h, _ := captured(t, map[string]string{
		"proc/devices":                  "Character devices:\n  1 mem\n253 loop\n\nBlock devices:\n  7 loop\n  8 sd\n  9 md\n253 device-mapper\n259 blkext\n",
		"sys/block/sda/dev":             "8:0\n",
		"sys/block/sda/sda1/dev":        "8:1\n",
		"sys/block/nvme0n1/dev":         "259:0\n",
		"sys/block/nvme0c0n1/size":      "1\n",
		"sys/block/loop0/dev":           "7:0\n",
		"sys/block/md0/dev":             "9:0\n",
		"sys/block/md0/slaves/sda1/dev": "8:1\n",
		"sys/block/dm-0/dev":            "253:0\n",
		"sys/block/odd/dev":             "250:0\n",
		"sys/block/odd/slaves/sda/dev":  "8:0\n",
	})
	got, err := h.LeafDevices()
	if err != nil {
		t.Fatal(err)
	}
	want := map[procfmt.Dev]string{{Major: 8}: "sda", {Major: 259}: "nvme0n1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("LeafDevices (-want +got):\n%s", d)
	}
	majors, err := h.StackedMajors()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[uint32]string{7: "loop", 9: "md", 253: "device-mapper"}, majors); d != "" {
		t.Errorf("StackedMajors (-want +got):\n%s", d)
	}
}

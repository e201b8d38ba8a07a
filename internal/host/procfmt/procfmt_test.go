package procfmt_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// invalid fails the test unless err wraps fault.ErrInvalid and contains name.
func invalid(t *testing.T, err error, name string) {
	t.Helper()
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want one wrapping %v that names %q", err, fault.ErrInvalid, name)
	}
}

// equal fails the test if err is not nil or got is not want.
func equal[T any](t *testing.T, got, want T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestInt(t *testing.T) {
	for in, want := range map[string]int64{
		"51500403055\n":           51500403055,
		" 0 ":                     0,
		"-1\n":                    -1,
		"max\n":                   math.MaxInt64,
		"9223372036854771712\n":   9223372036854771712,
		"9223372036854775807":     math.MaxInt64,
		"9223372036854775808":     math.MaxInt64,
		"18446744073709551615\n":  math.MaxInt64,
		"99999999999999999999999": math.MaxInt64,
	} {
		if got, err := procfmt.Int([]byte(in)); got != want || err != nil {
			t.Errorf("Int(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "\n", "-", "+1", "1 2", "1.5", "0x10", "maximum", "--1"} {
		if got, err := procfmt.Int([]byte(in)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Int(%q) = %d, %v, want invalid", in, got, err)
		}
	}
}

func TestKeyValue(t *testing.T) {
	const events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill max\n"
	for key, want := range map[string]int64{"low": 0, "max": 12, "oom": 3, "oom_kill": 2, "oom_group_kill": math.MaxInt64} {
		if got, ok, err := procfmt.KeyValue([]byte(events), key); got != want || !ok || err != nil {
			t.Errorf("KeyValue(%s) = %d, %v, %v, want %d", key, got, ok, err, want)
		}
	}
	if _, ok, err := procfmt.KeyValue([]byte(events), "oom_"); ok || err != nil {
		t.Errorf("KeyValue(oom_) = %v, %v, want absent", ok, err)
	}
	_, _, err := procfmt.KeyValue([]byte("oom_kill x\n"), "oom_kill")
	invalid(t, err, "oom_kill")
}

func TestCPUStat(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want procfmt.CPU
	}{
		{v2CPUStat, procfmt.CPU{Usage: 47423438000, User: 28666144000, System: 18757294000, Periods: 10, Throttled: 3,
			ThrottledTime: 251000, HasUsage: true, HasUser: true, HasSystem: true, HasPeriods: true, HasThrottled: true, HasThrottledTime: true}},
		{v2RootCPUStat, procfmt.CPU{Usage: 7000, User: 4000, System: 3000, HasUsage: true, HasUser: true, HasSystem: true}},
		{v1CPUStat, procfmt.CPU{Periods: 4, Throttled: 2, ThrottledTime: 123456789, HasPeriods: true, HasThrottled: true, HasThrottledTime: true}},
		{"usage_usec 18446744073709551615\n", procfmt.CPU{Usage: math.MaxInt64, HasUsage: true}},
		{"", procfmt.CPU{}},
		{"future_key a b c\n", procfmt.CPU{}},
	} {
		got, err := procfmt.CPUStat([]byte(tt.in))
		equal(t, got, tt.want, err)
	}
	for _, in := range []string{"usage_usec\n", "usage_usec -3\n", "nr_periods 1 2\n", "throttled_time x"} {
		_, err := procfmt.CPUStat([]byte(in))
		invalid(t, err, strings.Fields(in)[0])
	}
}

func TestCPUAcctStat(t *testing.T) {
	user, system, err := procfmt.CPUAcctStat([]byte("user 3112\nsystem 2037\n"))
	equal(t, [2]int64{user, system}, [2]int64{31120000000, 20370000000}, err)
	_, _, err = procfmt.CPUAcctStat([]byte("user 3112\n"))
	invalid(t, err, "system")
}

func TestSchedstatAndPressure(t *testing.T) {
	run, wait, err := procfmt.Schedstat([]byte("1033835 77 1\n"))
	equal(t, [2]int64{run, wait}, [2]int64{1033835, 77}, err)
	_, _, err = procfmt.Schedstat([]byte("1033835\n"))
	invalid(t, err, "schedstat")

	some, full, err := procfmt.Pressure([]byte(pressure))
	equal(t, [2]int64{some, full}, [2]int64{7422964000, 12000}, err)
	some, full, err = procfmt.Pressure([]byte("some avg10=0.00 avg60=0.14 avg300=0.24 total=5\n"))
	equal(t, [2]int64{some, full}, [2]int64{5000, -1}, err)
	for _, in := range []string{"", "full total=3\n", "some total=\n", "some avg10=0.00\n", "some total=x\n"} {
		_, _, err = procfmt.Pressure([]byte(in))
		invalid(t, err, "some")
	}
}

func TestMemoryStat(t *testing.T) {
	got, err := procfmt.MemoryStat([]byte(v1MemoryStat))
	equal(t, got, procfmt.Memory{Anon: 18141184, File: 46399488, InactiveFile: 13488128, HasAnon: true, HasFile: true, HasInactiveFile: true}, err)
	got, err = procfmt.MemoryStat([]byte(v2MemoryStat))
	equal(t, got, procfmt.Memory{Anon: 5, File: 6, InactiveFile: 7, HasAnon: true, HasFile: true, HasInactiveFile: true}, err)
	got, err = procfmt.MemoryStat([]byte("rss 3\n"))
	equal(t, got, procfmt.Memory{Anon: 3, HasAnon: true}, err)
	_, err = procfmt.MemoryStat([]byte("total_rss -1\n"))
	invalid(t, err, "total_rss")
}

func TestMeminfo(t *testing.T) {
	got, err := procfmt.Meminfo([]byte(meminfo))
	equal(t, got, procfmt.Mem{Total: 24684084 << 10, Free: 24469464 << 10, Available: 24405484 << 10, Buffers: 632 << 10,
		Cached: 44664 << 10, Reclaimable: 10 << 10, Shmem: 9 << 10, SwapTotal: 8 << 10, SwapFree: 7 << 10, HasAvailable: true}, err)
	_, err = procfmt.Meminfo([]byte("MemTotal: 5 kB\n"))
	invalid(t, err, "MemFree")
	_, err = procfmt.Meminfo([]byte("MemTotal: 5 MB\n"))
	invalid(t, err, "MemTotal")
}

type ioRow struct {
	Dev procfmt.Dev
	IO  procfmt.IO
}

func ioStat(in string) (rows []ioRow, err error) {
	err = procfmt.IOStat([]byte(in), func(d procfmt.Dev, c procfmt.IO) { rows = append(rows, ioRow{d, c}) })
	return rows, err
}

func TestIOStat(t *testing.T) {
	got, err := ioStat(v2IOStat)
	equal(t, got, []ioRow{
		{procfmt.Dev{Major: 8, Minor: 16}, procfmt.IO{ReadBytes: 1459200, WrittenBytes: 314773504, Reads: 192, Writes: 353}},
		{procfmt.Dev{Major: 259}, procfmt.IO{ReadBytes: 90430464, WrittenBytes: 299008000, Reads: 8950, Writes: 1252, DiscardedBytes: 50331648, Discards: 3021}},
	}, err)
	_, err = ioStat("8:0 rbytes=x\n")
	invalid(t, err, "rbytes=x")
	_, err = ioStat("rbytes=3\n")
	invalid(t, err, "rbytes=3")
}

type rwRow struct {
	Dev           procfmt.Dev
	Read, Written int64
}

func blkio(in string) (rows []rwRow, n int, err error) {
	n, err = procfmt.BlkioServiceBytes([]byte(in), func(d procfmt.Dev, r, w int64) { rows = append(rows, rwRow{d, r, w}) })
	return rows, n, err
}

func TestBlkioServiceBytes(t *testing.T) {
	got, n, err := blkio(v1Blkio)
	equal(t, got, []rwRow{{procfmt.Dev{Major: 8, Minor: 16}, 4096, 8192}, {procfmt.Dev{Major: 8}, 5, 6}}, err)
	if n != 2 {
		t.Errorf("devices = %d, want 2", n)
	}
	got, n, err = blkio("Total 0\n")
	equal(t, got, nil, err)
	if n != 0 {
		t.Errorf("devices = %d, want 0", n)
	}
	_, _, err = blkio("8:0 Read\n")
	invalid(t, err, "8:0 Read")
	_, _, err = blkio("sda Read 5\n")
	invalid(t, err, "sda")
}

func TestDiskstats(t *testing.T) {
	type row struct {
		Dev  procfmt.Dev
		Name string
		IO   procfmt.DiskIO
	}
	var got []row
	err := procfmt.Diskstats([]byte(diskstats), func(d procfmt.Dev, name string, c procfmt.DiskIO) { got = append(got, row{d, name, c}) })
	equal(t, got, []row{
		{procfmt.Dev{Major: 7}, "loop0", procfmt.DiskIO{}},
		{procfmt.Dev{Major: 254}, "vda", procfmt.DiskIO{IO: procfmt.IO{Reads: 34625, ReadBytes: 1532546 * 512, Writes: 5247, WrittenBytes: 1591808 * 512}, MergedReads: 7150, MergedWrites: 18951}},
	}, err)
	err = procfmt.Diskstats([]byte("8 0 sda 1 2 3\n"), func(procfmt.Dev, string, procfmt.DiskIO) {})
	invalid(t, err, "sda")
}

func TestDevices(t *testing.T) {
	got, err := procfmt.Devices([]byte(devices))
	equal(t, got, []procfmt.Driver{{Major: 7, Name: "loop"}, {Major: 8, Name: "sd"}, {Major: 65, Name: "sd"}, {Major: 253, Name: "device-mapper"}}, err)
	_, err = procfmt.Devices([]byte("Block devices:\n  x sd\n"))
	invalid(t, err, "x sd")
}

func TestMountinfo(t *testing.T) {
	got, err := procfmt.Mountinfo([]byte(mountinfo))
	equal(t, got, []procfmt.Mount{
		{ID: 22, Parent: 27, Dev: procfmt.Dev{Minor: 21}, Root: "/", Point: "/proc", Options: "rw,relatime", Type: "proc", Source: "proc", Super: "rw"},
		{ID: 36, Parent: 35, Dev: procfmt.Dev{Major: 98}, Root: "/mnt1", Point: "/a b\\c", Options: "rw,noatime", Type: "ext3", Source: "/dev/root", Super: "rw,errors=continue"},
		{ID: 41, Parent: 31, Dev: procfmt.Dev{Minor: 38}, Root: "/..", Point: "/x", Options: "ro", Type: "cgroup2", Source: "", Super: "rw"},
	}, err)
	for _, in := range []string{"1 2 3", "22 27 0:21 / /proc rw\n", "22 27 0:21 / /proc rw - proc\n", "a b c d e f - g h i"} {
		_, err := procfmt.Mountinfo([]byte(in))
		invalid(t, err, "mountinfo")
	}
	if !procfmt.Has("rw,nosuid", "nosuid") || procfmt.Has("rw,nosuid", "suid") {
		t.Error("Has matches part of an option")
	}
}

func TestCgroups(t *testing.T) {
	got, err := procfmt.Cgroups([]byte(procCgroup))
	equal(t, got, []procfmt.Membership{
		{Hierarchy: 9, Name: "systemd", Path: "/"},
		{Hierarchy: 2, Controllers: []string{"cpu", "cpuacct"}, Path: "/docker/a:b"},
		{Path: "/gone", Deleted: true},
	}, err)
	for _, in := range []string{"0:/x", "a::/x", "0::x", "0::"} {
		_, err := procfmt.Cgroups([]byte(in))
		invalid(t, err, in)
	}
	cs, err := procfmt.ProcCgroups([]byte("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\nmemory\t0\t12\t0\n"))
	equal(t, cs, []procfmt.Controller{{"cpuset", 3, 1, true}, {"memory", 0, 12, false}}, err)
	_, err = procfmt.ProcCgroups([]byte("cpuset x\n"))
	invalid(t, err, "cpuset")
}

func TestProcess(t *testing.T) {
	got, err := procfmt.ProcStat([]byte(procStat))
	equal(t, got, procfmt.Process{PID: 5926, Parent: 5920, Comm: []byte("a) (b c"), State: 'R', User: 3e7, System: 4e7, ChildUser: 5e7,
		ChildSystem: 6e7, Threads: 1, Start: 132901e7, RSSPages: 382}, err)
	got, err = procfmt.ProcStat([]byte(kthreadStat))
	equal(t, got, procfmt.Process{PID: 2, Comm: []byte("kthreadd"), State: 'S', System: 1e7, Kernel: true, Threads: 1}, err)
	for _, in := range []string{"", "1 x S 0", "1 (x", ")1 (", "x (a) S 1 2", "1 (x) S 0 0 0", "1 (x) SS 0"} {
		_, err := procfmt.ProcStat([]byte(in))
		invalid(t, err, "stat")
	}

	io, err := procfmt.ProcIO([]byte("rchar: 7286\nread_bytes: 10\nwrite_bytes: 20\ncancelled_write_bytes: 5\n"))
	equal(t, io, procfmt.ProcessIO{Read: 10, Written: 20, Canceled: 5}, err)
	_, err = procfmt.ProcIO([]byte("rchar: 7286\n"))
	invalid(t, err, "read_bytes")
}

func TestStat(t *testing.T) {
	got, err := procfmt.Stat([]byte(stat))
	equal(t, got, procfmt.System{User: 2867e7, Nice: 1e7, System: 1845e7, Idle: 259930e7, IOWait: 565e7, IRQ: 2e7, SoftIRQ: 31e7, Steal: 9e7,
		CPUs: 2, Processes: 5924, BootTime: 1795238821}, err)
	for _, in := range []string{"", "cpu0 1 2\n", "cpu 1 2 3\n", "cpux 1\n"} {
		_, err := procfmt.Stat([]byte(in))
		invalid(t, err, "cpu")
	}
}

func TestNetDev(t *testing.T) {
	type row struct {
		Name           string
		RB, RP, TB, TP int64
	}
	var got []row
	err := procfmt.NetDev([]byte(netDev), func(name string, rb, rp, tb, tp int64) { got = append(got, row{name, rb, rp, tb, tp}) })
	equal(t, got, []row{{"lo", 3193, 29, 3193, 29}, {"eth0:1", 116212448, 4589, 388555, 3486}}, err)
	err = procfmt.NetDev([]byte(netDev+"  eth1: 1 2 3\n"), func(string, int64, int64, int64, int64) {})
	invalid(t, err, "eth1")
}

// The parsers that run for every group and tick do not allocate.
func TestHotParsersDoNotAllocate(t *testing.T) {
	var sum int64
	for name, f := range map[string]func(){
		"Int":      func() { v, _ := procfmt.Int([]byte("51500403055\n")); sum += v },
		"CPUStat":  func() { v, _ := procfmt.CPUStat([]byte(v2CPUStat)); sum += v.Usage },
		"CPUAcct":  func() { v, _, _ := procfmt.CPUAcctStat([]byte("user 3112\nsystem 2037\n")); sum += v },
		"Memory":   func() { v, _ := procfmt.MemoryStat([]byte(v1MemoryStat)); sum += v.Anon },
		"Pressure": func() { v, _, _ := procfmt.Pressure([]byte(pressure)); sum += v },
		"KeyValue": func() { v, _, _ := procfmt.KeyValue([]byte("oom 1\noom_kill 2\n"), "oom_kill"); sum += v },
		"ProcStat": func() { v, _ := procfmt.ProcStat([]byte(procStat)); sum += v.User },
		"IOStat": func() {
			_ = procfmt.IOStat([]byte(v2IOStat), func(_ procfmt.Dev, c procfmt.IO) { sum += c.ReadBytes })
		},
		"Blkio": func() {
			_, _ = procfmt.BlkioServiceBytes([]byte(v1Blkio), func(_ procfmt.Dev, r, _ int64) { sum += r })
		},
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s allocates %v times, want 0", name, n)
		}
	}
}

func BenchmarkMemoryStat(b *testing.B) {
	in := []byte(v1MemoryStat)
	for b.Loop() {
		if _, err := procfmt.MemoryStat(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCPUStat(b *testing.B) {
	in := []byte(v2CPUStat)
	for b.Loop() {
		if _, err := procfmt.CPUStat(in); err != nil {
			b.Fatal(err)
		}
	}
}

func TestLoadavg(t *testing.T) {
	got, err := procfmt.Loadavg([]byte("0.20 0.18 0.12 1/80 11206\n"))
	if err != nil || got != 80 {
		t.Errorf("Loadavg() = %d, %v, want 80", got, err)
	}
	for _, bad := range []string{"", "0.20 0.18 0.12", "0.20 0.18 0.12 180 1", "0 0 0 1/-3 1", "0 0 0 1/x 1"} {
		if v, err := procfmt.Loadavg([]byte(bad)); err == nil {
			t.Errorf("Loadavg(%q) = %d, want an error", bad, v)
		}
	}
}

func TestCPUMax(t *testing.T) {
	for _, c := range []struct {
		in            string
		quota, period int64
	}{
		{"max 100000\n", 0, 100e6},
		{"150000 100000\n", 150e6, 100e6},
	} {
		quota, period, err := procfmt.CPUMax([]byte(c.in))
		if err != nil || quota != c.quota || period != c.period {
			t.Errorf("CPUMax(%q) = %d, %d, %v, want %d, %d", c.in, quota, period, err, c.quota, c.period)
		}
	}
	for _, bad := range []string{"", "max", "max 0", "-1 100000", "0 100000", "x 100000"} {
		if q, p, err := procfmt.CPUMax([]byte(bad)); err == nil {
			t.Errorf("CPUMax(%q) = %d, %d, want an error", bad, q, p)
		}
	}
}

package procfmt_test

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// check fails the test if a parser's error does not wrap fault.ErrInvalid.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("error %v does not wrap %v", err, fault.ErrInvalid)
	}
}

// notNegative fails the test if a counter or size is below 0.
func notNegative(t *testing.T, vs ...int64) {
	t.Helper()
	for i, v := range vs {
		if v < 0 {
			t.Errorf("value %d is %d", i, v)
		}
	}
}

func FuzzInt(f *testing.F) {
	f.Add([]byte("51500403055\n"))
	f.Add([]byte("max\n"))
	f.Add([]byte("-1\n"))
	f.Add([]byte("18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := procfmt.Int(b)
		if err != nil {
			check(t, err)
			return
		}
		again, err := procfmt.Int(strconv.AppendInt(nil, v, 10))
		if err != nil || again != v {
			t.Errorf("Int(%q) = %d, formatted and read again %d, %v", b, v, again, err)
		}
	})
}

func FuzzKeyValue(f *testing.F) {
	f.Add([]byte("low 0\nhigh 0\noom_kill 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, key := range []string{"oom_kill", "low", ""} {
			_, ok, err := procfmt.KeyValue(b, key)
			check(t, err)
			if ok && !bytes.Contains(b, []byte(key)) {
				t.Errorf("KeyValue(%q, %s) = true", b, key)
			}
		}
	})
}

func FuzzCPUStat(f *testing.F) {
	f.Add([]byte(v2CPUStat))
	f.Add([]byte(v2RootCPUStat))
	f.Add([]byte(v1CPUStat))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := procfmt.CPUStat(b)
		check(t, err)
		notNegative(t, c.Usage, c.User, c.System, c.Periods, c.Throttled, c.ThrottledTime)
		if !c.HasUsage && c.Usage != 0 {
			t.Errorf("CPUStat(%q): Usage %d without usage_usec", b, c.Usage)
		}
	})
}

func FuzzCPUAcctStat(f *testing.F) {
	f.Add([]byte("user 3112\nsystem 2037\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		user, system, err := procfmt.CPUAcctStat(b)
		check(t, err)
		notNegative(t, user, system)
	})
}

func FuzzSchedstat(f *testing.F) {
	f.Add([]byte("1033835 0 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		run, wait, err := procfmt.Schedstat(b)
		check(t, err)
		notNegative(t, run, wait)
	})
}

func FuzzPressure(f *testing.F) {
	f.Add([]byte(pressure))
	f.Fuzz(func(t *testing.T, b []byte) {
		some, full, err := procfmt.Pressure(b)
		check(t, err)
		notNegative(t, some, full+1)
	})
}

func FuzzCPUMax(f *testing.F) {
	f.Add([]byte("max 100000\n"))
	f.Add([]byte("150000 100000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		quota, period, err := procfmt.CPUMax(b)
		check(t, err)
		notNegative(t, quota, period)
		if err == nil && period == 0 {
			t.Errorf("CPUMax(%q): no period", b)
		}
	})
}

func FuzzLoadavg(f *testing.F) {
	f.Add([]byte("0.20 0.18 0.12 1/80 11206\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tasks, err := procfmt.Loadavg(b)
		check(t, err)
		notNegative(t, tasks)
	})
}

func FuzzMemoryStat(f *testing.F) {
	f.Add([]byte(v1MemoryStat))
	f.Add([]byte(v2MemoryStat))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := procfmt.MemoryStat(b)
		check(t, err)
		notNegative(t, m.Anon, m.File, m.InactiveFile)
	})
}

func FuzzMeminfo(f *testing.F) {
	f.Add([]byte(meminfo))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := procfmt.Meminfo(b)
		check(t, err)
		notNegative(t, m.Total, m.Free, m.Available, m.Buffers, m.Cached, m.Reclaimable, m.Shmem, m.SwapTotal, m.SwapFree)
	})
}

func FuzzIOStat(f *testing.F) {
	f.Add([]byte(v2IOStat))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, procfmt.IOStat(b, func(_ procfmt.Dev, c procfmt.IO) {
			notNegative(t, c.ReadBytes, c.WrittenBytes, c.DiscardedBytes, c.Reads, c.Writes, c.Discards)
		}))
	})
}

func FuzzBlkioServiceBytes(f *testing.F) {
	f.Add([]byte(v1Blkio))
	f.Add([]byte("Total 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		calls := 0
		n, err := procfmt.BlkioServiceBytes(b, func(_ procfmt.Dev, read, written int64) {
			notNegative(t, read, written)
			calls++
		})
		check(t, err)
		if err == nil && calls != n {
			t.Errorf("BlkioServiceBytes(%q) = %d with %d calls", b, n, calls)
		}
	})
}

func FuzzDiskstats(f *testing.F) {
	f.Add([]byte(diskstats))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, procfmt.Diskstats(b, func(_ procfmt.Dev, _ string, c procfmt.DiskIO) {
			notNegative(t, c.Reads, c.ReadBytes, c.MergedReads, c.Writes, c.WrittenBytes, c.MergedWrites)
		}))
	})
}

func FuzzDevices(f *testing.F) {
	f.Add([]byte(devices))
	f.Fuzz(func(t *testing.T, b []byte) {
		ds, err := procfmt.Devices(b)
		check(t, err)
		for _, d := range ds {
			if d.Name == "" {
				t.Errorf("Devices(%q): a driver without a name", b)
			}
		}
	})
}

func FuzzDevice(f *testing.F) {
	f.Add([]byte("8:16\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := procfmt.Device(b)
		if err != nil {
			check(t, err)
			return
		}
		again, err := procfmt.Device([]byte(d.String()))
		if err != nil || again != d {
			t.Errorf("Device(%q) = %v, and again %v, %v", b, d, again, err)
		}
	})
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte(mountinfo))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := procfmt.Mountinfo(b)
		check(t, err)
		if len(ms) > bytes.Count(b, []byte("\n"))+1 {
			t.Errorf("Mountinfo(%q): %d mounts", b, len(ms))
		}
	})
}

func FuzzCgroups(f *testing.F) {
	f.Add([]byte(procCgroup))
	f.Fuzz(func(t *testing.T, b []byte) {
		ms, err := procfmt.Cgroups(b)
		check(t, err)
		for _, m := range ms {
			if m.Path == "" && !m.Deleted || m.Hierarchy < 0 {
				t.Errorf("Cgroups(%q): %+v", b, m)
			}
		}
	})
}

func FuzzProcCgroups(f *testing.F) {
	f.Add([]byte("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		cs, err := procfmt.ProcCgroups(b)
		check(t, err)
		for _, c := range cs {
			notNegative(t, int64(c.Hierarchy), int64(c.Groups))
		}
	})
}

func FuzzProcStat(f *testing.F) {
	f.Add([]byte(procStat))
	f.Add([]byte(kthreadStat))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := procfmt.ProcStat(b)
		check(t, err)
		notNegative(t, int64(p.PID), p.User, p.System, p.ChildUser, p.ChildSystem, p.Start, p.RSSPages)
		if !bytes.Contains(b, p.Comm) {
			t.Errorf("ProcStat(%q): name %q", b, p.Comm)
		}
	})
}

func FuzzProcIO(f *testing.F) {
	f.Add([]byte("rchar: 7286\nread_bytes: 10\nwrite_bytes: 20\ncancelled_write_bytes: 5\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := procfmt.ProcIO(b)
		check(t, err)
		notNegative(t, p.Read, p.Written, p.Canceled)
	})
}

func FuzzStat(f *testing.F) {
	f.Add([]byte(stat))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := procfmt.Stat(b)
		check(t, err)
		notNegative(t, s.User, s.Nice, s.System, s.Idle, s.IOWait, s.IRQ, s.SoftIRQ, s.Steal, int64(s.CPUs), s.Processes, s.BootTime)
	})
}

func FuzzNetDev(f *testing.F) {
	f.Add([]byte(netDev))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, procfmt.NetDev(b, func(name string, rb, rp, tb, tp int64) {
			notNegative(t, rb, rp, tb, tp)
			if name == "" {
				t.Errorf("NetDev(%q): an interface without a name", b)
			}
		}))
	})
}

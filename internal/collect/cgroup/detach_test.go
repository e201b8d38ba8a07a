package cgroup_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/totals"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Files that both versions of a machine with a disk have in common.
const fakeDisks = `-- proc/stat --
cpu 0 0 0 0 0 0 0 0 0 0
cpu0 0 0 0 0 0 0 0 0 0 0
-- proc/meminfo --
MemTotal: 1000000 kB
MemFree: 500000 kB
-- sys/block/sda/dev --
8:0
`

// writeFile writes a file of a fake machine.
func writeFile(t *testing.T, file, format string, args ...any) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A volume is attached, used and detached three times, while a disk stays: both groups and
// the machine are booked all of it, also if ticks fail meanwhile.
func TestDetachedVolume(t *testing.T) {
	for name, capture := range map[string]string{
		"v2": fakeV2 + "-- cg/cgroup.controllers --\nio memory\n-- cg/a/b/cpu.stat --\nusage_usec 0\n-- cg/a/cpu.stat --\nusage_usec 0\n",
		"v1": fakeV1 + `-- proc/self/cgroup --
3:blkio:/
2:memory:/
1:cpuacct:/
-- proc/self/mountinfo --
1 0 0:1 / /cpu rw - cgroup cgroup rw,cpuacct
2 0 0:2 / /memory rw - cgroup cgroup rw,memory
3 0 0:3 / /cg rw - cgroup cgroup rw,blkio
-- cg/blkio.throttle.io_service_bytes_recursive --
8:0 Read 1
8:0 Write 1
Total 2
-- cpu/a/b/cpuacct.usage --
0
-- cpu/a/cpuacct.usage --
0
`,
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Unpack(t, []byte(capture+fakeDisks))
			var disk, volume, writes int64 = 1000, 0, 10 // what a/b did
			write := func() {
				stats := fmt.Sprintf("8 0 sda %d 0 %d 0 %d 0 %d 0 0 0 0\n", writes, 2*disk/512, writes, disk/512)
				var v2 string
				bytes, requests := map[string]string{}, map[string]string{}
				for i, g := range []string{"/a", "/a/b"} { // a did twice as much as a/b
					k := int64(2 - i)
					v2 = fmt.Sprintf("8:0 rbytes=%d wbytes=%d rios=%d wios=%d dbytes=0 dios=0\n", k*disk, k*disk, k*writes, k*writes)
					bytes[g] = fmt.Sprintf("8:0 Read %d\n8:0 Write %d\n", k*disk, k*disk)
					requests[g] = fmt.Sprintf("8:0 Read %d\n8:0 Write %d\n", k*writes, k*writes)
					if volume > 0 {
						v2 += fmt.Sprintf("8:16 rbytes=%d wbytes=%d rios=%d wios=%d dbytes=0 dios=0\n", k*volume, k*volume, k*7, k*7)
						bytes[g] += fmt.Sprintf("8:16 Read %d\n8:16 Write %d\n", k*volume, k*volume)
						requests[g] += fmt.Sprintf("8:16 Read %d\n8:16 Write %d\n", k*7, k*7)
					}
					writeFile(t, h.Path("/cg"+g+"/io.stat"), "%s", v2)
					writeFile(t, h.Path("/cg"+g+"/blkio.throttle.io_service_bytes_recursive"), "%sTotal 1\n", bytes[g])
					writeFile(t, h.Path("/cg"+g+"/blkio.throttle.io_serviced_recursive"), "%sTotal 1\n", requests[g])
				}
				if volume > 0 {
					writeFile(t, h.Path("/sys/block/sdb/dev"), "8:16\n")
					stats += fmt.Sprintf("8 16 sdb 7 0 %d 0 7 0 %d 0 0 0 0\n", 2*volume/512, volume/512)
				} else if err := os.RemoveAll(h.Path("/sys/block/sdb")); err != nil {
					t.Fatal(err)
				}
				writeFile(t, h.Path("/proc/diskstats"), "%s", stats)
			}
			write()
			table, err := cgroup.OpenFiles(h, cgroup.Config{Node: "node", Boot: "boot", Every: 1, Files: 10}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = table.Close() }()
			totals, err := totals.Open(h, 1, table.CountsMergedRequests())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = totals.Close() }()
			books, at, sum := attribute.New("node"), int64(0), map[string]usage.Usage{}
			tick := func(fails bool) {
				t.Helper()
				at += 1e9
				s := &usage.Snapshot{Boot: "boot", At: at, Mono: at}
				if err := table.Read(s); err != nil {
					t.Fatal(err)
				}
				if err := totals.Read(s); err != nil {
					t.Fatal(err)
				}
				if fails {
					return
				}
				books.Tick(s)
				table.Booked()
				totals.Booked()
				var w usage.Window
				books.CloseWindow(&w)
				if w.Balance.Violations > 0 {
					t.Errorf("%d violations", w.Balance.Violations)
				}
				for _, r := range w.Rows {
					u := sum[r.Workload.Path]
					u.Add(&r.Usage)
					sum[r.Workload.Path] = u
				}
				u := sum["machine"]
				u.Add(&w.Total)
				sum["machine"] = u
			}
			tick(false)
			for i := range 3 {
				for range 2 {
					volume += 512 * 400
					disk += 512 * 10
					writes += 2
					write()
					tick(i == 1)
				}
				volume = 0
				write()
				tick(i == 1)
				tick(false)
			}
			const bytes, requests = 3 * 2 * 512 * 410, 3 * (2*2 + 7)
			for path, k := range map[string]int64{"/a/b": 1, "/a": 1, "machine": 2} {
				u := sum[path].Amount
				if path == "machine" { // of which a and a/b did half each
					u[usage.DiskWritten] *= 2
					u[usage.DiskReads] *= 2
					u[usage.DiskWrites] *= 2
				}
				if u[usage.DiskRead] != k*bytes || u[usage.DiskWritten] != k*bytes || u[usage.DiskReads] != k*requests || u[usage.DiskWrites] != k*requests {
					t.Errorf("%s: booked %d and %d bytes read and written, %d and %d requests; want %d bytes and %d requests", path,
						u[usage.DiskRead], u[usage.DiskWritten], u[usage.DiskReads], u[usage.DiskWrites], k*bytes, k*requests)
				}
			}
		})
	}
}

package run_test

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// accuracy skips the test unless it has the machine to itself.
func accuracy(t *testing.T, reader string) {
	t.Helper()
	testkit.Stage(t, "accuracy", "puts load on the machine and needs it exclusively")
	hosttest.Need(t, "root")
	if reader == "bpf" {
		hosttest.Need(t, "bpf")
	}
}

// median measures three times and returns the middle one.
func median(f func() float64) float64 {
	v := []float64{f(), f(), f()}
	slices.Sort(v)
	return v[1]
}

func get(t *testing.T, r *report.Report, k report.Key) float64 {
	t.Helper()
	v, ok := r.Get(k)
	if !ok {
		t.Fatalf("%s is absent: %q", k, r.Notes)
	}
	return float64(v)
}

// TestAccuracyCPU compares CPU time with the job's rusage.
func TestAccuracyCPU(t *testing.T) {
	for _, reader := range []string{"bpf", "files"} {
		for _, c := range []struct {
			name  string
			load  []string
			bound float64
		}{
			{"busy", []string{"busy", "-cores", "2", "-for", "10s"}, 0.001},
			{"forks", []string{"forks", "-each", "40ms", "-for", "10s"}, 0.003},
		} {
			t.Run(reader+"/"+c.name, func(t *testing.T) {
				accuracy(t, reader)
				m, file := program(t), load(t)
				off := median(func() float64 {
					rep, r := m.job(append([]string{"--reader", reader, "--", file}, c.load...)...)
					d := oracle(t, r)
					if n, ok := rep.Get(report.Processes); ok && n < d.Children+1 {
						t.Errorf("%d processes, started %d", n, d.Children+1)
					}
					off := get(t, rep, report.CPU)/float64(d.CPU) - 1
					t.Logf("%.6f s, rusage %.6f s: %+.4f %%", get(t, rep, report.CPU)/1e9, float64(d.CPU)/1e9, off*100)
					return off
				})
				if math.Abs(off) > c.bound {
					t.Errorf("%+.4f %% off, bound %.1f %%", off*100, c.bound*100)
				}
			})
		}
	}
}

// TestAccuracyMemory checks that anonymous memory is that of an idle helper plus the memory it
// touched.
func TestAccuracyMemory(t *testing.T) {
	for _, reader := range []string{"bpf", "files"} {
		t.Run(reader, func(t *testing.T) {
			accuracy(t, reader)
			m, file := program(t), load(t)
			hold := func(mb int) float64 {
				rep, r := m.job("--reader", reader, "--", file, "anon", "-mb", fmt.Sprint(mb), "-for", "1s")
				if d := oracle(t, r); d.Bytes != int64(mb)*1e6 {
					t.Fatalf("touched %d bytes", d.Bytes)
				}
				return get(t, rep, report.AnonPeak)
			}
			bare := median(func() float64 { return hold(0) })
			for _, mb := range []int{10, 20, 50, 100} {
				want := float64(mb) * 1e6
				got := median(func() float64 { return hold(mb) }) - bare
				t.Logf("%d MB: %.0f bytes, %+.3f %%", mb, got, (got/want-1)*100)
				if bound := 0.01*want + 256<<10*float64(runtime.NumCPU()); math.Abs(got-want) > bound {
					t.Errorf("%d MB: %.0f bytes, off by more than %.0f", mb, got, bound)
				}
			}
		})
	}
}

// TestAccuracyDisk compares synced writes with those of the disk.
func TestAccuracyDisk(t *testing.T) {
	accuracy(t, "bpf")
	m, file := program(t), load(t)
	// The temporary directory may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type == unix.TMPFS_MAGIC || st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		t.Skipf("%s is on no block device (%#x, %v)", dir, st.Type, err)
	}
	for _, mb := range []int{20, 40, 80, 120} {
		off := median(func() float64 {
			rep, r := m.job("--reader", "bpf", "--", file, "write", "-mb", fmt.Sprint(mb), "-file", filepath.Join(dir, "file"))
			return get(t, rep, report.DiskWritten)/float64(oracle(t, r).Bytes) - 1
		})
		t.Logf("%d MB: %+.3f %%", mb, off*100)
		if math.Abs(off) > 0.02 {
			t.Errorf("%d MB: %+.3f %% off, bound 2 %%", mb, off*100)
		}
	}
}

// TestAccuracyNetwork checks that traffic over a pair of veth devices is payload plus headers.
func TestAccuracyNetwork(t *testing.T) {
	accuracy(t, "bpf")
	hosttest.Need(t, "netns", "cgroup2")
	m, file := program(t), load(t)
	a, b := fmt.Sprintf("mete-test-a%d", os.Getpid()), fmt.Sprintf("mete-test-b%d", os.Getpid())
	for _, ns := range []string{a, b} {
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { ip(t, "netns", "del", ns) })
	}
	ip(t, "link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b)
	for ns, addr := range map[string]string{a: "10.213.0.1/24", b: "10.213.0.2/24"} {
		ip(t, "-n", ns, "addr", "add", addr, "dev", "veth0")
		ip(t, "-n", ns, "link", "set", "veth0", "up")
	}
	off := median(func() float64 {
		server := exec.Command("nsenter", "--net=/run/netns/"+b, file, "receive", "-listen", "10.213.0.2:7000")
		ready, err := server.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ready, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		// ip netns exec would hide the control groups from the job.
		rep, r := m.job("--reader", "bpf", "--", "nsenter", "--net=/run/netns/"+a, file, "send", "-mb", "11", "-to", "10.213.0.2:7000")
		if err := server.Wait(); err != nil {
			t.Fatal(err)
		}
		d := oracle(t, r)
		// IPv4 without options, TCP with time stamps.
		want := float64(d.Sent + d.Segments*(20+32))
		got := get(t, rep, report.NetworkTx)
		t.Logf("sent %.0f bytes, %d of payload in %d segments: %+.3f %%; received %.0f",
			got, d.Sent, d.Segments, (got/want-1)*100, get(t, rep, report.NetworkRx))
		return got/want - 1
	})
	if math.Abs(off) > 0.02 {
		t.Errorf("%+.3f %% off, bound 2 %%", off*100)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// TestAccuracyCost checks that mete adds little to a job that does nothing. CPU time is checked, against the budget or what
// a bare start takes, whichever is more: on some virtual machines the start of any process takes five times as long as on
// others. Wall time is logged.
func TestAccuracyCost(t *testing.T) {
	accuracy(t, "bpf")
	m := program(t)
	bin := filepath.Join(m.dir, "mete") // this test links more than the program does
	if out, err := exec.Command("go", "build", "-o", bin, "mete.dev/mete/cmd/mete").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var wall, cpu, bare, bareCPU []float64
	var peak float64
	for range 15 {
		start := time.Now()
		alone := exec.Command("/bin/true")
		if err := alone.Run(); err != nil {
			t.Fatal(err)
		}
		bareCPU = append(bareCPU, (alone.ProcessState.UserTime()+alone.ProcessState.SystemTime()).Seconds()*1e3)
		bare = append(bare, time.Since(start).Seconds()*1e3)
		c := exec.Command(bin, "run", "-q", "--", "/bin/true")
		c.Env = m.env
		start = time.Now()
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		wall = append(wall, time.Since(start).Seconds()*1e3)
		cpu = append(cpu, (c.ProcessState.UserTime()+c.ProcessState.SystemTime()).Seconds()*1e3)
		rep, err := report.Parse([]byte(m.run("report", "-o", "json").stdout))
		if err != nil {
			t.Fatal(err)
		}
		peak = max(peak, float64(rep.Meter.MemoryPeak))
	}
	for _, v := range [][]float64{wall, cpu, bare, bareCPU} {
		slices.Sort(v)
	}
	mid := len(wall) / 2
	t.Logf("wall %.1f ms over a bare %.1f ms, CPU %.1f ms over a bare %.1f ms, memory peak %.1f MiB", wall[mid]-bare[mid], bare[mid], cpu[mid]-bareCPU[mid], bareCPU[mid], peak/(1<<20))
	if budget := max(40, 40*bareCPU[mid]); cpu[mid]-bareCPU[mid] > budget {
		t.Errorf("CPU time %.1f ms over a bare %.1f ms, budget %.0f ms", cpu[mid]-bareCPU[mid], bareCPU[mid], budget)
	}
	if peak > 40<<20 {
		t.Errorf("memory %.1f MiB, budget 40 MiB", peak/(1<<20))
	}
}

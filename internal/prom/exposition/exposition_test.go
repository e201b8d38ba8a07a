package exposition_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/testkit/hosttest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	second = int64(1e9)
	joule  = int64(1e6)
	cid    = "4e5d0a6cf2f0a8e7b1c3d9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8"
	uid    = "0ba1c2d3-1111-4222-8333-444455556666"
)

// A machine makes windows of ten seconds.
type machine struct {
	now     int64
	handed  []usage.Handover
	modeled bool // there are no meters
	rows    []usage.Row
	total   map[workload.ID][usage.Limit]int64
}

// of returns the workload of a cgroup path.
func of(path string) workload.Workload {
	switch path {
	case "idle", "system":
		kind := workload.Idle
		if path == "system" {
			kind = workload.System
		}
		return workload.Workload{ID: workload.NewID("NODE", kind, ""), Kind: kind, Name: path}
	}
	n, ok := workload.Recognize(path)
	if !ok {
		n = workload.NameFromPath(path)
	}
	return n.Workload("NODE", "boot", path)
}

// use adds a row of a workload: CPU time in s, energy of packages and memory in J.
func (m *machine) use(path, parent string, cpu, pkg, dram int64) *usage.Row {
	w := of(path)
	r := usage.NewRow(&usage.Identity{Workload: w})
	if parent != "" {
		r.Workload.Parent = of(parent).ID
	}
	q := usage.Apportioned
	if m.modeled {
		q = usage.Modelled
	}
	r.Usage.Put(usage.CPU, cpu*second, usage.Measured)
	r.Usage.Put(usage.Memory, 1<<30, usage.Measured)
	r.Usage.Put(usage.EnergyPackage, pkg*joule, q)
	r.Usage.Put(usage.EnergyDRAM, dram*joule, q)
	r.Usage.Put(usage.EnergyError, joule, q)
	if w.Kind == workload.Idle {
		r.Usage.Put(usage.EnergyIdle, (pkg+dram)*joule, q)
	}
	if m.total == nil {
		m.total = map[workload.ID][usage.Limit]int64{}
	}
	t := m.total[w.ID]
	r.Usage.Present.Each(func(res usage.Resource) { t[res] += r.Usage.Amount[res] })
	m.total[w.ID], r.Total = t, t
	m.rows = append(m.rows, r)
	return &m.rows[len(m.rows)-1]
}

// window returns the closed window and begins the next.
func (m *machine) window() *usage.Window {
	m.now += 10 * second
	w := &usage.Window{Start: m.now - 10*second, End: m.now, CPUs: 4, Rows: m.rows, Handovers: m.handed}
	for _, r := range m.rows {
		for i, res := range usage.Wholes {
			part := &w.Balance.Workloads
			switch r.Workload.Kind {
			case workload.Idle:
				part = &w.Balance.Idle
			case workload.System:
				part = &w.Balance.System
			}
			part[i] += r.Usage.Amount[res]
			w.Balance.Whole[i] += r.Usage.Amount[res]
		}
	}
	m.rows, m.handed = nil, nil
	return w
}

const (
	podPath  = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0ba1c2d3_1111_4222_8333_444455556666.slice"
	inPod    = podPath + "/cri-containerd-" + cid + ".scope"
	vmPath   = `/machine.slice/machine-qemu\x2d1\x2dweb.scope`
	unitPath = "/system.slice/back\\x2dup\"1\".service"
)

// first returns a window with each kind of workload.
func (m *machine) first() *usage.Window {
	m.use(unitPath, "", 1, 5, 1)
	m.use(inPod, podPath, 10, 50, 10)
	m.use(podPath, "", 0, 1, 0)
	m.use(vmPath, "", 5, 25, 5)
	m.use("system", "", 2, 10, 2)
	m.use("idle", "", 22, 300, 80)
	m.handed = []usage.Handover{{Guest: "11112222-3333-4444-5555-666677778888", Workload: of(vmPath).ID, Name: "web"}}
	return m.window()
}

// meters returns two meters, of which one has failed.
func meters() *energy.Meters {
	part := func(name string, d power.Domain) power.Meter {
		return power.Meter{Name: name, Level: power.Part, Domain: d, Kind: power.Energy, Every: 1e6}
	}
	m := energy.New(energy.Config{Meters: []power.Meter{part("rapl/package-0", power.Package), part("rapl/package-0/dram", power.DRAM)},
		Static: [power.DomainLimit]int64{power.Package: 30 * joule}})
	m.Tick(energy.Interval{At: second, Elapsed: second}, nil, []power.Reading{{Meter: 0, At: second, Value: 1}})
	return m
}

func text(f func(*exposition.Text)) string {
	var t exposition.Text
	f(&t)
	return t.String()
}

// The golden files pin names and help texts.
func TestText(t *testing.T) {
	var tally exposition.Accumulator
	v := tally.Add("HOST", new(machine).first(), meters())
	for name, got := range map[string]string{
		"mete.txt":   text(func(p *exposition.Text) { v.Mete(p, true) }),
		"node.txt":   text(func(p *exposition.Text) { v.Mete(p, false) }),
		"kepler.txt": text(func(p *exposition.Text) { v.Kepler(p, true) }),
	} {
		golden := "testdata/" + name
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	node := text(func(p *exposition.Text) { v.Mete(p, false); v.Kepler(p, false) })
	for _, secret := range []string{"web", "back", cid, uid, "cri-containerd", "kepler_container", "kepler_vm", "kepler_pod"} {
		if strings.Contains(node, secret) {
			t.Errorf("without workloads: exposes %q", secret)
		}
	}
}

// promtool accepts the text.
func TestPromtool(t *testing.T) {
	hosttest.Need(t, "promtool")
	var tally exposition.Accumulator
	m := new(machine)
	tally.Add("HOST", m.first(), meters())
	m.use(unitPath, "", 1, 5, 1).Ended = true
	m.use("idle", "", 22, 300, 80)
	v := tally.Add("HOST", m.window(), meters())
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(text(func(p *exposition.Text) { v.Mete(p, true); v.Kepler(p, true) }))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// samples sums the samples of a metric whose lines contain all texts of with.
func samples(t *testing.T, text, name string, with ...string) (sum float64, n int) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		all := true
		for _, w := range with {
			all = all && strings.Contains(m[1], w)
		}
		if !all {
			continue
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum, n = sum+v, n+1
	}
	return sum, n
}

// TestPodUID checks which pods have their UID in the names of workloads: not one in a group that another user than root made,
// whose key is a path.
func TestPodUID(t *testing.T) {
	for key, want := range map[string]string{uid: uid, "boot" + podPath: ""} {
		m := new(machine)
		m.use(podPath, "", 1, 5, 1).Workload.Key = key
		m.use(inPod, podPath, 1, 5, 1)
		m.use("idle", "", 22, 300, 80)
		w := m.window()
		mete := text(func(p *exposition.Text) { new(exposition.Accumulator).Add("HOST", w, nil).Mete(p, true) })
		if _, n := samples(t, mete, "mete_workload_info", `uid="`+want+`"`, `path="`+podPath); n != 2 {
			t.Errorf("%q: %d of the pod and its container have the UID %q", key, n, want)
		}
	}
}

// The rows sum to the machine's capacity in each window, and an ended workload stays for two
// minutes.
func TestAccumulator(t *testing.T) {
	var tally exposition.Accumulator
	m := new(machine)
	show := func(w *usage.Window) (mete, kepler string) {
		v := tally.Add("HOST", w, nil)
		return text(func(p *exposition.Text) { v.Mete(p, true) }), text(func(p *exposition.Text) { v.Kepler(p, true) })
	}
	mete, kepler := show(m.first())
	check := func(what, text, name string, want float64, count int, with ...string) {
		t.Helper()
		if got, n := samples(t, text, name, with...); got != want || n != count {
			t.Errorf("%s: %s of %q is %v in %d samples, want %v in %d", what, name, with, got, n, want, count)
		}
	}
	check("rows", mete, "mete_workload_energy_joules_total", 391, 6, `domain="package"`)
	check("machine", mete, "mete_node_energy_joules_total", 391, 1, `domain="package"`, `quality="measured"`)
	check("machine", mete, "mete_node_domain_watts", 9.8, 1, `domain="dram"`)
	check("a pod with its container", kepler, "kepler_pod_cpu_joules_total", 51, 1, uid, `zone="package"`)
	check("its container", kepler, "kepler_container_cpu_watts", 5, 1, cid, uid, `zone="package"`, `runtime="containerd"`)
	check("active", kepler, "kepler_node_cpu_active_joules_total", 91, 1, `zone="package"`)

	// The container ends and the meters fail.
	m.modeled = true
	m.use(inPod, podPath, 1, 5, 1).Ended = true
	m.use(podPath, "", 0, 1, 0)
	m.use("idle", "", 22, 300, 80)
	mete, kepler = show(m.window())
	check("machine, measured", mete, "mete_node_energy_joules_total", 391, 1, `domain="package"`, `quality="measured"`)
	check("machine, modelled", mete, "mete_node_energy_joules_total", 306, 1, `domain="package"`, `quality="modelled"`)
	check("a container that ended", kepler, "kepler_container_cpu_joules_total", 55, 1, cid, `state="terminated"`, `zone="package"`)
	check("its pod", kepler, "kepler_pod_cpu_joules_total", 57, 1, uid, `zone="package"`)
	check("a workload that ended", mete, "mete_workload_cpu_seconds_total", 0, 0, string(of(unitPath).ID))

	ticks := 0
	for ; ticks < 20; ticks++ {
		m.use(podPath, "", 0, 1, 0)
		m.use("idle", "", 22, 300, 80)
		_, kepler = show(m.window())
		if _, n := samples(t, kepler, "kepler_container_cpu_joules_total", cid); n == 0 {
			break
		}
		check("power of the ended container", kepler, "kepler_container_cpu_watts", 0, 1, cid, `zone="package"`)
	}
	if ticks != 11 {
		t.Errorf("ended container was exposed for %d more windows, want 11 (two minutes)", ticks)
	}
	check("the pod still", kepler, "kepler_pod_cpu_joules_total", 57+12, 1, uid, `zone="package"`)

	// A new container with the same id replaces it.
	m.total = nil
	m.use(inPod, podPath, 1, 5, 1).Ended = true
	m.use(inPod, podPath, 1, 3, 1)
	m.use("idle", "", 22, 300, 80)
	_, kepler = show(m.window())
	check("the new container", kepler, "kepler_container_cpu_joules_total", 8, 1, cid, `zone="package"`)
	check("the new container", kepler, "kepler_container_cpu_joules_total", 8, 1, `state="running"`, `zone="package"`)
}

// Unknown energy is absent, not 0.
func TestAbsent(t *testing.T) {
	var tally exposition.Accumulator
	w := &usage.Window{Start: 0, End: second}
	for _, p := range []string{"/a", "idle"} {
		r := usage.NewRow(&usage.Identity{Workload: of(p)})
		r.Usage.Put(usage.CPU, second, usage.Measured)
		w.Rows = append(w.Rows, r)
	}
	v := tally.Add("HOST", w, nil)
	got := text(func(p *exposition.Text) { v.Mete(p, true); v.Kepler(p, true) })
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "#") && (strings.Contains(line, "joules") || strings.Contains(line, "watts")) && !strings.Contains(line, "error") {
			t.Errorf("sample of absent energy: %s", line)
		}
	}
}

// BenchmarkScrape measures adding a window of 500 workloads, which happens every ten seconds,
// and writing all metrics, which happens with each scrape.
func BenchmarkScrape(b *testing.B) {
	m := new(machine)
	for i := range 500 {
		m.use(fmt.Sprintf("/kubepods.slice/kubepods-pod%08x_1111_4222_8333_444455556666.slice/cri-containerd-%064x.scope", i, i), "", 1, 1, 1)
	}
	m.use("idle", "", 1, 1, 1)
	w := m.window()
	var tally exposition.Accumulator
	b.Run("take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tally.Add("HOST", w, nil)
		}
	})
	v := tally.Add("HOST", w, nil)
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n = len(text(func(p *exposition.Text) { v.Mete(p, true) }))
		}
		b.ReportMetric(float64(n), "B/text")
	})
}

// A counter stays exposed while its workload lives, also after a window without it, and a
// workload has the name that its maker gave it.
func TestIdleCounters(t *testing.T) {
	t.Parallel()
	m := new(machine)
	tally := exposition.Accumulator{Name: func(w *workload.Workload) string {
		if w.Kind == workload.Idle {
			return "unused"
		}
		return w.Name
	}}
	tally.Add("HOST", m.first(), nil)
	for _, path := range []string{unitPath, "system", "idle"} {
		m.use(path, "", 1, 0, 0).Usage = usage.Usage{}
	}
	v := tally.Add("HOST", m.window(), nil)
	got := text(func(p *exposition.Text) { v.Mete(p, true) })
	for _, want := range []string{
		`mete_workload_energy_joules_total{node="HOST",workload="` + string(of(unitPath).ID) + `",domain="dram"} 1`,
		`mete_workload_memory_byte_seconds_total{node="HOST",workload="` + string(of("idle").ID) + `"} `,
		`workload="` + string(of("idle").ID) + `",kind="idle",name="unused"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %s in:\n%s", want, got)
		}
	}
}

// A container that was restarted has the power of both lives in the window.
func TestRestarted(t *testing.T) {
	t.Parallel()
	m := new(machine)
	m.use(inPod, podPath, 10, 50, 10).Ended = true
	delete(m.total, of(inPod).ID)
	m.use(inPod, podPath, 10, 30, 10)
	m.use("system", "", 2, 10, 2)
	m.use("idle", "", 22, 300, 80)
	v := new(exposition.Accumulator).Add("HOST", m.window(), nil)
	got := text(func(p *exposition.Text) { v.Kepler(p, true); v.Mete(p, true) })
	for _, want := range []string{
		`kepler_container_cpu_watts\{container_id="` + cid + `",[^}]*,zone="package",[^}]*\} 8\n`,
		`mete_workload_energy_joules_total\{node="HOST",workload="` + string(of(inPod).ID) + `",domain="package"\} 30\n`,
	} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("nothing matches %s in:\n%s", want, got)
		}
	}
}

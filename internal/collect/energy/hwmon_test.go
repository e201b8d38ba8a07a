package energy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/hosttest"
)

// files returns a root directory with some files, whose keys are paths.
func files(t *testing.T, content map[string]string) *hostfs.FS {
	t.Helper()
	list := []txtar.File{{Name: "mete/clocks", Data: []byte("boottime 1\nmonotonic 1\nrealtime 1\n")}, {Name: "proc/stat"}}
	for path, text := range content {
		list = append(list, txtar.File{Name: strings.TrimPrefix(path, "/"), Data: []byte(text)})
	}
	return hosttest.Unpack(t, txtar.Format(&txtar.Archive{Files: list}))
}

// TestAccuracy checks the error of a power meter by the class that it states, in ppm.
func TestAccuracy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"95.0%": 50_000, "95.5%": 49_950, "99.999%": 10, "1.0%": 990_000, "90.999": 90_010,
		"0.5%": boardError, "100.0%": boardError, "95.1000%": boardError, "95.-1%": boardError, "95%": boardError, "x.0%": boardError, "": boardError,
	} {
		if got := accuracy(files(t, map[string]string{"/a": text + "\n"}), "/a"); got != want {
			t.Errorf("accuracy %q: %d ppm, want %d", text, got, want)
		}
	}
	if got := accuracy(files(t, nil), "/a"); got != boardError {
		t.Errorf("no accuracy: %d ppm", got)
	}
}

// TestInterval checks the averaging interval of a power meter, in ms.
func TestInterval(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"1": time.Millisecond, "60000": time.Minute, "60001": time.Second, "0": time.Second, "-5": time.Second, "x": time.Second,
	} {
		if got := interval(files(t, map[string]string{"/a": text + "\n"}), "/a"); got != want.Nanoseconds() {
			t.Errorf("interval %q: %v, want %v", text, time.Duration(got), want)
		}
	}
	if got := interval(files(t, nil), "/a"); got != 1e9 {
		t.Errorf("no interval: %d ns", got)
	}
}

// TestAttributes checks which files are attributes, and their order.
func TestAttributes(t *testing.T) {
	t.Parallel()
	h := files(t, map[string]string{"/d/power10_input": "", "/d/power2_input": "", "/d/power1_input": "", "/d/power1_average": "", "/d/power_input": "", "/d/powerx_input": "", "/d/energy1_input": "", "/d/power70000_input": "", "/d/powera_input": "", "/d/7_input": ""})
	want := []string{"/d/power1_input", "/d/power2_input", "/d/power10_input"}
	if got := attributes(h, "/d", "power", "_input"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := attributes(h, "/none", "power", "_input"); got != nil {
		t.Errorf("no directory: %v", got)
	}
}

// TestSensors checks the meters of hwmon by driver and attributes.
func TestSensors(t *testing.T) {
	t.Parallel()
	h := files(t, map[string]string{
		"/sys/class/hwmon/hwmon0/name":                  "amd_energy\n",
		"/sys/class/hwmon/hwmon0/energy1_input":         "1",
		"/sys/class/hwmon/hwmon0/energy1_label":         "Ecore000",
		"/sys/class/hwmon/hwmon0/energy2_input":         "1",
		"/sys/class/hwmon/hwmon0/energy2_label":         "Esocket1",
		"/sys/class/hwmon/hwmon0/energy3_input":         "1",
		"/sys/class/hwmon/hwmon1/name":                  "power_meter\n",
		"/sys/class/hwmon/hwmon1/power1_average":        "1",
		"/sys/class/hwmon/hwmon1/power1_input":          "1",
		"/sys/class/hwmon/hwmon1/power1_is_battery":     "0",
		"/sys/class/hwmon/hwmon1/power2_average":        "1",
		"/sys/class/hwmon/hwmon1/power2_is_battery":     "1",
		"/sys/class/hwmon/hwmon1/power3_average":        "1",
		"/sys/class/hwmon/hwmon1/power3_oem_info":       "CPU Power Socket 0",
		"/sys/class/hwmon/hwmon1/power4_average":        "1",
		"/sys/class/hwmon/hwmon1/power4_oem_info":       "Grace Power Socket 2",
		"/sys/class/hwmon/hwmon1/power5_average":        "1",
		"/sys/class/hwmon/hwmon1/power5_oem_info":       "Module Power Socket 3",
		"/sys/class/hwmon/hwmon1/power6_average":        "1",
		"/sys/class/hwmon/hwmon1/power6_oem_info":       "SysIO Power Socket 0",
		"/sys/class/hwmon/hwmon2/name":                  "power_meter\n",
		"/sys/class/hwmon/hwmon2/device/power1_input":   "1",
		"/sys/class/hwmon/hwmon2/device/power2_average": "1",
		"/sys/class/hwmon/hwmon3/name":                  "coretemp\n",
		"/sys/class/hwmon/hwmon3/power1_average":        "1",
		"/sys/class/hwmon/hwmon4/power1_average":        "1",
		"/sys/class/hwmon/hwmon5/name":                  "power_meter\n",
		"/sys/class/hwmon/hwmon5/power1_average":        "1",
		"/sys/class/hwmon/hwmon5/device/power2_average": "1",
	})
	list, err := hwmon(h)
	if err != nil {
		t.Fatal(err)
	}
	want := []power.Meter{
		{Name: "hwmon/amd_energy/Esocket1", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Hwmon, Step: 125, Every: 1e6, ErrorPPM: 50_000},
		{Name: "hwmon/power_meter/hwmon1", Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon, Step: 1e6, Every: 1e9, ErrorPPM: 50_000},
		{Name: "hwmon/grace-2", Level: power.Part, Domain: power.Package, Kind: power.Power, From: power.Hwmon, Step: 1000, Every: 1e9, ErrorPPM: 50_000},
		{Name: "hwmon/module-3", Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon, Step: 1000, Every: 1e9, ErrorPPM: 50_000},
		{Name: "hwmon/power_meter/hwmon2", Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon, Step: 1e6, Every: 1e9, ErrorPPM: 50_000},
		{Name: "hwmon/power_meter/hwmon5", Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon, Step: 1e6, Every: 1e9, ErrorPPM: 50_000},
	}
	var got []power.Meter
	for _, m := range list {
		got = append(got, m.meter)
	}
	if !slices.Equal(got, want) {
		t.Errorf("meters\n%+v\nwant\n%+v", got, want)
	}
	if list[0].zoneID != "rapl/package-1" || list[1].path != "/sys/class/hwmon/hwmon1/power1_average" || list[1].zoneID != "" || list[4].path != "/sys/class/hwmon/hwmon2/device/power2_average" {
		t.Errorf("paths %s, %s, %s", list[0].zoneID, list[1].path, list[4].path)
	}
}

// TestRefused checks zones that are refused because of their names, or those of the zones above.
func TestRefused(t *testing.T) {
	t.Parallel()
	h := files(t, map[string]string{
		"/d/intel-rapl:0/name":      "package-0\n",
		"/d/intel-rapl:0:0/name":    "dram\n",
		"/d/intel-rapl:0:1/name":    "core\n",
		"/d/intel-rapl:1/name":      "package-1\x01\n",
		"/d/intel-rapl:2/name":      " \n",
		"/d/intel-rapl:3:0/name":    "dram\n",
		"/d/intel-rapl:4/energy_uj": "1",
		"/d/intel-rapl/name":        "package-5\n",
		"/d/other:6/name":           "package-6\n",
		"/d/intel-rapl-mmio:7/name": "package-7\n",
	})
	list, refused, err := powercap(h, "/d")
	var names []string
	for _, m := range list {
		names = append(names, m.meter.Name+" "+m.path+" "+m.zoneID)
	}
	want := []string{"rapl/package-0 /d/intel-rapl:0/energy_uj rapl/package-0", "rapl/package-0/dram /d/intel-rapl:0:0/energy_uj rapl/package-0/dram",
		"rapl/package-7 /d/intel-rapl-mmio:7/energy_uj rapl/package-7"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("meters %q, %v, want %q", names, err, want)
	}
	if len(refused) != 4 {
		t.Fatalf("refused %v, want 4", refused)
	}
	for i, want := range []string{"/d/intel-rapl:1/name: no name", "/d/intel-rapl:2/name: no name", "/d/intel-rapl:3/name: ", "/d/intel-rapl:4/name: "} {
		if missing := i >= 2; !strings.HasPrefix(refused[i].Error(), want) || errors.Is(refused[i], fault.ErrInvalid) == missing || (fault.Hint(refused[i]) != "") != missing {
			t.Errorf("refused: %v, want %s", refused[i], want)
		}
	}
}

// TestZone checks the meter of a zone by its name.
func TestZone(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]power.Meter{
		"package-0":          {Level: power.Part, Domain: power.Package, ErrorPPM: 50_000},
		"package-1-die-0":    {Level: power.Part, Domain: power.Package, ErrorPPM: 50_000},
		"package-0/dram":     {Level: power.Part, Domain: power.DRAM, ErrorPPM: 200_000},
		"psys":               {Level: power.Board, Domain: power.Rest, ErrorPPM: 100_000},
		"package-0/core":     {},
		"psys/dram":          {},
		"core":               {},
		"package-0/dram/dim": {},
	} {
		got, ok := zone(name)
		if ok != (want.ErrorPPM > 0) {
			t.Errorf("%s: %v", name, ok)
		}
		want.Name, want.Kind, want.From, want.Every = "rapl/"+name, power.Energy, power.Powercap, 1e6
		if ok && got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// TestSpan checks the value at which a counter wraps, and its unit.
func TestSpan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int64{
		"262143328850": {262143328911, 62}, "4294967295": {4294967296, 1}, "4294967296": {4294967297, 2}, "1": {2, 1}, "6871947672": {6871947674, 2},
		"65532610987": {65532611002, 16}, "0": {0, 1}, "-1": {0, 1}, "x": {0, 1}, "4611686018427387904": {4611686019501129728, 1073741825}, "4611686018427387905": {0, 1},
	} {
		if wrap, step := span(files(t, map[string]string{"/a": text + "\n"}), "/a"); wrap != want[0] || step != want[1] {
			t.Errorf("highest value %s: wraps at %d, unit %d, want %v", text, wrap, step, want)
		}
	}
	if wrap, step := span(files(t, nil), "/a"); wrap != 0 || step != 1 {
		t.Errorf("unknown highest value: wraps at %d, unit %d", wrap, step)
	}
}

// TestSampleInterval checks the limits of the sampling interval.
func TestSampleInterval(t *testing.T) {
	t.Parallel()
	for sample, valid := range map[time.Duration]bool{0: true, 10 * time.Millisecond: true, 10*time.Millisecond - 1: false, time.Minute: true, time.Minute + 1: false, -1: false} {
		if err := (Config{Sample: sample}).Validate(); (err == nil) != valid {
			t.Errorf("interval %v: %v", sample, err)
		}
	}
	if err := (Config{NVML: "relative"}).Validate(); err == nil {
		t.Error("took a relative path of mete-nvml")
	}
}

// TestDeduplicate checks which meters remain, and their names.
func TestDeduplicate(t *testing.T) {
	t.Parallel()
	m := func(name, zone string) *fileMeter { return &fileMeter{meter: power.Meter{Name: name}, zoneID: zone} }
	var got strings.Builder
	for _, f := range deduplicate([]*fileMeter{m("a", "1"), m("b", "2"), m("a", "1"), m("a", "3")}, []*fileMeter{m("s", "2"), m("p", ""), m("p", ""), m("p", ""), m("q", "4"), m("r", "4")}) {
		got.WriteString(f.meter.Name + " ")
	}
	if want := "a b a#2 p p#2 p#3 q r "; got.String() != want {
		t.Errorf("meters %s, want %s", got.String(), want)
	}
}

// TestSimulatedLabel checks the label of simulated meters, and their names.
func TestSimulatedLabel(t *testing.T) {
	t.Parallel()
	long := "0123456789012345678901234567890123456789012345678901234567890123456789"
	for text, want := range map[string]string{"demo": "demo", " a\tb\x7f  c \n": "a b c", "": power.DemoLabel, long: long[:64], long[:63] + "\u00e9": long[:63]} {
		zones := []*fileMeter{{meter: power.Meter{Name: "rapl/package-0", From: power.Powercap}}}
		got := simulated(files(t, map[string]string{"/d/" + power.SimulatedFile: text}), "/d", zones)
		if got != want || zones[0].meter.Name != want+" package-0" || zones[0].meter.From != power.Model {
			t.Errorf("label %q: %q, meter %+v, want %q", text, got, zones[0].meter, want)
		}
	}
	zones := []*fileMeter{{meter: power.Meter{Name: "rapl/package-0", From: power.Powercap}}}
	if got := simulated(files(t, nil), "/d", zones); got != "" || zones[0].meter.Name != "rapl/package-0" || zones[0].meter.From != power.Powercap {
		t.Errorf("no label: %q, %+v", got, zones[0].meter)
	}
	s := Source{simulated: "x"}
	if s.Simulated() != "x" {
		t.Error("the label is lost")
	}
}

// TestCompletion checks the kind of error of each completion code.
func TestCompletion(t *testing.T) {
	t.Parallel()
	want := map[byte]error{0: nil, 0xc0: fault.ErrUnavailable, 0xc3: fault.ErrUnavailable, 0xce: fault.ErrUnavailable, 0xcf: fault.ErrUnavailable,
		0xd0: fault.ErrUnavailable, 0xd2: fault.ErrUnavailable, 0xd4: fault.ErrDenied}
	for code := range 256 {
		kind, known := want[byte(code)]
		if !known {
			kind = fault.ErrUnsupported
		}
		if err := completion(byte(code)); !errors.Is(err, kind) {
			t.Errorf("code %#02x: %v, want %v", code, err, kind)
		}
	}
	for period, want := range map[int64]time.Duration{0: time.Second, -1: time.Second, 1: 1, int64(time.Minute): time.Minute, int64(time.Minute) + 1: time.Second} {
		if got := (&dcmi{period: period}).meter().Every; got != want.Nanoseconds() {
			t.Errorf("period %d ns: update interval %d ns, want %v", period, got, want)
		}
	}
}

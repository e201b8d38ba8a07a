package power

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const second = 1_000_000_000

// sample returns a host with two packages, one of them unreadable, and four virtual machines: one
// fully known, one of libvirt, one that shares its group, and one that has just ended.
func sample() *listing {
	l := &listing{Time: time.Date(2026, 3, 14, 12, 0, 1, 0, time.UTC), Over: 2, Processor: "AMD EPYC 7543 32-Core Processor, 64 threads"}
	list := []power.Meter{
		{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Step: 61, Every: 1e6, ErrorPPM: 50_000},
		{Name: "rapl/package-1", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Step: 61, Every: 1e6, ErrorPPM: 50_000},
		{Name: "ipmi/dcmi", Level: power.Box, Domain: power.Rest, Kind: power.Power, From: power.IPMI, Step: 1e6, Every: second, ErrorPPM: 50_000},
		{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: second},
	}
	share := func(s, uJ int64) *power.Share {
		return &power.Share{Epoch: "e", At: s * second, Active: uJ, Error: uJ / 10, Modelled: uJ}
	}
	l.Meters = meters(list,
		[]power.Reading{{Meter: 0, At: 1 * second, Value: 5}, {Meter: 1, Err: "energy_uj: permission denied"}, {Meter: 2, At: second, Value: 1}, {Meter: 3, At: second, Value: 1, Share: share(1, 1)}},
		[]power.Reading{{Meter: 0, At: 3 * second, Value: 120_000_005}, {Meter: 1, Err: "energy_uj: permission denied"}, {Meter: 2, At: second, Value: 213_000_000}, {Meter: 3, At: 3 * second, Value: 9_000_001, Share: share(3, 9_000_001)}})
	l.Refused = refusals([]error{fault.WithHint(fmt.Errorf("rapl/package-1: energy_uj: %w", fault.ErrDenied), "run as root")})
	l.Machine = &live.Energy{Watts: 213, Error: 12.5, Idle: 140, Quality: usage.Measured, Domains: []live.Domain{
		{Name: "package", Watts: 60, Error: 3, Idle: 20, Quality: usage.Measured, Source: "rapl/package-0"}, {Name: "rest", Watts: 153, Error: 9.5, Idle: 120, Quality: usage.Measured, Source: "ipmi/dcmi"}}}
	l.Curve = curveOf(&power.Curve{Domain: power.Package, Points: []power.Point{{Load: 0, Power: 40e6}, {Load: power.PPM, Power: 240e6}}, ErrorPPM: 300_000, IdleErrorPPM: 600_000, Source: "the results of its CPU"})

	web := &vm.VM{PID: 4711, Domain: vm.Domain{Name: "web-1", UUID: "6f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d99", CID: 7, VCPUs: 2, MaxVCPUs: 4}, VCPUs: 3, Group: "/machine.slice/web/emulator",
		Workload: workload.Workload{ID: "dydf3y7nl77zz6sdgjfltdozr4", Kind: workload.VM, Name: "web-1", Path: "/machine.slice/web"}}
	a := observation{times: vm.Times{At: second, Named: true, HasWait: true}, exits: vm.Exits{"exits": 1000, "halt_exits": 10, "halt_wait_ns": 5e8}, exitsAt: time.Unix(1, 0)}
	b := observation{times: vm.Times{At: 3 * second, CPU: 3e9, Named: true, HasWait: true, Wait: 5e8}, exits: vm.Exits{"exits": 25_000, "halt_exits": 20, "halt_wait_ns": 15e8}, exitsAt: time.Unix(3, 0)}
	b.times.Role = [vm.RoleLimit]int64{vm.VCPU: 25e8, vm.VHost: 2e8, vm.IOThread: 1e8, vm.Emulator: 2e8}
	l.VMs = append(l.VMs, guestOf(web, &a, &b))

	db := &vm.VM{PID: 4712, Domain: vm.Domain{Name: "db", UUID: "7f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d99", VCPUs: 8, MaxVCPUs: 8}, VCPUs: 8, Group: "/machine.slice/db",
		Workload: workload.Workload{ID: "eydf3y7nl77zz6sdgjfltdozr4", Kind: workload.VM, Name: "db", Path: "/machine.slice/db"}}
	held := fault.WithHint(fmt.Errorf("libvirt holds its QMP monitor: %w", fault.ErrUnsupported), "give the domain a second monitor")
	l.VMs = append(l.VMs, guestOf(db, &observation{times: a.times, exitsErr: held}, &observation{times: b.times, exitsErr: held}))

	hand := &vm.VM{PID: 4713, Domain: vm.Domain{VCPUs: 1, MaxVCPUs: 1}, VCPUs: 1, Group: "/user.slice/user-1000.slice/session-3.scope",
		Workload:     workload.Workload{ID: "fydf3y7nl77zz6sdgjfltdozr4", Kind: workload.Session, Name: "session 3", Path: "/user.slice/user-1000.slice/session-3.scope"},
		RejectReason: "it shares its group with make (PID 4720); give it its own"}
	old := fmt.Errorf("QEMU is older than 7.1, which tells: %w", fault.ErrUnsupported)
	l.VMs = append(l.VMs, guestOf(hand, &observation{times: vm.Times{At: second}, exitsErr: old}, &observation{times: vm.Times{At: 3 * second, CPU: 1e9}, exitsErr: old}))

	gone := errors.New("/proc/4714/stat: no such process")
	l.VMs = append(l.VMs, guestOf(&vm.VM{PID: 4714, Domain: vm.Domain{Name: "gone"}, VCPUs: 1, RejectReason: "its group is not known yet, or no longer"},
		&a, &observation{timesErr: gone, exitsErr: gone}))
	return l
}

func TestGolden(t *testing.T) {
	l := sample()
	json, err := l.encode()
	if err != nil {
		t.Fatal(err)
	}
	bare := &listing{Processor: "a CPU, 2 threads", Curve: l.Curve, Meters: []meterListing{}, Refused: []refusal{}, VMs: []guest{}}
	none := bare.text()
	bare.VMsWhy = "control groups: none mounted: not supported"
	for name, got := range map[string][]byte{"host.txt": l.text(), "host.json": json, "bare.txt": none, "meters-alone.txt": bare.text()} {
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestForm checks that an unknown format is rejected before any device is opened.
func TestForm(t *testing.T) {
	var out bytes.Buffer
	err := show(t.Context(), sources.Config{Reader: "nosuch"}, "xml", &out)
	if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}

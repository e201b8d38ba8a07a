package energy

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/power"
)

const hwmonDir = "/sys/class/hwmon"

// boardError is the class of the power meter of a board or of a management
// controller that does not state its own. It is an assumption: ACPI lets a meter
// state its accuracy (_PMC) and asks for none, and DCMI's answer has no room for
// one. What makers and energy labels promise is about the plug of whole machines
// at some load, and could not be held against any one meter here.
const boardError = 50_000

// hwmon finds the sensors that are known to show energy or power of a part of
// the machine that is known.
func hwmon(h *hostfs.FS) ([]*fileMeter, error) {
	es, err := h.ReadDir(hwmonDir)
	if err != nil {
		return nil, err
	}
	var list []*fileMeter
	for _, e := range es {
		dir := path.Join(hwmonDir, e.Name())
		driver, err := readWord(h, path.Join(dir, "name"))
		if err != nil {
			continue // a device without a name, or gone
		}
		switch driver {
		case "amd_energy":
			list = append(list, sockets(h, dir)...)
		case "power_meter":
			list = append(list, meters(h, dir)...)
		}
	}
	return list, nil
}

// sockets finds the sockets of amd_energy, which sums up the counters of AMD's
// RAPL to 64 bits, for each core and for each socket (the kernel's
// hwmon/amd_energy.rst). The cores are inside. Where powercap shows the same
// counters its package comes first.
func sockets(h *hostfs.FS, dir string) (list []*fileMeter) {
	for _, p := range attributes(h, dir, "energy", "_input") {
		label, err := readWord(h, strings.TrimSuffix(p, "_input")+"_label")
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(label, "Esocket"))
		if err != nil {
			continue
		}
		list = append(list, &fileMeter{host: h, path: p, zoneID: "rapl/package-" + strconv.Itoa(n), meter: power.Meter{
			Name: "hwmon/amd_energy/" + label, Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Hwmon,
			Step:  125, // "course grain (0.125 milli J)", the larger of its two units
			Every: raplEvery, ErrorPPM: packageError,
		}})
	}
	return list
}

// meters finds the power meters of ACPI (ACPI specification, section 10.4; the
// kernel's hwmon/acpi_power_meter.rst). One measures the whole machine, but for those
// that say in oem_info that they are NVIDIA's Grace, whose sensors nest: "Module
// Power Socket 0" is a module with its GPU, "Grace Power Socket 0" the CPU with
// its memory inside it, "CPU Power" and "SysIO Power" rails of that (NVIDIA Grace
// Performance Tuning Guide, "Power Telemetry").
func meters(h *hostfs.FS, dir string) (list []*fileMeter) {
	for _, dir := range []string{dir, path.Join(dir, "device")} {
		found := attributes(h, dir, "power", "_average")
		if len(found) == 0 {
			found = attributes(h, dir, "power", "_input")
		}
		for _, p := range found {
			stem := p[:strings.LastIndexByte(p, '_')]
			if is, err := readWord(h, stem+"_is_battery"); err == nil && is == "1" {
				continue
			}
			m := power.Meter{Name: "hwmon/power_meter/" + device(h, dir), Level: power.Board, Domain: power.Rest, Kind: power.Power, From: power.Hwmon,
				Step: 1e6, Every: interval(h, stem+"_average_interval"), ErrorPPM: accuracy(h, stem+"_accuracy")}
			oem, _ := readWord(h, stem+"_oem_info") // older ones have none
			socket, grace := strings.CutPrefix(oem, "Grace Power Socket ")
			module, isModule := strings.CutPrefix(oem, "Module Power Socket ")
			switch {
			case grace:
				m.Name, m.Level, m.Domain, m.Step = "hwmon/grace-"+socket, power.Part, power.Package, 1000
			case isModule:
				m.Name, m.Step = "hwmon/module-"+module, 1000
			case strings.HasPrefix(oem, "CPU Power Socket "), strings.HasPrefix(oem, "SysIO Power Socket "):
				continue
			}
			list = append(list, &fileMeter{host: h, path: p, meter: m})
		}
		if len(list) > 0 {
			break // older kernels have the attributes at the device, newer ones beside its name
		}
	}
	return list
}

// attributes lists the files in dir called prefix, a number and suffix.
func attributes(h *hostfs.FS, dir, prefix, suffix string) (paths []string) {
	es, err := h.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range es {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok {
			continue
		}
		n, ok := strings.CutSuffix(rest, suffix)
		if _, err := strconv.ParseUint(n, 10, 16); ok && err == nil {
			paths = append(paths, path.Join(dir, e.Name()))
		}
	}
	// By number, so that socket 10 does not stand before socket 2.
	slices.SortFunc(paths, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return paths
}

// device is the name of the device behind a directory of hwmon, "ACPI000D:00",
// which does not change with the order in which drivers came.
func device(h *hostfs.FS, dir string) string {
	dir = strings.TrimSuffix(dir, "/device")
	if to, err := h.Readlink(path.Join(dir, "device")); err == nil {
		return path.Base(to)
	}
	return path.Base(dir)
}

// interval reads over how long a meter averages, in ms, and returns ns. A
// second is what most controllers have.
func interval(h *hostfs.FS, p string) int64 {
	b, err := h.ReadFile(p)
	if err == nil {
		if ms, err := procfmt.Int(b); err == nil && ms > 0 && ms <= time.Minute.Milliseconds() {
			return ms * 1e6
		}
	}
	return int64(time.Second)
}

// accuracy reads a meter's own class, such as "95.0%", and returns what is
// missing of the whole in ppm. The kernel writes thousandths behind the point
// without zeroes in front: "95.5%" is 95.005 %.
func accuracy(h *hostfs.FS, p string) int64 {
	text, err := readWord(h, p)
	if err != nil {
		return boardError
	}
	whole, part, _ := strings.Cut(strings.TrimSuffix(text, "%"), ".")
	w, werr := strconv.ParseInt(whole, 10, 64)
	f, ferr := strconv.ParseInt(part, 10, 64)
	if werr != nil || ferr != nil || w <= 0 || w > 99 || f < 0 || f > 999 {
		return boardError // one that is never wrong is not believed
	}
	return (100_000 - w*1000 - f) * power.PPM / 100_000
}

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

// boardError is the assumed class of the power meter of a board or management controller
// that states none: ACPI lets a meter state its accuracy (_PMC) but does not require it,
// and DCMI's answer has no field for it. The figures of vendors and energy labels are for
// the plug of whole machines at some load and do not apply to these meters.
const boardError = 50_000

// hwmon finds the sensors known to measure energy or power of a known part of the machine.
func hwmon(h *hostfs.FS) ([]*fileMeter, error) {
	es, err := h.ReadDir(hwmonDir)
	if err != nil {
		return nil, err
	}
	var list []*fileMeter
	for _, e := range es {
		dir := path.Join(hwmonDir, e.Name())
		driver, _ := readWord(h, path.Join(dir, "name")) // "" if the device is removed
		switch driver {
		case "amd_energy":
			list = append(list, sockets(h, dir)...)
		case "power_meter":
			list = append(list, meters(h, dir)...)
		}
	}
	return list, nil
}

// sockets finds the sockets of amd_energy, which extends the counters of AMD's RAPL to 64
// bits for each core and each socket (the kernel's hwmon/amd_energy.rst). A socket includes
// its cores. If powercap shows the same counters, its package is preferred.
func sockets(h *hostfs.FS, dir string) (list []*fileMeter) {
	for _, p := range attributes(h, dir, "energy", "_input") {
		label, _ := readWord(h, strings.TrimSuffix(p, "_input")+"_label") // "" if there is none
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

// meters finds the power meters of ACPI (ACPI specification, section 10.4; the kernel's
// hwmon/acpi_power_meter.rst). A meter measures the whole machine, unless oem_info
// identifies NVIDIA's Grace, whose sensors nest: "Module Power Socket 0" is a module with
// its GPU, "Grace Power Socket 0" the CPU with its memory, "CPU Power" and "SysIO Power"
// are rails of that (NVIDIA Grace Performance Tuning Guide, "Power Telemetry").
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
			oem, _ := readWord(h, stem+"_oem_info") // missing in older kernels
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
			break // older kernels put the attributes at the device, newer ones beside its name
		}
	}
	return list
}

// attributes lists the files in dir called prefix, a number and suffix.
func attributes(h *hostfs.FS, dir, prefix, suffix string) (paths []string) {
	es, _ := h.ReadDir(dir) // none if there is no directory
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
	// Sort by number, so that socket 2 precedes socket 10.
	slices.SortFunc(paths, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return paths
}

// device returns the name of the device behind a hwmon directory, "ACPI000D:00", which does
// not depend on the order of drivers.
func device(h *hostfs.FS, dir string) string {
	dir = strings.TrimSuffix(dir, "/device")
	if to, err := h.Readlink(path.Join(dir, "device")); err == nil {
		return path.Base(to)
	}
	return path.Base(dir)
}

// interval reads a meter's averaging interval in ms and returns ns. Most controllers have a
// second.
func interval(h *hostfs.FS, p string) int64 {
	b, err := h.ReadFile(p)
	if err == nil {
		if ms, err := procfmt.Int(b); err == nil && ms > 0 && ms <= time.Minute.Milliseconds() {
			return ms * 1e6
		}
	}
	return int64(time.Second)
}

// accuracy reads a meter's own class, such as "95.0%", and returns the error in ppm. The
// kernel writes thousandths after the point without leading zeroes: "95.5%" is 95.005 %.
func accuracy(h *hostfs.FS, p string) int64 {
	text, _ := readWord(h, p) // "" if the meter states none
	whole, part, _ := strings.Cut(strings.TrimSuffix(text, "%"), ".")
	w, werr := strconv.ParseInt(whole, 10, 64)
	f, ferr := strconv.ParseInt(part, 10, 64)
	if werr != nil || ferr != nil || w <= 0 || w > 99 || f < 0 || f > 999 {
		return boardError // an error of zero is not plausible
	}
	return (100_000 - w*1000 - f) * power.PPM / 100_000
}

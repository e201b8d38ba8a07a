package energy

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const powercapDir = "/sys/class/powercap"

// mountedDir is where a container has the machine's powercapDir: container runtimes cover the files
// to which the links in their own one lead. The files have to be mounted too, below /host/sys.
const mountedDir = "/host" + powercapDir

// raplEvery is the update interval of RAPL's counters (Intel SDM volume 3, "RAPL
// Interfaces": "updated once every ~1 ms"; the kernel's hwmon/amd_energy.rst: "These
// registers are updated every 1ms").
const raplEvery = 1e6

// The classes of RAPL are assumptions, since no vendor states them. Known: since Haswell
// packages are measured and agree well with a reference (Hackenberg and others, "An Energy
// Efficiency Feature Survey of the Intel Haswell Processor", 2015; Khan and others, "RAPL
// in Action", 2018, finds them highly correlated with the power at the plug); memory
// follows the trend, usually off by a constant, and worst when idle (Desrochers and others,
// "A Validation of DRAM RAPL Power Measurements", 2016); the content of psys is up to the
// maker of the board.
const (
	packageError = 50_000
	dramError    = 200_000
	psysError    = 100_000
)

// powercap finds RAPL's zones below dir: Intel's and, by the same driver, AMD's.
//
// A directory has one entry for each zone: intel-rapl:0, and intel-rapl:0:1 for a zone
// inside it. Some machines show their packages again through memory-mapped registers, as
// intel-rapl-mmio:0: these come after the others, so that they count only if the others are
// missing. Machines with several packages have one psys too: the kernel leaves out those
// that read 0 ("powercap/intel_rapl: enumerate Psys RAPL domain together with package RAPL
// domain"). A zone without a readable name is refused.
func powercap(h *hostfs.FS, dir string) (list []*fileMeter, refused []error, err error) {
	es, err := h.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var ids, again []string
	for _, e := range es {
		switch control, _, _ := strings.Cut(e.Name(), ":"); {
		case control == e.Name(): // the control type itself
		case control == "intel-rapl":
			ids = append(ids, e.Name())
		case control == "intel-rapl-mmio":
			again = append(again, e.Name())
		}
	}
	for _, id := range append(ids, again...) {
		name, err := zoneName(h, dir, id)
		if errors.Is(err, fault.ErrNotFound) {
			err = fault.WithHint(err, hidden)
		}
		if err != nil {
			refused = append(refused, err)
			continue
		}
		m, ok := zone(name)
		if !ok {
			continue
		}
		p := path.Join(dir, id)
		m.Wrap, m.Step = span(h, path.Join(p, "max_energy_range_uj"))
		list = append(list, &fileMeter{meter: m, host: h, path: path.Join(p, "energy_uj"), zoneID: "rapl/" + name})
	}
	return list, refused, nil
}

// hidden is the likely cause if a zone is listed but has no files.
const hidden = "container runtimes hide /sys/devices/virtual/powercap: mount it and /sys/class/powercap below /host, or run outside the container"

// zoneName returns the name of a zone, after that of its parent zone.
func zoneName(h *hostfs.FS, dir, id string) (string, error) {
	name, err := readWord(h, path.Join(dir, id, "name"))
	if err == nil && (name == "" || strings.ContainsFunc(name, unicode.IsControl)) {
		err = fmt.Errorf("%s: no name: %w", path.Join(dir, id, "name"), fault.ErrInvalid)
	}
	up := id[:strings.LastIndexByte(id, ':')]
	if err != nil || !strings.Contains(up, ":") {
		return name, err
	}
	above, err := readWord(h, path.Join(dir, up, "name"))
	return above + "/" + name, err
}

// zone returns the meter of a zone by its name, and false for a part of a package: its
// cores and graphics.
func zone(name string) (power.Meter, bool) {
	m := power.Meter{Name: "rapl/" + name, Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap,
		Every: raplEvery, ErrorPPM: packageError}
	top, sub, inside := strings.Cut(name, "/")
	switch {
	case inside && sub == "dram" && strings.HasPrefix(top, "package-"):
		m.Domain, m.ErrorPPM = power.DRAM, dramError
	case inside:
		return m, false
	case strings.HasPrefix(top, "package-"):
	case strings.HasPrefix(top, "psys"):
		m.Level, m.Domain, m.ErrorPPM = power.Board, power.Rest, psysError
	default:
		return m, false
	}
	return m, true
}

// span reads the highest value of a counter, and returns the value at which it wraps and
// its unit, rounded up. RAPL's counters have 32 bits; the kernel multiplies them by their
// unit, 61 uJ on most machines.
func span(h *hostfs.FS, p string) (wrap, step int64) {
	text, _ := readWord(h, p) // "" if there is none
	top, err := procfmt.Int([]byte(text))
	if err != nil || top <= 0 || top > maxValue {
		return 0, 1 // not known to wrap
	}
	const max32 = 1<<32 - 1
	return top + max(1, (top+max32/2)/max32), (top + max32 - 1) / max32
}

// readWord reads a file of one word or line; of a longer one, the beginning.
func readWord(h *hostfs.FS, p string) (string, error) {
	f, err := h.Open(p)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	var buf [256]byte
	n, err := f.Pread(buf[:])
	if err != nil {
		return "", hostfs.Kind(p, err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

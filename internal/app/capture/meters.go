package capture

import (
	"errors"
	"path"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// meters captures the meters of energy and power: the RAPL counters of powercap and the sensors of
// hwmon.
func (m *machine) meters() {
	const powercap, hwmon = "/sys/class/powercap", "/sys/class/hwmon"
	for _, name := range m.names(powercap) {
		for _, f := range []string{"name", "energy_uj", "max_energy_range_uj", "enabled"} {
			m.file(path.Join(powercap, name, f), nil)
		}
		m.counts["meters"]++
	}
	for _, name := range m.names(hwmon) {
		m.sensors(path.Join(hwmon, name))
		m.counts["meters"]++
	}
}

// names lists a directory; an unreadable one is empty.
func (m *machine) names(dir string) (names []string) {
	es, err := m.host.ReadDir(dir)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		m.missing++
	}
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

// sensors captures one device of hwmon: the name of its driver and its attributes of energy or
// power. Older kernels have those attributes in the parent device, which is identified by its name
// alone.
func (m *machine) sensors(dir string) {
	m.file(path.Join(dir, "name"), nil)
	m.attributes(dir, dir)
	to, err := m.host.Readlink(path.Join(dir, "device"))
	if err != nil {
		return
	}
	name := path.Base(to)
	if !busForm().MatchString(name) {
		name = m.redact.text(name)
	}
	behind := path.Join("/sys/devices", name)
	m.out.link(path.Join(dir, "device"), "../../../devices/"+name)
	m.attributes(path.Join(dir, "device"), behind)
}

// attributes captures the files of a directory that show energy or power.
func (m *machine) attributes(from, to string) {
	for _, name := range m.names(from) {
		parts := sensorForm().FindStringSubmatch(name)
		if parts == nil {
			continue
		}
		var keep func([]byte) []byte
		if what := parts[1]; what == "label" || what == "oem_info" {
			keep = m.sensorText
		}
		m.fileAs(path.Join(from, name), path.Join(to, name), keep)
	}
}

// sensorText redacts a sensor's label, unless it is a standard one that identifies a meter.
func (m *machine) sensorText(b []byte) []byte {
	text := strings.TrimSpace(string(b))
	if !textForm().MatchString(text) {
		text = m.redact.text(text)
	}
	return []byte(text + "\n")
}

var (
	// sensorForm matches the attributes of hwmon for energy and power (the kernel's
	// hwmon/sysfs-interface.rst and hwmon/acpi_power_meter.rst), without model and serial numbers.
	sensorForm = lazy(`^(?:energy|power)[0-9]{1,5}_(label|input|average|average_interval|accuracy|is_battery|oem_info)$`)
	// textForm matches the sensor labels of amd_energy and of NVIDIA's Grace.
	textForm = lazy(`^(?:E(?:socket|core)[0-9]{1,5}|(?:Grace|Module|CPU|SysIO) Power Socket [0-9]{1,3})$`)
	// busForm matches the kernel's names of ACPI and platform devices.
	busForm = lazy(`^(?:[A-Z]{3,4}[0-9A-F]{4}:[0-9A-F]{2}|amd_energy\.[0-9]{1,3})$`)
)

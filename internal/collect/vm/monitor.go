package vm

import "strings"

// monitors collects the QMP options of a command line.
type monitors struct {
	chardevs map[string]argument
	control  []argument // devices of QMP monitors given inline
	ids      []string   // ids of chardevs of QMP monitors
}

// option takes an option if it concerns QMP.
func (m *monitors) option(option, text string) {
	switch option {
	case "chardev":
		a := flattenChardev(parseArgument(text, "backend"))
		if m.chardevs == nil {
			m.chardevs = map[string]argument{}
		}
		m.chardevs[a["id"]] = a
	case "mon":
		if a := parseArgument(text, "chardev"); a["mode"] == "control" {
			m.ids = append(m.ids, a["chardev"])
		}
	case "qmp", "qmp-pretty":
		if id, ok := strings.CutPrefix(text, "chardev:"); ok {
			m.ids = append(m.ids, id)
			return
		}
		if a := parseShortDevice(text); a != nil {
			m.control = append(m.control, a)
		}
	}
}

// flattenChardev renames the keys of a chardev in JSON, as QMP has them, to those of the
// other form.
func flattenChardev(a argument) argument {
	const data = "backend.data."
	for long, key := range map[string]string{"backend.type": "backend", data + "server": "server", data + "addr.data.path": "path",
		data + "addr.data.str": "fd", data + "addr.data.abstract": "abstract"} {
		if v, ok := a[long]; ok {
			a[key] = v
		}
	}
	return a
}

// parseShortDevice parses a device in its short form, "unix:PATH,server=on,wait=off"; nil
// if it has another form.
func parseShortDevice(text string) argument {
	if text == "none" || text == "" {
		return nil
	}
	path, ok := strings.CutPrefix(text, "unix:")
	if !ok {
		return argument{"backend": "other"}
	}
	a := parseArgument(path, "path")
	a["backend"] = "socket"
	return a
}

// Why a monitor cannot be connected to, and what to do about it.
const (
	noMonitor    = "it has no QMP monitor"
	byLibvirt    = "libvirt holds its QMP monitor"
	handedOver   = "its QMP monitor is held by what started it"
	notUnix      = "its QMP monitor is not a unix socket"
	calls        = "its QMP monitor is a client, not a server"
	hintOption   = "start it with -qmp unix:PATH,server=on,wait=off as well"
	hintLibvirt  = "give the domain a second monitor, in its XML: <qemu:commandline><qemu:arg value='-qmp'/><qemu:arg value='unix:/run/NAME.qmp,server=on,wait=off'/></qemu:commandline>"
	libvirtID    = "charmonitor"
	libvirtPlace = "/libvirt/"
)

// choose returns the first usable monitor, else why there is none.
func (m *monitors) choose() Monitor {
	all := m.control
	for _, id := range m.ids {
		if a := m.chardevs[id]; a != nil {
			all = append(all, a)
		}
	}
	best := Monitor{Why: noMonitor, Hint: hintOption}
	for i, a := range all {
		switch why := joinProblem(a); {
		case why == "":
			return Monitor{Path: a["path"]}
		case i == 0 && why == byLibvirt:
			best = Monitor{Why: why, Hint: hintLibvirt}
		case i == 0:
			best.Why = why
		}
	}
	return best
}

// joinProblem returns why a monitor cannot be used, or "". A socket of libvirt is not used:
// QEMU serves one client at a time, and libvirt is that client.
func joinProblem(a argument) string {
	switch {
	case a["backend"] != "socket":
		return notUnix
	case a["id"] == libvirtID || strings.Contains(a["path"], libvirtPlace):
		return byLibvirt
	case a["fd"] != "":
		return handedOver
	case a["path"] == "" || a.isOn("abstract"):
		return notUnix
	case !a.isOn("server"):
		return calls
	}
	return ""
}

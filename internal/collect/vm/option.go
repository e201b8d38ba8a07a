package vm

import (
	"bytes"
	"encoding/json"
	"strings"
)

// An argument is the keys and values of a QEMU option: "socket,id=mon,server=on", or the
// same as a JSON object.
type argument map[string]string

// parseArgument parses an argument. implied is the key of a first value without one, "" if
// the option has none. A word without a value is "on"; "nowait", of QEMU before 6.0, is
// wait=off. As in QEMU, the last one of a repeated key counts.
func parseArgument(s, implied string) argument {
	if strings.HasPrefix(s, "{") {
		return parseObject(s)
	}
	a := argument{}
	for i := 0; s != ""; i++ {
		var part string
		part, s = cutComma(s)
		key, value, ok := strings.Cut(part, "=")
		off, no := strings.CutPrefix(part, "no")
		switch {
		case ok:
			a[key] = value
		case i == 0 && implied != "":
			a[implied] = part
		case no && off != "":
			a[off] = "off"
			a[part] = "on"
		case part != "":
			a[part] = "on"
		}
	}
	return a
}

// cutComma cuts s at its first comma. A double comma is an escaped comma.
func cutComma(s string) (part, rest string) {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], ',')
		if i < 0 {
			return strings.ReplaceAll(s, ",,", ","), ""
		}
		i += from
		if !strings.HasPrefix(s[i:], ",,") {
			return strings.ReplaceAll(s[:i], ",,", ","), s[i+1:]
		}
		from = i + 2
	}
}

// parseObject parses an argument that is a JSON object, with dotted keys for nested objects
// and without lists. Anything else gives no keys.
func parseObject(s string) argument {
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.UseNumber()
	var object map[string]any
	a := argument{}
	if d.Decode(&object) == nil {
		a.flatten("", object)
	}
	return a
}

func (a argument) flatten(prefix string, object map[string]any) {
	for key, value := range object {
		switch v := value.(type) {
		case string:
			a[prefix+key] = v
		case json.Number:
			a[prefix+key] = v.String()
		case bool:
			a[prefix+key] = map[bool]string{true: "on", false: "off"}[v]
		case map[string]any:
			a.flatten(prefix+key+".", v)
		}
	}
}

// isOn reports whether the key is on, in any of QEMU's spellings.
func (a argument) isOn(key string) bool {
	switch a[key] {
	case "on", "yes", "true", "y":
		return true
	}
	return false
}

// flags are the options without an argument of QEMU 2.0 to 10 (qemu-options.hx). All others
// take one.
var flags = map[string]bool{
	"h": true, "help": true, "version": true, "audio-help": true,
	"S": true, "s": true, "preconfig": true, "only-migratable": true,
	"daemonize": true, "nodefaults": true, "no-user-config": true, "nodefconfig": true,
	"no-reboot": true, "no-shutdown": true, "async-teardown": true,
	"enable-kvm": true, "no-kvm": true, "no-kvm-irqchip": true, "no-kvm-pit": true, "no-kvm-pit-reinjection": true,
	"enable-fips": true, "enable-sync-profile": true, "singlestep": true, "semihosting": true,
	"mem-prealloc": true, "snapshot": true, "usb": true, "localtime": true,
	"nographic": true, "curses": true, "sdl": true, "portrait": true, "full-screen": true,
	"no-frame": true, "alt-grab": true, "ctrl-grab": true, "no-quit": true,
	"no-fd-bootchk": true, "no-acpi": true, "no-hpet": true, "win2k-hack": true, "rtc-td-hack": true,
	"xen-attach": true, "xen-create": true, "xen-domid-restrict": true, "old-param": true, "tdf": true,
}

// options calls f for each option of a command line, without its dashes. Arguments are
// separated by zero bytes.
func options(cmdline []byte, f func(option, argument string)) {
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	for i := 1; i < len(args); i++ {
		name, dashed := strings.CutPrefix(args[i], "-")
		if !dashed {
			continue // a disk image
		}
		name = strings.TrimPrefix(name, "-")
		if flags[name] || i+1 == len(args) {
			f(name, "")
			continue
		}
		i++
		f(name, args[i])
	}
}

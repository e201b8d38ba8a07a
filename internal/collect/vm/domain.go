package vm

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Domain is the configuration of a virtual machine on the command line of its QEMU
// process.
type Domain struct {
	Name string // printable; "" if it has none
	UUID string // in lower case with dashes; "" if it has none
	CID  uint32 // vsock address; 0 if it has none
	// VCPUs is the number of CPUs at start, MaxVCPUs the maximum.
	VCPUs, MaxVCPUs int
	Monitor         Monitor
}

// A Monitor is the socket on which QEMU speaks QMP.
type Monitor struct {
	// Path is the socket's, as QEMU sees it; "" if no socket can be connected to.
	Path string
	Why  string // why there is no path; "" if there is one
	Hint string // how to get one
}

// The maximum length of a name in bytes, and the maximum number of CPUs: QEMU's own limit
// is 4096 on its largest machine.
const (
	maxName  = 255
	maxVCPUs = 1 << 16
)

// Parse parses the command line of a QEMU process, as in /proc/PID/cmdline, in both of
// QEMU's forms, as written by libvirt, Proxmox and people. It ignores what it cannot parse.
func Parse(cmdline []byte) Domain {
	d := Domain{VCPUs: 1}
	smbios, plugged := "", 0
	smp := argument{}
	var m monitors
	options(cmdline, func(option, text string) {
		switch option {
		case "name":
			d.Name = printable(parseArgument(text, "guest")["guest"])
		case "uuid":
			d.UUID = uuid(text)
		case "smbios":
			if a := parseArgument(text, ""); a["type"] == "1" && a["uuid"] != "" {
				smbios = uuid(a["uuid"])
			}
		case "smp":
			smp = parseArgument(text, "cpus")
		case "machine", "M":
			for key, value := range parseArgument(text, "type") {
				if key, ok := strings.CutPrefix(key, "smp."); ok {
					smp[key] = value
				}
			}
		case "device":
			a := parseArgument(text, "driver")
			switch {
			case strings.HasPrefix(a["driver"], "vhost-vsock"):
				d.CID = cid(a["guest-cid"])
			case strings.HasSuffix(a["driver"], "-cpu"):
				plugged++
			}
		default:
			m.option(option, text)
		}
	})
	if d.UUID == "" {
		d.UUID = smbios
	}
	d.VCPUs, d.MaxVCPUs = cpus(smp)
	d.VCPUs = min(d.VCPUs+plugged, maxVCPUs)
	d.MaxVCPUs = max(d.MaxVCPUs, d.VCPUs)
	d.Monitor = m.choose()
	return d
}

// cpus returns how many CPUs -smp gives at start and at most. With only a topology, the
// number is its product (QEMU's machine_parse_smp_config).
func cpus(smp argument) (now, most int) {
	product := 1
	for _, level := range []string{"drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"} {
		product = min(product*max(1, count(smp[level])), maxVCPUs)
	}
	now, most = count(smp["cpus"]), count(smp["maxcpus"])
	if most == 0 {
		most = max(now, product)
	}
	if now == 0 {
		now = most
	}
	return now, max(now, most)
}

// count parses a number of CPUs; 0 if it is malformed.
func count(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, maxVCPUs)
}

// cid parses a vsock address. 0, 1 and 2 are reserved, and the highest is the wildcard
// (linux/vm_sockets.h).
func cid(s string) uint32 {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || n < 3 || n == 1<<32-1 {
		return 0
	}
	return uint32(n)
}

// uuid returns a UUID in lower case, "" if it is malformed or all zeros, which is QEMU's
// default.
func uuid(s string) string {
	s = strings.ToLower(s)
	if len(s) != 36 || s == "00000000-0000-0000-0000-000000000000" {
		return ""
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := '0' <= s[i] && s[i] <= '9' || 'a' <= s[i] && s[i] <= 'f'
		if dash != (s[i] == '-') || !dash && !hex {
			return ""
		}
	}
	return s
}

// printable escapes a name so that it cannot control a terminal.
func printable(s string) string {
	for len(s) > maxName {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	for _, r := range s {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return strings.Trim(strconv.Quote(s), `"`)
		}
	}
	return s
}

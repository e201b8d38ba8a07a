package vm

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Domain is what the command line of a QEMU process says of its virtual
// machine.
type Domain struct {
	Name string // "" where it has none; printable
	UUID string // in lower case with dashes; "" where it has none
	CID  uint32 // its address by vsock; 0 where it has none
	// VCPUs is with how many CPUs it starts, and MaxVCPUs how many it can have.
	VCPUs, MaxVCPUs int
	Monitor         Monitor
}

// A Monitor is the socket on which QEMU answers by QMP.
type Monitor struct {
	// Path is the socket's, as QEMU sees it; "" where there is none that
	// somebody could join.
	Path string
	Why  string // there is no path; "" where there is one
	Hint string // what would give one
}

// The longest name that is kept, in bytes, and the most CPUs that are believed:
// QEMU's own limit is 4096 on its largest machine.
const (
	maxName  = 255
	maxVCPUs = 1 << 16
)

// Parse reads the command line of a QEMU process, as /proc/PID/cmdline has it:
// what libvirt, Proxmox and people write, in both of QEMU's forms. What cannot be
// read is taken for not there.
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

// cpus is how many CPUs -smp gives at start and at most. Where only the topology
// is given its product is the number of CPUs (QEMU's machine_parse_smp_config).
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

// count reads a number of CPUs, 0 where it is none.
func count(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, maxVCPUs)
}

// cid reads an address by vsock. 0, 1 and 2 are not a guest's, and the highest is
// everybody's (linux/vm_sockets.h).
func cid(s string) uint32 {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || n < 3 || n == 1<<32-1 {
		return 0
	}
	return uint32(n)
}

// uuid returns a UUID in lower case, "" for what is none and for that of zeros,
// which QEMU has where it was given none.
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

// printable keeps a name from steering the terminal that shows it.
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

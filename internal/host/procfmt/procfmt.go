// Package procfmt parses the text formats of the Linux kernel: the files of control groups,
// of /proc and of /sys.
//
// Every parser takes the bytes of one read, never panics, and ignores unknown keys and
// columns, because kernels add them. Known ones must be well formed: otherwise the error
// wraps [fault.ErrInvalid] and names the key or line. Times are nanoseconds, sizes bytes. A
// number above 2^63-1, which only limits and unreachable counters have, reads as 2^63-1.
// Parsers that run once per group and tick do not allocate unless they fail.
//
// The formats are documented in Documentation/admin-guide/cgroup-v2.rst,
// Documentation/admin-guide/cgroup-v1/*.rst, Documentation/filesystems/proc.rst and
// Documentation/accounting/psi.rst of the kernel source.
package procfmt

import (
	"bytes"
	"fmt"
	"math"

	"mete.dev/mete/internal/model/fault"
)

// tick is the length of one USER_HZ clock tick in nanoseconds. USER_HZ is 100
// on every architecture that Go runs on (include/asm-generic/param.h).
const tick = 1e9 / 100

// A Dev is the number of a block device.
type Dev struct{ Major, Minor uint32 }

// String returns the form that the kernel writes, "8:16".
func (d Dev) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// IsAnonymous reports whether it is the number of a file system without a block device, as one of a network.
func (d Dev) IsAnonymous() bool { return d.Major == 0 }

// Int reads a file that holds one number, such as cpuacct.usage,
// memory.current or pids.max. The word max reads as math.MaxInt64.
func Int(b []byte) (int64, error) {
	t := bytes.TrimSpace(b)
	if string(t) == "max" {
		return math.MaxInt64, nil
	}
	v, ok := number(t)
	if !ok {
		return 0, invalid("number", t)
	}
	return v, nil
}

// KeyValue finds one key in lines of key and number, as in memory.events,
// memory.oom_control, pids.events, cgroup.events and cgroup.stat. It returns false if the
// key is missing.
func KeyValue(b []byte, key string) (int64, bool, error) {
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		k, rest := cutField(line)
		if string(k) != key {
			continue
		}
		f, _ := cutField(rest)
		v, err := Int(f)
		if err != nil {
			return 0, false, invalid(key, f)
		}
		return v, true, nil
	}
	return 0, false, nil
}

// invalid returns an error with the malformed key and the beginning of the text.
func invalid(key string, got []byte) error {
	const most = 40
	if len(got) > most {
		got = got[:most]
	}
	// Copy got, so that the error does not retain the buffer.
	return fmt.Errorf("%s %q: %w", key, string(got), fault.ErrInvalid)
}

// cutLine splits b after its first line, which it returns without the newline.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte{'\n'})
	return line, rest
}

// cutField splits b after its first field and drops blanks before it. The field is empty
// only if there is none.
func cutField(b []byte) (field, rest []byte) {
	i := 0
	for i < len(b) && blank(b[i]) {
		i++
	}
	j := i
	for j < len(b) && !blank(b[j]) {
		j++
	}
	return b[i:j], b[j:]
}

// skip drops the first n fields of b.
func skip(b []byte, n int) []byte {
	for ; n > 0; n-- {
		_, b = cutField(b)
	}
	return b
}

// numbers reads the first len(into) fields of b and returns the rest.
func numbers(b []byte, into []int64) (rest []byte, ok bool) {
	for i := range into {
		var f []byte
		f, b = cutField(b)
		if into[i], ok = number(f); !ok {
			return b, false
		}
	}
	return b, true
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

// number reads a decimal that fills b, saturating at the limits of int64.
func number(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 {
		return 0, false
	}
	v := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := int64(c - '0')
		if v > (math.MaxInt64-d)/10 {
			v = math.MaxInt64
			continue
		}
		v = v*10 + d
	}
	if negative {
		v = -v
	}
	return v, true
}

// scale multiplies a non-negative reading by a unit, saturating at the limit of int64; a
// negative one is malformed.
func scale(v, by int64) (int64, bool) {
	if v < 0 {
		return 0, false
	}
	if v > math.MaxInt64/by {
		return math.MaxInt64, true
	}
	return v * by, true
}

// small reads an unsigned number of 32 bits.
func small(b []byte) (uint32, bool) {
	v, ok := number(b)
	return uint32(v), ok && v >= 0 && v <= math.MaxUint32
}

// device reads "major:minor".
func device(b []byte) (d Dev, ok bool) {
	a, c, found := bytes.Cut(b, []byte(":"))
	if !found {
		return Dev{}, false
	}
	if d.Major, ok = small(a); !ok {
		return Dev{}, false
	}
	if d.Minor, ok = small(c); !ok {
		return Dev{}, false
	}
	return d, true
}

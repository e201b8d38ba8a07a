package procfmt

import (
	"bytes"
	"strings"
)

// A Mount is one line of mountinfo.
type Mount struct {
	ID, Parent int
	Dev        Dev
	Root       string // the mounted directory of the file system
	Point      string // mount point, as the reading process sees it
	Options    string // of the mount: ro or rw, and so on
	Type       string // of the file system
	Source     string
	Super      string // options of the file system
}

// Has reports whether opt is among the comma-separated options.
func Has(options, opt string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == opt {
			return true
		}
	}
	return false
}

// Mountinfo reads /proc/PID/mountinfo.
func Mountinfo(b []byte) ([]Mount, error) {
	var ms []Mount
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		if len(line) == 0 {
			continue
		}
		m, ok := mount(line)
		if !ok {
			return nil, invalid("mountinfo", line)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

func mount(line []byte) (m Mount, ok bool) {
	var v [2]int64
	rest, ok := numbers(line, v[:])
	if !ok {
		return Mount{}, false
	}
	m.ID, m.Parent = int(v[0]), int(v[1])
	f, rest := cutField(rest)
	if m.Dev, ok = device(f); !ok {
		return Mount{}, false
	}
	root, rest := cutField(rest)
	point, rest := cutField(rest)
	options, rest := cutField(rest)
	m.Root, m.Point, m.Options = unescape(root), unescape(point), string(options)
	// A lone dash ends the optional fields.
	for f, rest = cutField(rest); string(f) != "-"; f, rest = cutField(rest) {
		if len(f) == 0 {
			return Mount{}, false
		}
	}
	// A source may be empty, so that two blanks follow each other: split at single blanks
	// here.
	parts := bytes.SplitN(bytes.TrimPrefix(rest, []byte(" ")), []byte(" "), 3)
	if len(parts) != 3 || len(parts[0]) == 0 {
		return Mount{}, false
	}
	m.Type, m.Source, m.Super = unescape(parts[0]), unescape(parts[1]), unescape(parts[2])
	return m, true
}

// unescape decodes the kernel's octal escapes of blanks, newlines and backslashes.
func unescape(b []byte) string {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b)
	}
	var s strings.Builder
	for i := 0; i < len(b); i++ {
		if b[i] == '\\' && i+3 < len(b) && b[i+1] <= '3' && octal(b[i+1]) && octal(b[i+2]) && octal(b[i+3]) {
			s.WriteByte((b[i+1]-'0')<<6 | (b[i+2]-'0')<<3 | (b[i+3] - '0'))
			i += 3
			continue
		}
		s.WriteByte(b[i])
	}
	return s.String()
}

func octal(c byte) bool { return c >= '0' && c <= '7' }

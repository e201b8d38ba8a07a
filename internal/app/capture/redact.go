package capture

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// A redactor replaces names by pseudonyms of the same form. It keeps a word only if the vocabulary
// has it, so that unknown names are replaced, not leaked. A word has the same pseudonym throughout
// a capture and another one in the next, because the key is random; two words never share one, so
// that groups and processes stay distinct.
type redactor struct {
	key    []byte
	given  map[string]string // by form and word
	used   map[string]bool   // pseudonyms
	counts map[string]int    // replaced words, by kind
	names  map[string]string // of processes
}

func newRedactor(key []byte) *redactor {
	return &redactor{key, map[string]string{}, map[string]bool{}, map[string]int{}, map[string]string{}}
}

// lazy returns an expression that is compiled at its first use: all of them together take 0.7 ms and
// 250 KiB, which each `mete run` would need.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// Patterns of several words are matched first, the longest first. A pod's id follows its prefix
// directly, and "d" is a hexadecimal digit.
var (
	uuidForm = lazy(`(pod)?([0-9a-fA-F]{8}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{12})`)
	macForm  = lazy(`(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}`)
	ipv6Form = lazy(`(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}`)
	ipv4Form = lazy(`[0-9]{1,3}(?:\.[0-9]{1,3}){3}`)
	dashForm = lazy(`[0-9]{1,3}(?:-[0-9]{1,3}){3}`) // ip-10-0-0-1
	hexForm  = lazy(`(pod)?([0-9a-f]{12,})`)
	wordForm = lazy(`\\x[0-9a-f]{2}|[A-Za-z0-9]+|[^\x00-\x7f]+`)
	runForm  = lazy(`[A-Za-z]+|[0-9]+`)
)

// path redacts a path, part by part.
func (r *redactor) path(p string) string {
	parts := strings.Split(p, "/")
	for i, s := range parts {
		parts[i] = r.text(s)
	}
	return strings.Join(parts, "/")
}

// text redacts the name of a group, a unit or a kernel thread.
func (r *redactor) text(s string) string {
	type form struct {
		re   *regexp.Regexp
		what string
	}
	for _, f := range []form{{uuidForm(), "ids"}, {macForm(), "addresses"}, {ipv6Form(), "addresses"}, {ipv4Form(), "addresses"}, {dashForm(), "addresses"}, {hexForm(), "ids"}} {
		if at := f.re.FindStringSubmatchIndex(s); at != nil {
			start := at[0]
			if len(at) > 2 {
				start = at[4] // after the prefix
			}
			if !strings.ContainsFunc(s[start:at[1]], func(c rune) bool { return class(c) != 0 }) {
				continue // only colons
			}
			return r.text(s[:start]) + r.replace(f.what, s[start:at[1]]) + r.text(s[at[1]:])
		}
	}
	return wordForm().ReplaceAllStringFunc(s, r.word)
}

// word redacts a run of letters and digits.
func (r *redactor) word(w string) string {
	if isAllowed(w) {
		return w
	}
	return r.replace("names", w)
}

// isAllowed reports whether a word may stay: a small number, words of the vocabulary with or
// without a number, and characters that systemd escapes.
func isAllowed(w string) bool {
	const longest = 7
	if w[0] == '\\' {
		return true
	}
	for _, run := range runForm().FindAllString(w, -1) {
		digits := run[0] <= '9'
		if digits && len(run) > longest || !digits && !vocabulary[run] {
			return false
		}
	}
	return w[0] < 0x80
}

// device redacts the name of a network interface or disk, unless the kernel or udev chose it.
func (r *redactor) device(name string) string {
	if deviceForm().MatchString(name) {
		return name
	}
	return r.replace("interfaces", name)
}

// comm redacts the name of a process.
func (r *redactor) comm(name string, kernel bool) string {
	if kernel {
		return r.text(name)
	}
	keep := !ipv4Form().MatchString(name) && !hexForm().MatchString(name)
	for _, w := range wordForm().FindAllString(name, -1) {
		keep = keep && isAllowed(w)
	}
	if keep {
		return name
	}
	if r.names[name] == "" {
		r.names[name] = fmt.Sprintf("p%d", len(r.names)+1)
		r.counts["process names"]++
	}
	return r.names[name]
}

// replace returns the pseudonym of s: hexadecimal digits for an id or an address, else letters for
// letters and digits for digits.
func (r *redactor) replace(what, s string) string {
	hexadecimal := what == "ids" || what == "addresses"
	// Notations of the same id differ in separators.
	key := what + " " + s
	if what == "ids" {
		key = what + " " + strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
	}
	plain, ok := r.given[key]
	if !ok {
		plain = r.draw(key, s, hexadecimal)
		r.given[key] = plain
		r.used[plain] = true
		r.counts[what]++
	}
	// Restore the separators of s.
	var b strings.Builder
	for _, c := range s {
		if class(c) == 0 {
			b.WriteRune(c)
		} else {
			b.WriteByte(plain[0])
			plain = plain[1:]
		}
	}
	return b.String() + plain
}

// draw returns an unused pseudonym without separators. If all of the form of s are taken, it is
// longer than s.
func (r *redactor) draw(key, s string, hexadecimal bool) string {
	for n := uint32(0); ; n++ {
		var b strings.Builder
		stream := r.stream(key, n)
		for _, c := range s {
			if k := class(c); k != 0 {
				v := stream()
				switch {
				case k == '0' || hexadecimal && isDecimal(s):
					b.WriteByte('1' + v%9)
				case hexadecimal:
					b.WriteByte("0123456789abcdef"[v%16])
				case k == 'A':
					b.WriteByte('A' + v%26)
				default:
					b.WriteByte('a' + v%26)
				}
			}
		}
		const tries = 64
		if n > tries {
			fmt.Fprintf(&b, "zz%d", n-tries)
		}
		if p := b.String(); p != "" && !r.used[p] && (hexadecimal || !isAllowed(p)) {
			return p
		}
	}
}

// stream returns a source of bytes determined by key and n.
func (r *redactor) stream(key string, n uint32) func() byte {
	var block []byte
	var i uint32
	return func() byte {
		if len(block) == 0 {
			m := hmac.New(sha256.New, r.key)
			m.Write([]byte(key))
			m.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, n), i))
			block = m.Sum(nil)
			i++
		}
		v := block[0]
		block = block[1:]
		return v
	}
}

// class distinguishes digits, upper-case letters and other characters of words; 0 is a separator.
func class(c rune) byte {
	switch {
	case c >= '0' && c <= '9':
		return '0'
	case c >= 'A' && c <= 'Z':
		return 'A'
	case c >= 'a' && c <= 'z' || c > 0x7f:
		return 'a'
	}
	return 0
}

func isDecimal(s string) bool { return !strings.ContainsAny(strings.ToLower(s), "abcdef") }

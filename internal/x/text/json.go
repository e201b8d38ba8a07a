package text

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// JSON returns a JSON text with escapes for the characters of its strings that control a terminal:
// those that package encoding/json leaves as they are, and changes of writing direction.
func JSON(b []byte) []byte {
	var out []byte // nil until a character is escaped
	for i := 0; i < len(b); {
		r, n := rune(b[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(b[i:])
		}
		bad := r >= 0x7f && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) || r == utf8.RuneError && n == 1
		if bad && out == nil {
			out = append(make([]byte, 0, len(b)+16), b[:i]...)
		}
		switch {
		case bad:
			out = fmt.Appendf(out, `\u%04x`, r)
		case out != nil:
			out = append(out, b[i:i+n]...)
		}
		i += n
	}
	if out == nil {
		return b
	}
	return out
}

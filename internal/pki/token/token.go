// Package token holds the nouns of being let in: the text of a token (Token),
// what is said and granted at enrollment (Claim, Grant), and who asks (Principal).
//
// A token is a secret that fits on one line:
//
//	mete_<id>_<secret>_<ca>_<check>
//
// id names it in lists and logs. secret is what its bearer shows; the server
// keeps its hash only. ca is the fingerprint of the server's certificate
// authority, so that the bearer knows whom to show the secret to. check is a
// checksum over all before it, so that a text that was cut off or mistyped is
// told apart from one that was refused. All parts are in base32, of small
// letters and digits.
package token

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode"
	"unique"

	"mete.dev/mete/internal/model/fault"
)

// Sizes of the parts in bytes. Of multiples of five base32 leaves no bit over,
// so that each value has one text.
const (
	idSize     = 5
	secretSize = 20
	caSize     = 20

	prefix   = "mete"
	parts    = 5
	checkLen = 7 // of 4 bytes in base32, without padding
)

// textSize is that of the text of a token.
var textSize = len(prefix) + parts - 1 + text.EncodedLen(idSize) + text.EncodedLen(secretSize) + text.EncodedLen(caSize) + checkLen

var text = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// A Fingerprint tells a certificate authority from any other: the first 20 bytes
// of the SHA-256 of its certificate, which are too many for anyone to find
// another certificate with the same.
type Fingerprint [caSize]byte

// FingerprintOf returns the fingerprint of a certificate in DER.
func FingerprintOf(certificate []byte) Fingerprint {
	sum := sha256.Sum256(certificate)
	return Fingerprint(sum[:caSize])
}

// String writes the fingerprint as it stands in a token.
func (f Fingerprint) String() string { return text.EncodeToString(f[:]) }

// A Token is a right that can be handed over as text. Printing it, in whatever
// way, leaves its secret out; only Reveal gives it.
type Token struct {
	id [idSize]byte
	// A handle is equal where its values are, and a pointer to fmt, which prints
	// unexported fields of others' structs without asking their methods.
	secret unique.Handle[[secretSize]byte]
	ca     Fingerprint
}

// New returns the token of these parts; id and secret are random.
func New(id [idSize]byte, secret [secretSize]byte, ca Fingerprint) Token {
	return Token{id, unique.Make(secret), ca}
}

// ID names the token where its secret is not to be seen.
func (t Token) ID() string { return text.EncodeToString(t.id[:]) }

// CA is the fingerprint of the authority whose servers the token is for.
func (t Token) CA() Fingerprint { return t.ca }

// Hash is the SHA-256 of the secret.
func (t Token) Hash() [sha256.Size]byte {
	secret := t.bytes()
	return sha256.Sum256(secret[:])
}

func (t Token) bytes() (secret [secretSize]byte) {
	if t.secret != (unique.Handle[[secretSize]byte]{}) {
		secret = t.secret.Value()
	}
	return secret
}

// IsZero says that there is no token.
func (t Token) IsZero() bool { return t == Token{} }

// Reveal returns the whole text, which Parse reads.
func (t Token) Reveal() string {
	secret := t.bytes()
	body := strings.Join([]string{prefix, t.ID(), text.EncodeToString(secret[:]), t.ca.String()}, "_")
	return body + "_" + checksum(body)
}

// checksum is the checksum over the text before it. CRC-32 tells any burst of
// errors up to 32 bits.
func checksum(body string) string {
	return text.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(body))))
}

// String returns the token without its secret.
func (t Token) String() string {
	if t.IsZero() {
		return ""
	}
	return prefix + "_" + t.ID() + "_..."
}

// Format implements fmt.Formatter: no verb and no flag shows the secret.
func (t Token) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, t.String()) // what there is to do about an error, f's owner does
}

// MarshalText implements encoding.TextMarshaler, by which JSON and logs write
// values: it too leaves the secret out.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Parse reads the text of a token as people paste it: white space, also in the
// middle, and capital letters are forgiven, nothing else is. The error is
// fault.ErrInvalid with a hint, and shows nothing of the text.
func Parse(s string) (Token, error) {
	s = strings.ToLower(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s))
	last := max(strings.LastIndexByte(s, '_'), 0)
	switch {
	case s == "":
		return Token{}, invalid("is empty")
	case !strings.HasPrefix(s, prefix+"_"):
		return Token{}, invalid("does not begin with " + prefix + "_")
	case len(s) < textSize:
		return Token{}, invalid(fmt.Sprintf("is cut off: %d of %d characters", len(s), textSize))
	case len(s) > textSize:
		return Token{}, invalid(fmt.Sprintf("is too long: %d characters instead of %d", len(s), textSize))
	case checksum(s[:last]) != s[last+1:]:
		return Token{}, invalid("is mistyped: its checksum is wrong")
	}
	var id [idSize]byte
	var secret [secretSize]byte
	var ca Fingerprint
	fields := strings.Split(s[:last], "_")
	if len(fields) != parts-1 || !decode(id[:], fields[1]) || !decode(secret[:], fields[2]) || !decode(ca[:], fields[3]) {
		return Token{}, invalid("is malformed")
	}
	return New(id, secret, ca), nil
}

func invalid(what string) error {
	return fault.WithHint(fmt.Errorf("token %s: %w", what, fault.ErrInvalid), "copy the whole line that mete token create printed")
}

// decode fills dst from s, which has to be of just that length.
func decode(dst []byte, s string) bool {
	b, err := text.DecodeString(s)
	return err == nil && len(b) == len(dst) && copy(dst, b) == len(dst)
}

// Package token holds the types of authentication: the text of a token (Token), enrollment (Claim,
// Grant), and the client of a request (Principal).
//
// A token is a secret that fits on one line:
//
//	mete_<id>_<secret>_<ca>_<check>
//
// id names it in lists and logs. secret authenticates its bearer; the server stores only its hash.
// ca is the fingerprint of the server's certificate authority, by which the bearer verifies the
// server before sending the secret. check is a checksum over everything before it, which
// distinguishes truncated or mistyped tokens from refused ones. All parts are base32 in lower case.
package token

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unique"

	"mete.dev/mete/internal/model/fault"
)

// Sizes of the parts in bytes. Multiples of five have no padding bits in base32, so that each value
// has one text.
const (
	idSize     = 5
	secretSize = 20
	caSize     = 20

	prefix   = "mete"
	parts    = 5
	checkLen = 7 // of 4 bytes in base32, without padding
)

// textSize is the length of the text of a token.
var textSize = len(prefix) + parts - 1 + text.EncodedLen(idSize) + text.EncodedLen(secretSize) + text.EncodedLen(caSize) + checkLen

var text = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// A Fingerprint identifies a certificate authority: the first 20 bytes of the SHA-256 of its
// certificate, enough to make second preimages infeasible.
type Fingerprint [caSize]byte

// FingerprintOf returns the fingerprint of a certificate in DER.
func FingerprintOf(certificate []byte) Fingerprint {
	sum := sha256.Sum256(certificate)
	return Fingerprint(sum[:caSize])
}

func (f Fingerprint) String() string { return text.EncodeToString(f[:]) }

// A Token is a bearer token. Printing it omits the secret; only Reveal returns it.
type Token struct {
	id [idSize]byte
	// Handles compare like their values, and fmt, which cannot call methods of unexported fields,
	// prints them as pointers.
	secret unique.Handle[[secretSize]byte]
	ca     Fingerprint
}

// New returns the token with these parts; id and secret are random.
func New(id [idSize]byte, secret [secretSize]byte, ca Fingerprint) Token {
	return Token{id, unique.Make(secret), ca}
}

// ID returns the public id of the token.
func (t Token) ID() string { return text.EncodeToString(t.id[:]) }

// CA returns the fingerprint of the authority that the token is for.
func (t Token) CA() Fingerprint { return t.ca }

// Hash returns the SHA-256 of the secret.
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

// IsZero reports whether there is no token.
func (t Token) IsZero() bool { return t == Token{} }

// Reveal returns the whole text for Parse.
func (t Token) Reveal() string {
	secret := t.bytes()
	body := strings.Join([]string{prefix, t.ID(), text.EncodeToString(secret[:]), t.ca.String()}, "_")
	return body + "_" + checksum(body)
}

// checksum returns the checksum of a text. CRC-32 detects all error bursts up to 32 bits.
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

// MarshalText implements encoding.TextMarshaler, which JSON and logs use; it omits the secret.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Parse parses the text of a token as people paste it: it ignores white space and upper case,
// nothing else. The error is fault.ErrInvalid with a hint, and contains nothing of the text.
func Parse(s string) (Token, error) {
	s = strings.ToLower(strings.Join(strings.Fields(s), ""))
	last := strings.LastIndexByte(s, '_') // not -1 where it is used: after the prefix
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

// decode fills dst from s, which must have exactly its length.
func decode(dst []byte, s string) bool {
	b, err := text.DecodeString(s)
	return err == nil && len(b) == len(dst) && copy(dst, b) == len(dst)
}

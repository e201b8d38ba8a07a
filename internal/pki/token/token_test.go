package token_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
)

func bytesOf(t *rapid.T, n int, label string) []byte {
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, label)
}

func draw(t *rapid.T) token.Token {
	return token.New([5]byte(bytesOf(t, 5, "id")), [20]byte(bytesOf(t, 20, "secret")), token.FingerprintOf(bytesOf(t, 8, "ca")))
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := draw(t)
		text := want.Reveal()
		for _, s := range []string{text, strings.ToUpper(text), " " + text + "\r\n", text[:40] + "\n" + text[40:]} {
			if got, err := token.Parse(s); err != nil || got != want {
				t.Fatalf("Parse(%q) = %v, %v", s, got, err)
			}
		}
	})
}

// TestDamage checks that a changed or truncated text never parses.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := draw(t).Reveal()
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		_, err := token.Parse(text[:at])
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Fatalf("cut off at %d: %v", at, err)
		}
		if at > 5 && !strings.Contains(err.Error(), "cut off") {
			t.Fatalf("cut off at %d: %v, want it to say so", at, err)
		}
		letter := rapid.SampledFrom([]byte("abcdefghijklmnopqrstuvwxyz234567_")).Draw(t, "letter")
		if letter == text[at] {
			return
		}
		typo := text[:at] + string(letter) + text[at+1:]
		_, err = token.Parse(typo)
		if !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("Parse(%q), wrong at %d: %v", typo, at, err)
		}
		if at > 5 && !strings.Contains(err.Error(), "mistyped") {
			t.Fatalf("wrong at %d: %v, want it to say so", at, err)
		}
	})
}

func TestParseErrors(t *testing.T) {
	text := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()
	for in, want := range map[string]string{
		"":                      "token is empty: invalid",
		" \n":                   "token is empty: invalid",
		"hello":                 "token does not begin with mete_: invalid",
		text[:50]:               fmt.Sprintf("token is cut off: 50 of %d characters: invalid", len(text)),
		text + "a":              fmt.Sprintf("token is too long: %d characters instead of %d: invalid", len(text)+1, len(text)),
		text[:len(text)-1] + "": fmt.Sprintf("token is cut off: %d of %d characters: invalid", len(text)-1, len(text)),
	} {
		if _, err := token.Parse(in); err == nil || err.Error() != want {
			t.Errorf("Parse(%q) = %v, want %s", in, err, want)
		}
	}
}

// TestText checks the text of a token to the letter: tokens that were given to people stay valid.
func TestText(t *testing.T) {
	const want = "mete_aebagbaf_aqaaaaaaaaaaaaaaaaaaaaaaaaaaaaae_aplg3ueigxa4upysrthkzuptdleucyyj_rk3dvgy"
	tok := token.New([5]byte{1, 2, 3, 4, 5}, [20]byte{0: 4, 19: 4}, token.FingerprintOf([]byte("certificate")))
	if got := tok.Reveal(); got != want {
		t.Errorf("Reveal() = %s, want %s", got, want)
	}
}

// TestParts checks what a registry keeps of a token, and which authority it is for.
func TestParts(t *testing.T) {
	secret, of := [20]byte{0: 7, 19: 9}, token.FingerprintOf([]byte("certificate"))
	tok := token.New([5]byte{1}, secret, of)
	if tok.Hash() != sha256.Sum256(secret[:]) || tok.CA() != of || tok.ID() != "aeaaaaaa" {
		t.Errorf("ID %s, hash %x, authority %v", tok.ID(), tok.Hash(), tok.CA())
	}
}

// TestMalformed checks that texts with a right length and checksum, but not the parts of a token,
// do not parse.
func TestMalformed(t *testing.T) {
	text := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()
	body := text[:strings.LastIndexByte(text, '_')]
	encoding := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	for at := len("mete_"); at < len(body); at++ {
		for _, letter := range []string{"_", "1"} { // neither is a letter of a part
			damaged := body[:at] + letter + body[at+1:]
			if damaged == body {
				continue
			}
			s := damaged + "_" + encoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(damaged))))
			if _, err := token.Parse(s); !errors.Is(err, fault.ErrInvalid) || err.Error() != "token is malformed: invalid" {
				t.Errorf("Parse(%q): %v", s, err)
			}
		}
	}
}

// TestRedacted checks that printing a token, or a value that holds one, omits its secret.
func TestRedacted(t *testing.T) {
	tok := token.New([5]byte{1, 2, 3, 4, 5}, [20]byte{0: 7, 19: 9}, token.Fingerprint{3})
	secret := strings.Split(tok.Reveal(), "_")[2]
	type holder struct {
		Token token.Token
		inner token.Token
	}
	h := holder{tok, tok}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
		fmt.Fprintf(&out, verb+" "+verb+"\n", tok, &tok)
	}
	fmt.Fprintf(&out, "%v %+v %#v\n", h, h, &h)
	fmt.Fprintln(&out, tok, h.Token, []token.Token{tok}, fmt.Errorf("%v", tok))
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		log := slog.New(handler)
		log.Info("x", "token", tok, "pointer", &tok, "holder", h)
	}
	if err := json.NewEncoder(&out).Encode(h); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if strings.Contains(got, secret) || strings.Contains(got, "7 0 0") || strings.Contains(got, "0x7, 0x0") {
		t.Errorf("the secret %s is in\n%s", secret, got)
	}
	if want := "mete_aebagbaf_..."; tok.String() != want || !strings.Contains(got, want) {
		t.Errorf("String() = %q, want %q; printed\n%s", tok, want, got)
	}
	if (token.Token{}).String() != "" || !(token.Token{}).IsZero() || tok.IsZero() {
		t.Error("IsZero is false for the zero token")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal())
	f.Add("mete____")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := token.Parse(s)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%v is of another kind", err)
			}
			return
		}
		if again, err := token.Parse(tok.Reveal()); err != nil || again != tok {
			t.Errorf("%q: %v, %v", s, again, err)
		}
	})
}

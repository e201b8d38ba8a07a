package batch_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// TestStreamText checks that only the text that String writes is read.
func TestStreamText(t *testing.T) {
	want := batch.Stream{0: 0xab, 15: 0x01}
	text := "ab" + strings.Repeat("0", 28) + "01"
	if want.String() != text {
		t.Errorf("String() = %s, want %s", want, text)
	}
	if got, err := batch.ParseStream(text); err != nil || got != want {
		t.Errorf("ParseStream(%s) = %v, %v", text, got, err)
	}
	for _, bad := range []string{"", text[:30], text[:31], text + "0", text + "00", "g" + text[1:], strings.Repeat(" ", 32)} {
		if _, err := batch.ParseStream(bad); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("ParseStream(%q): %v", bad, err)
		}
	}
}

// TestHashOf checks that a hash is the SHA-256 of the bytes.
func TestHashOf(t *testing.T) {
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-4
	h := batch.HashOf([]byte("abc"))
	if h.String() != abc {
		t.Errorf("the hash of abc is %s", h)
	}
	for _, bad := range []string{"", abc[:62], abc[:63], abc + "00", "x" + abc[1:]} {
		if err := new(batch.Hash).UnmarshalText([]byte(bad)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("UnmarshalText(%q): %v", bad, err)
		}
	}
}

// TestLossText checks a loss to the letter.
func TestLossText(t *testing.T) {
	l := batch.Loss{Stream: batch.Stream{1}, From: 3, To: 1<<64 - 1, Hash: batch.HashOf([]byte("abc"))}
	b, err := json.Marshal(l)
	want := `{"stream":"01` + strings.Repeat("0", 30) + `","from":"3","to":"18446744073709551615","hash":"` + l.Hash.String() + `","gap":`
	if err != nil || !strings.HasPrefix(string(b), want) {
		t.Errorf("%s, %v, want %s...", b, err, want)
	}
	var got batch.Loss
	if err := json.Unmarshal(b, &got); err != nil || got != l {
		t.Errorf("%s is read as %+v, %v", b, got, err)
	}
	for _, bad := range []string{`{"stream":"01"}`, `{"hash":"01"}`, `{"from":3}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s is read as %+v", bad, got)
		}
	}
}

// TestUnion checks that a union covers both spans, and that an unset one adds nothing.
func TestUnion(t *testing.T) {
	at := func(from, to int) batch.Span {
		return batch.Span{From: time.Unix(int64(from), 0), To: time.Unix(int64(to), 0)}
	}
	for _, c := range []struct{ a, b, want batch.Span }{
		{at(1, 2), at(1, 2), at(1, 2)},
		{at(1, 2), at(3, 4), at(1, 4)},
		{at(1, 9), at(3, 4), at(1, 9)},
		{at(1, 5), at(3, 9), at(1, 9)},
		{batch.Span{}, at(3, 4), at(3, 4)},
		{batch.Span{}, batch.Span{}, batch.Span{}},
	} {
		if got := c.a.Union(c.b); got != c.want {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
		if got := c.b.Union(c.a); got != c.want {
			t.Errorf("%v and %v: %v", c.b, c.a, got)
		}
	}
	if !(batch.Span{}).IsZero() || at(0, 1).IsZero() || !(batch.Span{From: time.Unix(1, 0)}).IsZero() {
		t.Error("a span is not set without an end, and only then")
	}
}

// TestMaxLabels checks the limit that docs/formats/wire.md states: a server refuses more.
func TestMaxLabels(t *testing.T) {
	if batch.MaxLabels != 32 {
		t.Errorf("a name has at most %d labels, 32 by the wire format", batch.MaxLabels)
	}
}

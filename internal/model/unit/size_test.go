package unit_test

import (
	"errors"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "9223372036854775807": 1<<63 - 1, "64B": 64,
		"1k": 1000, "1K": 1000, "1kB": 1000, "1Ki": 1024, "1KiB": 1024, "1 KiB": 1024,
		"1.5Gi": 3 << 29, "500M": 500e6, "2g": 2e9, "0.5Ti": 1 << 39, "1p": 1e15,
	} {
		if got, err := unit.ParseBytes(in); got != want || err != nil {
			t.Errorf("ParseBytes(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "Gi", "-1", "+1", "1X", "1KK", "1 2", "NaN", "Inf", "1e3", "0x10", "1_0", "10Pi5", "9223372036854775808", "99999999P", "1.2.3", "1KBB"} {
		if got, err := unit.ParseBytes(in); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseBytes(%q) = %v, %v, want invalid", in, got, err)
		}
	}
}

// TestParseBytesExact checks that every whole number of bytes is parsed exactly.
func TestParseBytesExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Int64Min(0).Draw(t, "bytes")
		if got, err := unit.ParseBytes(strconv.FormatInt(want, 10)); got != want || err != nil {
			t.Fatalf("ParseBytes(%d) = %v, %v", want, got, err)
		}
	})
}

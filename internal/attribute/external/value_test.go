package external_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
)

func unitOf(t testing.TB, name string) (u external.Unit) {
	t.Helper()
	if err := u.UnmarshalText([]byte(name)); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestValue(t *testing.T) {
	for _, c := range []struct {
		unit, text string
		want       int64
	}{
		{"W", "123.456", 123456000}, {"kW", " 0.1\n", 100_000_000}, {"mW", "1.5e3", 1_500_000}, {"J", "0", 0}, {"J", "-0", 0},
		{"kWh", "123456.789012345", 444444440444442000}, {"Wh", "0.0000000001", 0}, {"J", "1e-999999999", 0}, {"kJ", "4", 4e9},
		{"J", "0.0000015", 1}, {"J", "0.0000009", 0}, {"W", "4611686018427", 4611686018427e6}, {"W", strings.Repeat("0", 63) + "1", 1e6},
	} {
		if got, err := unitOf(t, c.unit).Value(c.text); err != nil || got != c.want {
			t.Errorf("%s %s is %d, %v; want %d", c.text, c.unit, got, err, c.want)
		}
	}
	for _, text := range []string{"", "-1", "NaN", "inf", "0x10", "1_000", "1e30", "12 W", "1,5", "1/2", "4611686018428", strings.Repeat("0", 64) + "1"} {
		if v, err := unitOf(t, "W").Value(text); v != 0 || !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q is %d, %v", text, v, err)
		}
	}
}

func TestFind(t *testing.T) {
	const text = `{"a": {"b": [{"c": 12.50}, "7", null]}, "x y": {"ü\"": 3}, "t": "-1", "big": 123456789012345678901, "_0aA-9zZ": [5]}`
	for path, want := range map[string]string{
		"a.b[0].c": "12.50", "a.b[1]": "7", `["x y"]["ü\""]`: "3", "t": "-1", `a["b"][0]["c"]`: "12.50", "big": "123456789012345678901",
		"": text, "_0aA-9zZ[0]": "5",
	} {
		p, err := external.ParsePath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got, err := p.Find([]byte(text + "\n")); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"a", "a.b", "a.b[2]", "a.b[3]", "a.c", "a.b.c", "a[0]", "none"} {
		p, err := external.ParsePath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got, err := p.Find([]byte(text)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
	for _, path := range []string{".a", "a.", "a..b", "a[", "a[x]", "a[-1]", "a[a]", "a[2147483648]", "a[0", `a["x]`, `a["x"`, "a b", "a]"} {
		if p, err := external.ParsePath(path); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s is %v, %v", path, p, err)
		}
	}
	for _, text := range []string{"", "{", `{"a":1} {}`, "nonsense"} {
		if got, err := (external.Path{"a"}).Find([]byte(text)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("in %q it is %q, %v", text, got, err)
		}
	}
	if _, err := (external.Path{"a"}).Find([]byte("nonsense")); !strings.Contains(err.Error(), "not valid JSON") {
		t.Errorf("of text that is not JSON it says %v", err)
	}
}

// A path is read as it was written, and no text breaks a finder or a number.
func FuzzFind(f *testing.F) {
	f.Add("a.b[0].c", `{"a":{"b":[{"c":1}]}}`)
	f.Add(`["x y"][3]`, `[1,2]`)
	f.Add("", "12.5")
	f.Fuzz(func(t *testing.T, path, text string) {
		p, err := external.ParsePath(path)
		if err != nil {
			return
		}
		again, err := external.ParsePath(p.String())
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Fatalf("%q is written %q and read as %v, %v", path, p, again, err)
		}
		number, err := p.Find([]byte(text))
		if err != nil {
			return
		}
		if v, err := unitOf(t, "kWh").Value(number); err == nil && v < 0 {
			t.Fatalf("%q is %d", number, v)
		}
	})
}

package web_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A shown is a number as a page shows it: in the base unit, with half a unit of its last digit.
type shown struct {
	value, half float64
	base        string // the base unit, "" of a count
}

// A scale is how many base units a shown unit has.
type scale struct {
	factor float64
	base   string
}

// shownUnits are all units of the pages; a page that shows another one is wrong.
var shownUnits = func() map[string]scale {
	all := map[string]scale{"": {1, ""}, "cores": {1, "cores"}, "%": {0.01, "ratio"}, "Wh": {3600, "J"}, "kWh": {3.6e6, "J"},
		"task s": {1, "task s"}, "task h": {3600, "task s"}, "µs": {1e-6, "s"}, "ms": {1e-3, "s"}, "s": {1, "s"}, "min": {60, "s"}, "h": {3600, "s"}, "d": {86400, "s"}}
	for i, p := range []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"} {
		bytes := math.Pow(1024, float64(i))
		all[p+"B"], all[p+"B/s"], all[p+"B h"] = scale{bytes, "B"}, scale{bytes, "B/s"}, scale{bytes * 3600, "B s"}
	}
	for p, factor := range map[string]float64{"µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} {
		all[p+"W"], all[p+"J"] = scale{factor, "W"}, scale{factor, "J"}
		if factor >= 1 {
			all[p], all[p+"/s"] = scale{factor, ""}, scale{factor, "/s"}
		}
	}
	return all
}()

var numeral = regexp.MustCompile(`^-?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(e-?\d+)?$`)

// parseShown reads a number and its unit, "1,234.5 KiB". It refuses an unknown unit.
func parseShown(text string) (shown, error) {
	number, unit, _ := strings.Cut(text, " ")
	s, ok := shownUnits[unit]
	if !ok {
		return shown{}, fmt.Errorf("%q has an unknown unit", text)
	}
	if !numeral.MatchString(number) {
		return shown{}, fmt.Errorf("%q is not a number", text)
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil {
		return shown{}, fmt.Errorf("%q: %w", text, err)
	}
	digits, exponent, _ := strings.Cut(number, "e")
	_, fraction, _ := strings.Cut(digits, ".")
	power, _ := strconv.Atoi(exponent) // "" is 0
	half := 0.5 * math.Pow10(power-len(fraction))
	if v == 0 && fraction == "" {
		// Zero is exact, except cores and whole bytes below a half.
		half = map[string]float64{"cores": 0.0005, "B": 0.5, "B/s": 0.5}[unit]
	}
	return shown{v * s.factor, half * s.factor, s.base}, nil
}

// matches reports whether the exact value v is shown, rounded to the digits that are shown.
func (s shown) matches(v float64) bool {
	return math.Abs(s.value-v) <= s.half+1e-9*math.Abs(v)
}

// absent is what a page shows for a figure that is not known.
const absent = "–"

// compareShown compares a text with an exact value in a base unit; nil is absent.
func compareShown(text, base string, exact *float64) error {
	if exact == nil {
		if text != absent {
			return fmt.Errorf("%q is shown for an absent figure", text)
		}
		return nil
	}
	if most, less := strings.CutPrefix(text, "<"); less { // in the unit of its column
		s, err := parseShown(most)
		if err == nil && (s.base != base || *exact <= 0 || *exact >= s.value) {
			err = fmt.Errorf("%q is shown for %v %s", text, *exact, base)
		}
		return err
	}
	s, err := parseShown(text)
	switch {
	case err != nil:
		return fmt.Errorf("%w; want %v %s", err, *exact, base)
	case s.base != base && s.value != 0:
		return fmt.Errorf("%q is in %q, want %v %q", text, s.base, *exact, base)
	case !s.matches(*exact):
		return fmt.Errorf("%q is shown for %v %s", text, *exact, base)
	}
	return nil
}

// TestShown checks the parser of what pages show: a value matches its own text only, to half a unit
// of the last digit, and unknown units are refused.
func TestShown(t *testing.T) {
	for _, c := range []struct {
		text, base string
		low, high  float64 // the values that match
	}{
		{"1.50 s", "s", 1.495, 1.505}, {"2.0 min", "s", 117, 123}, {"1,234", "", 1233.5, 1234.5}, {"0 B", "B", -0.5, 0.5}, {"0 cores", "cores", -0.0005, 0.0005},
		{"0.12 cores", "cores", 0.115, 0.125}, {"17.0 GiB h", "B s", 16.95 * 3600 * (1 << 30), 17.05 * 3600 * (1 << 30)}, {"99.8 %", "ratio", 0.9975, 0.9985},
		{"1.2e-7 W", "W", 1.15e-7, 1.25e-7}, {"12.3 mW", "W", 0.01225, 0.01235}, {"1.04 Wh", "J", 3726, 3762}, {"12.3 k/s", "/s", 12250, 12350}, {"512 KiB/s", "B/s", 511.5 * 1024, 512.5 * 1024},
	} {
		for factor, want := range map[float64]bool{0.999: true, 1.001: false} {
			middle, half := (c.low+c.high)/2, (c.high-c.low)/2
			for _, v := range []float64{middle - factor*half, middle + factor*half} {
				if err := compareShown(c.text, c.base, &v); (err == nil) != want {
					t.Errorf("%q for %v: %v, want it to match: %v", c.text, v, err, want)
				}
			}
		}
		if compareShown(c.text, c.base, nil) == nil {
			t.Errorf("%q passes as absent", c.text)
		}
	}
	zero := 0.0
	for _, bad := range []string{"1.5 parsec", "1.5 GB", "1.5s", "12,34 s", "s", "", "NaN s", "Infinity", "1.5 kcores", absent} {
		if err := compareShown(bad, "s", &zero); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
	if err := compareShown("1.00 min", "J", new(float64)); err == nil {
		t.Error("a time passes as energy")
	}
	if err := compareShown(absent, "s", nil); err != nil {
		t.Error(err)
	}
}

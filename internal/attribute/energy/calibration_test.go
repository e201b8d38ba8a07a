package energy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// calibrated returns the calibration of a machine that draws 10 W, and 40 W more at full load.
func calibrated() *energy.Calibration {
	r := rand.New(rand.NewPCG(1, 2))
	var ss []energy.Sample
	for i := range int64(101) {
		ss = append(ss, energy.Sample{Load: i * 10_000, Power: 10e6 + i*400_000 + r.Int64N(200_000) - 100_000})
	}
	return energy.Calibrate("A CPU, 8 threads", 8, power.Package, 30_000, "calibrated with rapl/package-0", ss)
}

// TestCalibration checks that a calibration survives encoding, with the class of the meter in its
// error.
func TestCalibration(t *testing.T) {
	c := calibrated()
	if c.Curve.ErrorPPM < 30_000 || c.Curve.ErrorPPM > 60_000 || c.Residual > 10_000 {
		t.Errorf("the error of the curve is %d ppm, its residual %d; want a bit more than the meter's 30000, and less than 10000", c.Curve.ErrorPPM, c.Residual)
	}
	for _, load := range []int64{0, 300_000, power.PPM} {
		if p, want := energy.CurvePower(&c.Curve, load), 10e6+load*40; p < want*99/100 || p > want*101/100 {
			t.Errorf("%d uW at %d ppm, want %d within 1 %%", p, load, want)
		}
	}
	got, err := energy.DecodeCalibration(c.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, got); d != "" {
		t.Errorf("(-encoded +decoded):\n%s", d)
	}
}

// TestCalibrationSamples checks that a sample says by how much it is above the curve.
func TestCalibrationSamples(t *testing.T) {
	c := energy.Calibration{Curve: power.Curve{Domain: power.Rest, Threads: 1, Points: []power.Point{{Load: 0, Power: 100}}},
		Samples: []energy.Sample{{Load: 0, Power: 130}, {Load: 500_000, Power: 60}}}
	if text := string(c.Encode()); !strings.Contains(text, `"off_uw": 30`) || !strings.Contains(text, `"off_uw": -40`) {
		t.Errorf("samples of 130 and 60 uW, where the curve has 100, are encoded as\n%s", text)
	}
}

// TestDecodeCalibrationLimits checks the smallest and the largest values that a curve may have.
func TestDecodeCalibrationLimits(t *testing.T) {
	for _, c := range []struct {
		threads   int
		off, load int64
		power     int64
		ok        bool
	}{
		{1, 0, 0, 0, true}, {0, 0, 0, 0, false},
		{1, 10e6, 0, 0, true}, {1, 10e6 + 1, 0, 0, false}, {1, -1, 0, 0, false},
		{1, 0, 1e6, 0, true}, {1, 0, 1e6 + 1, 0, false}, {1, 0, -1, 0, false},
		{1, 0, 0, 50_000e6, true}, {1, 0, 0, 50_000e6 + 1, false}, {1, 0, 0, -1, false},
	} {
		text := fmt.Sprintf(`{"version":1,"domain":"rest","threads":%d,"error_ppm":%d,"points":[{"load_ppm":%d,"power_uw":%d}]}`, c.threads, c.off, c.load, c.power)
		if _, err := energy.DecodeCalibration([]byte(text)); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, accepted should be %t", text, err, c.ok)
		}
	}
}

func TestDecodeCalibrationRefuses(t *testing.T) {
	good := string(calibrated().Encode())
	for name, edit := range map[string][2]string{
		"no JSON":         {"{", ""},
		"version":         {`"version": 1`, `"version": 2`},
		"domain":          {`"domain": "package"`, `"domain": "dram"`},
		"threads":         {`"threads": 8`, `"threads": 0`},
		"error":           {`"error_ppm": `, `"error_ppm": -`},
		"no points":       {`"points"`, `"dots"`},
		"falling loads":   {`"load_ppm": 2500`, `"load_ppm": 5000`},
		"same loads":      {`"load_ppm": 2500`, `"load_ppm": 0`},
		"too much load":   {`"load_ppm": 1000000`, `"load_ppm": 1000001`},
		"negative power":  {`"power_uw": `, `"power_uw": -`},
		"absurd power":    {`"power_uw": `, `"power_uw": 99999`},
		"number too long": {`"power_uw": `, `"power_uw": 99999999999999999999`},
	} {
		text := strings.Replace(good, edit[0], edit[1], 1)
		if text == good {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if _, err := energy.DecodeCalibration([]byte(text)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func FuzzDecodeCalibration(f *testing.F) {
	f.Add(calibrated().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := energy.DecodeCalibration(b)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := energy.DecodeCalibration(c.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c, again); d != "" {
			t.Errorf("encoded and decoded:\n%s", d)
		}
	})
}

package energy

import (
	"encoding/json"
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// calibrationVersion is the format version of Calibration.Encode.
const calibrationVersion = 1

// A Calibration is a curve fitted to measured power, with its samples.
type Calibration struct {
	Processor string // CPU model and number of threads
	Curve     power.Curve
	Residual  int64    // deviation of the samples from the curve: see [FitCurve]
	Samples   []Sample // what was measured
}

// encodedCalibration is the JSON form of a calibration.
type encodedCalibration struct {
	Version   int             `json:"version"`
	Processor string          `json:"processor"`
	Source    string          `json:"source"`
	Domain    string          `json:"domain"` // package, or rest: the whole machine
	Threads   int             `json:"threads"`
	Error     int64           `json:"error_ppm"`
	Residual  int64           `json:"residual_ppm"`
	Points    []encodedPoint  `json:"points"`
	Samples   []encodedSample `json:"samples,omitempty"`
}

type encodedPoint struct {
	Load  int64 `json:"load_ppm"`
	Power int64 `json:"power_uw"`
}

type encodedSample struct {
	encodedPoint
	Off int64 `json:"off_uw"` // measured minus curve
}

// Encode writes the calibration as JSON.
func (c *Calibration) Encode() []byte {
	w := encodedCalibration{Version: calibrationVersion, Processor: c.Processor, Source: c.Curve.Source, Domain: c.Curve.Domain.String(),
		Threads: c.Curve.Threads, Error: c.Curve.ErrorPPM, Residual: c.Residual}
	for _, p := range c.Curve.Points {
		w.Points = append(w.Points, encodedPoint(p))
	}
	for _, s := range c.Samples {
		w.Samples = append(w.Samples, encodedSample{encodedPoint(s), s.Power - CurvePower(&c.Curve, s.Load)})
	}
	b, _ := json.MarshalIndent(w, "", "  ") // only integers and texts
	return append(b, '\n')
}

// DecodeCalibration decodes what Encode wrote or a person edited: samples may be missing. The error
// wraps fault.ErrInvalid.
func DecodeCalibration(b []byte) (*Calibration, error) {
	var w encodedCalibration
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("power curve: %v: %w", err, fault.ErrInvalid)
	}
	c := &Calibration{Processor: w.Processor, Residual: w.Residual,
		Curve: power.Curve{Threads: w.Threads, ErrorPPM: w.Error, Source: w.Source}}
	for d := power.Package; d < power.DomainLimit; d++ {
		if d.String() == w.Domain {
			c.Curve.Domain = d
		}
	}
	for _, p := range w.Points {
		c.Curve.Points = append(c.Curve.Points, power.Point(p))
	}
	for _, s := range w.Samples {
		c.Samples = append(c.Samples, Sample(s.encodedPoint))
	}
	switch {
	case w.Version != calibrationVersion:
		return nil, fmt.Errorf("power curve: unknown version %d: %w", w.Version, fault.ErrInvalid)
	case c.Curve.Domain != power.Package && c.Curve.Domain != power.Rest:
		return nil, fmt.Errorf("power curve: domain %q is neither package nor rest: %w", w.Domain, fault.ErrInvalid)
	case w.Threads < 1 || w.Error < 0 || w.Error > maxCurveError:
		return nil, fmt.Errorf("power curve: %d threads, off by %d ppm: %w", w.Threads, w.Error, fault.ErrInvalid)
	case len(w.Points) == 0:
		return nil, fmt.Errorf("power curve: no points: %w", fault.ErrInvalid)
	}
	for i, p := range w.Points {
		if p.Load < 0 || p.Load > power.PPM || p.Power < 0 || p.Power > impossibleBoxPower || i > 0 && p.Load <= w.Points[i-1].Load {
			return nil, fmt.Errorf("power curve: impossible point %d of %d ppm and %d uW: %w", i, p.Load, p.Power, fault.ErrInvalid)
		}
	}
	return c, nil
}

// maxCurveError is the maximum error of a curve, in ppm.
const maxCurveError = 10 * power.PPM

// Calibrate fits a curve to samples of the power of a domain, measured with meters of an error
// class in ppm.
func Calibrate(processor string, threads int, domain power.Domain, class int64, source string, samples []Sample) *Calibration {
	c := &Calibration{Processor: processor, Samples: slices.Clone(samples)}
	c.Curve, c.Residual = FitCurve(domain, samples)
	c.Curve.Threads, c.Curve.Source = threads, source
	c.Curve.ErrorPPM = min(maxCurveError, rootSumSquare(c.Curve.ErrorPPM, class, c.Residual))
	return c
}

// Package outlier tests whether one new observation fits a small sample of earlier ones.
//
// The test is the modified z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers
// (ASQC, 1993): the distance from the median in units of the median absolute deviation (MAD), scaled so
// that the unit is the standard deviation of a normal distribution. Median and MAD hardly move where up
// to half of the sample are outliers, so one slow run does not hide the next one.
//
// The authors recommend a limit of 3.5. The new observation is not in the sample here, and the MAD of a
// small sample varies much: with the limit of 3.5, 1 % of normal observations are beyond it at 20 values,
// but 12 % at 5. So the limit grows as the sample shrinks, and is exceeded by 1 % of observations that
// come from the same normal distribution, at any size of the sample. The limits are computed by
// simulation; a test repeats it.
package outlier

import (
	"math"
	"slices"
)

// The sizes of a sample.
const (
	MinSample = 5
	MaxSample = 20
)

// FalseRate is the largest rate of marks without a change, of normally distributed observations.
const FalseRate = 0.01

// MinChange is the smallest change from the median that is marked, as a part of the median: a smaller one
// may be real, but is not worth a look.
const MinChange = 0.1

// minScale is the smallest scale, as a part of the median: more than half of the values may be equal,
// then the MAD is 0.
const minScale = 0.01

// limits are the limits of the score by size of the sample, from MinSample on.
var limits = [MaxSample - MinSample + 1]float64{14.5, 8.1, 7.8, 5.95, 5.8, 4.97, 4.91, 4.43, 4.38, 4.11, 4.06, 3.86, 3.83, 3.69, 3.67, 3.54}

// A Result is the comparison of an observation with a sample.
type Result struct {
	Median float64 // of the sample
	Sample int     // number of values
	Change float64 // from the median, as a part of it; infinite if the median is 0
	Score  float64 // the modified z-score
	Limit  float64 // of the absolute score
	Marked bool    // the score is beyond the limit, and the change is at least MinChange
}

// Compare compares an observation with a sample, of which it uses the first MaxSample values. It returns
// false if there are fewer than MinSample, or if a number is not finite.
func Compare(x float64, sample []float64) (Result, bool) {
	s := slices.Clone(sample[:min(len(sample), MaxSample)])
	for _, v := range append(s, x) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return Result{}, false
		}
	}
	if len(s) < MinSample {
		return Result{}, false
	}
	r := Result{Median: median(s), Sample: len(s), Limit: limits[len(s)-MinSample]}
	for i := range s {
		s[i] = math.Abs(s[i] - r.Median)
	}
	// 0.6745 is the third quartile of the standard normal distribution, which is its MAD.
	scale := max(median(s)/0.6745, minScale*math.Abs(r.Median))
	switch d := x - r.Median; {
	case d == 0:
	default:
		r.Change, r.Score = d/math.Abs(r.Median), d/scale
	}
	r.Marked = math.Abs(r.Score) > r.Limit && math.Abs(r.Change) >= MinChange
	return r, true
}

// median returns the median of values, which it sorts.
func median(s []float64) float64 {
	slices.Sort(s)
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

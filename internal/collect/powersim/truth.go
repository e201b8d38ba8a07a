package powersim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"slices"

	"mete.dev/mete/internal/model/power"
)

// A Truth is the recorded use of loads over time.
type Truth struct {
	Loads   []string // names; each record has one more load for everything else
	Records []Record // by time
}

// heading is the first line of a truth file.
type heading struct{ Loads []string }

// ReadTruth reads the file of a simulator, which may still be running.
func ReadTruth(file string) (*Truth, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // drop an incomplete line
	d := json.NewDecoder(bytes.NewReader(b))
	var h heading
	if err := d.Decode(&h); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	t := &Truth{Loads: h.Loads}
	for d.More() {
		var r Record
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		t.Records = append(t.Records, r)
	}
	return t, nil
}

// At returns the use until an instant, interpolated between two records, and false before
// the first or after the last record.
func (t *Truth) At(at int64) (Record, bool) {
	i, found := slices.BinarySearchFunc(t.Records, at, func(r Record, at int64) int { return int(min(1, max(-1, r.At-at))) })
	switch {
	case found:
		return t.Records[i], true
	case i == 0 || i == len(t.Records):
		return Record{}, false
	}
	a, b := &t.Records[i-1], &t.Records[i]
	return combine(*a, *b, func(x, y int64) int64 { return x + mulDiv(y-x, at-a.At, b.At-a.At) }, at), true
}

// Since returns the use between two records.
func (r Record) Since(from Record) Record {
	return combine(from, r, func(x, y int64) int64 { return y - x }, r.At)
}

// Total returns the uJ of a domain: idle and all loads.
func (r Record) Total(d power.Domain) int64 {
	sum := r.Idle[d]
	for _, a := range r.Active {
		sum += a[d]
	}
	return sum
}

// combine combines two records number by number.
func combine(a, b Record, f func(x, y int64) int64, at int64) Record {
	r := newRecord(len(a.CPU))
	r.At = at
	join := func(into, x, y []int64) {
		for i := range into {
			into[i] = f(x[i], y[i])
		}
	}
	join(r.Idle, a.Idle, b.Idle)
	join(r.CPU, a.CPU, b.CPU)
	for i := range r.Active {
		join(r.Active[i], a.Active[i], b.Active[i])
	}
	return r
}

// mulDiv returns n x a / b, rounded down, without overflow.
func mulDiv(n, a, b int64) int64 {
	v := big.NewInt(n)
	v.Mul(v, big.NewInt(a))
	return v.Div(v, big.NewInt(b)).Int64()
}

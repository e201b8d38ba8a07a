// Package result parses the JSON answers of Prometheus's HTTP API to PromQL queries.
package result

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Point is one value of a series.
type Point struct {
	Time  time.Time
	Value float64
	Text  string // the exact text of the server
}

// A Series is the values of one set of labels, in the order of time.
type Series struct {
	Labels map[string]string
	Points []Point
}

// An Answer is the result of a query.
type Answer struct {
	// Kind is "vector", "scalar" or "string" for an instant query, "matrix" for a range query
	// or a range vector.
	Kind   string
	Series []Series
	// Histograms is the number of series with native histograms, which only Raw has.
	Histograms int
	Warnings   []string // the server's warnings and infos
	Raw        []byte   // the JSON of the answer
}

// A sample is a pair of a time in seconds and a value as text.
type sample [2]json.RawMessage

func (s sample) point() (p Point, err error) {
	var at float64
	if err := json.Unmarshal(s[0], &at); err != nil {
		return p, err
	}
	if err := json.Unmarshal(s[1], &p.Text); err != nil {
		return p, err
	}
	p.Time = time.UnixMilli(int64(math.Round(at * 1000)))
	p.Value, err = strconv.ParseFloat(p.Text, 64)
	return p, err
}

// Parse parses an answer. The error wraps fault.ErrInvalid.
func Parse(body []byte) (*Answer, error) {
	a, err := parse(body)
	if err != nil {
		return nil, fmt.Errorf("query answer: %w: %w", err, fault.ErrInvalid)
	}
	return a, nil
}

func parse(body []byte) (*Answer, error) {
	var read struct {
		Status string `json:"status"`
		Data   struct {
			Type   string          `json:"resultType"`
			Result json.RawMessage `json:"result"`
		} `json:"data"`
		Warnings []string `json:"warnings"`
		Infos    []string `json:"infos"`
	}
	if err := json.Unmarshal(body, &read); err != nil {
		return nil, err
	}
	if read.Status != "success" {
		return nil, fmt.Errorf("status %q", read.Status)
	}
	a := &Answer{Kind: read.Data.Type, Warnings: append(read.Warnings, read.Infos...), Raw: body}
	switch a.Kind {
	case "string":
		var s sample
		if err := json.Unmarshal(read.Data.Result, &s); err != nil {
			return nil, err
		}
		p, _ := s.point() // the text is not a number
		a.Series = []Series{{Points: []Point{p}}}
		return a, nil
	case "scalar":
		var s sample
		if err := json.Unmarshal(read.Data.Result, &s); err != nil {
			return nil, err
		}
		p, err := s.point()
		a.Series = []Series{{Points: []Point{p}}}
		return a, err
	case "vector", "matrix":
		return a, a.fill(read.Data.Result)
	}
	return nil, fmt.Errorf("result of type %q", a.Kind)
}

// fill parses the series of a vector or matrix.
func (a *Answer) fill(result []byte) error {
	var list []struct {
		Metric map[string]string `json:"metric"`
		Value  *sample           `json:"value"`
		Values []sample          `json:"values"`
	}
	if err := json.Unmarshal(result, &list); err != nil {
		return err
	}
	for _, l := range list {
		if l.Value != nil {
			l.Values = []sample{*l.Value}
		}
		if len(l.Values) == 0 {
			a.Histograms++
			continue
		}
		s := Series{Labels: l.Metric}
		for _, v := range l.Values {
			p, err := v.point()
			if err != nil {
				return err
			}
			s.Points = append(s.Points, p)
		}
		a.Series = append(a.Series, s)
	}
	return nil
}

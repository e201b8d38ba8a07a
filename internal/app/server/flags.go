package server

import (
	"errors"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/unit"
)

// An ageFlag is a flag of a length of time, in days where there are any.
type ageFlag time.Duration

// String writes it for the help.
func (a *ageFlag) String() string { return v1.FormatLength(time.Duration(*a)) }

// Set reads it.
func (a *ageFlag) Set(s string) error {
	d, err := v1.ParseLength(s)
	if err != nil {
		return errors.New("write it as 7d, 48h or 90m")
	}
	*a = ageFlag(d)
	return nil
}

// Type names the kind of value.
func (*ageFlag) Type() string { return "time" }

// A sizeFlag is a flag of a number of bytes; 0 is no limit.
type sizeFlag int64

// String writes it for the help.
func (s *sizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return unit.Bytes(float64(*s))
}

// Set reads it.
func (s *sizeFlag) Set(text string) error {
	n, err := unit.ParseBytes(text)
	if err != nil {
		return errors.New("write it as 20GiB or 500M")
	}
	*s = sizeFlag(n)
	return nil
}

// Type names the kind of value.
func (*sizeFlag) Type() string { return "size" }

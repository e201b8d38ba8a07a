package server

import (
	"errors"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/unit"
)

// An ageFlag is a duration flag that prints days where possible.
type ageFlag time.Duration

func (a *ageFlag) String() string { return v1.FormatLength(time.Duration(*a)) }

func (a *ageFlag) Set(s string) error {
	d, err := v1.ParseLength(s)
	if err != nil {
		return errors.New("write it as 7d, 48h or 90m")
	}
	*a = ageFlag(d)
	return nil
}

func (*ageFlag) Type() string { return "time" }

// A sizeFlag is a flag with a number of bytes; 0 means unlimited.
type sizeFlag int64

func (s *sizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return unit.Bytes(float64(*s))
}

func (s *sizeFlag) Set(text string) error {
	n, err := unit.ParseBytes(text)
	if err != nil {
		return errors.New("write it as 20GiB or 500M")
	}
	*s = sizeFlag(n)
	return nil
}

func (*sizeFlag) Type() string { return "size" }

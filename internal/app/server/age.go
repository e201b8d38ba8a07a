package server

import (
	"errors"
	"time"

	"mete.dev/mete/internal/tally"
)

// An age is a flag of a length of time, in days where there are any.
type age time.Duration

// String writes it for the help.
func (a *age) String() string { return tally.FormatLength(time.Duration(*a)) }

// Set reads it.
func (a *age) Set(s string) error {
	d, err := tally.ParseLength(s)
	if err != nil {
		return errors.New("write it as 7d, 48h or 90m")
	}
	*a = age(d)
	return nil
}

// Type names the kind of value.
func (*age) Type() string { return "time" }

package doctor

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxOffset is the difference of two clocks from which a server corrects the times of an agent.
const maxOffset = 2 * time.Minute

// clockChecks asks the kernel whether the clock is synchronized.
func clockChecks() []Check {
	var t unix.Timex // without modes nothing is set
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return []Check{failed("synchronized", err)}
	}
	return []Check{synchronized(state, t.Status, time.Duration(t.Maxerror)*time.Microsecond)}
}

// synchronized judges the answer of adjtimex(2).
func synchronized(state int, status int32, maxError time.Duration) Check {
	if state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0 {
		return of("synchronized", Limited, "the kernel's clock is not synchronized").
			figures("amounts are right; minutes may be off by the error of the clock, and by more than two minutes the server shifts them").
			do("timedatectl set-ntp true, or run chronyd; in a virtual machine whose host sets the clock nothing is to be done")
	}
	return of("synchronized", OK, "yes, the clock is off by at most %s", maxError.Round(time.Millisecond))
}

// offset compares this machine's clock with that of a server, which has whole seconds: at is the middle
// of the request.
func offset(at, server time.Time, took time.Duration) Check {
	if server.IsZero() {
		return of("clock", Missing, "the server does not say its time")
	}
	// The server's time lies between server and a second later.
	d := at.Sub(server.Add(500 * time.Millisecond))
	slack := 500*time.Millisecond + took/2
	c := of("clock", OK, "%+.1f s against the server, ±%.1f s", d.Seconds(), slack.Seconds())
	if max(d, -d)-slack > maxOffset {
		c.State = Limited
		c = c.figures("the server shifts the times of what this machine sends, and lists it in mete gaps").do("set the clock that is wrong: timedatectl set-ntp true")
	}
	return c
}

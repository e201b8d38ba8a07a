package procfmt

import (
	"bytes"
)

// A System holds the values of /proc/stat. The times are sums over all CPUs since boot in
// ns, sampled at clock ticks: good for steal and shares, 2-3 % low for the use of tasks.
type System struct {
	User, Nice, System, Idle, IOWait, IRQ, SoftIRQ, Steal int64

	CPUs      int   // online
	Processes int64 // forks since boot, threads included
	BootTime  int64 // wall clock, seconds since 1970
}

// Stat reads /proc/stat. The cpu line is required.
func Stat(b []byte) (System, error) {
	var s System
	seen := false
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		key, rest := cutField(line)
		ok := true
		switch {
		case string(key) == "cpu":
			ok = s.cpu(rest)
			seen = ok
		case len(key) > 3 && string(key[:3]) == "cpu":
			_, ok = small(key[3:])
			s.CPUs++
		case string(key) == "processes":
			ok = put(rest, 1, &s.Processes)
		case string(key) == "btime":
			ok = put(rest, 1, &s.BootTime)
		}
		if !ok {
			return System{}, invalid(string(key), rest)
		}
	}
	if !seen {
		return System{}, invalid("stat without cpu", nil)
	}
	return s, nil
}

func (s *System) cpu(b []byte) bool {
	for _, into := range [...]*int64{&s.User, &s.Nice, &s.System, &s.Idle, &s.IOWait, &s.IRQ, &s.SoftIRQ, &s.Steal} {
		var f []byte
		f, b = cutField(b)
		v, ok := number(f)
		if !ok {
			return false
		}
		if *into, ok = scale(v, tick); !ok {
			return false
		}
	}
	return true
}

// NetDev reads /proc/net/dev and calls f for each interface with the bytes and packets
// received and sent.
func NetDev(b []byte, f func(name string, rxBytes, rxPackets, txBytes, txPackets int64)) error {
	for n, line := 0, []byte(nil); len(b) > 0; n++ {
		line, b = cutLine(b)
		if n < 2 || len(line) == 0 {
			continue // two heading lines
		}
		// A name may contain a colon (an old alias, "eth0:1"), a counter never does.
		colon := bytes.LastIndexByte(line, ':')
		if colon < 0 {
			return invalid("net/dev", line)
		}
		name := bytes.TrimSpace(line[:colon])
		var rx, tx [2]int64
		rest, ok1 := numbers(line[colon+1:], rx[:])
		_, ok2 := numbers(skip(rest, 6), tx[:])
		if !ok1 || !ok2 || len(name) == 0 || min(rx[0], rx[1], tx[0], tx[1]) < 0 {
			return invalid("net/dev", line)
		}
		f(string(name), rx[0], rx[1], tx[0], tx[1])
	}
	return nil
}

// Loadavg reads /proc/loadavg and returns the number of tasks, threads and kernel threads
// included.
func Loadavg(b []byte) (tasks int64, err error) {
	rest := b
	var f []byte
	for range 4 {
		f, rest = cutField(rest)
	}
	if _, all, ok := bytes.Cut(f, []byte{'/'}); ok {
		if v, ok := number(all); ok && v >= 0 {
			return v, nil
		}
	}
	return 0, invalid("loadavg", b)
}

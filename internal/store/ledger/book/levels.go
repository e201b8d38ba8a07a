package book

import (
	"slices"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
)

// A levelSpan is what a container reserves from one second (Unix time) to another one; to is 0 for one that lasts.
type levelSpan struct {
	from, to int64
	rough    bool // the levels are the former or the later ones
	pod.Levels
}

// outage is how long, in seconds, the state of pods may be unknown before the times of changes are taken as unknown.
const outage = 120

// spansPerDay is how many changes of a container count in a day; further ones change the latest span as a whole, so that
// resizing again and again does not fill the ledger.
const spansPerDay = 200

// revise returns the spans of a container of a pod that is scheduled from one second and, unless to is 0, to another one,
// and that now, at a time, has these levels. The state of before was last confirmed at since. After an outage a change
// counts from the middle of it on.
func revise(had []levelSpan, now pod.Levels, from, to, since, at int64) (spans []levelSpan) {
	spans = slices.Clone(had)
	if n := len(spans); n == 0 || spans[n-1].to != 0 && from >= spans[n-1].to {
		return endAt(append(spans, levelSpan{from: from, Levels: now}), to) // new, or a static pod that came again
	}
	if n := len(spans); n > 1 && spans[n-1].rough && spans[n-1].Levels == now && spans[n-2].Levels == now && spans[n-2].to == spans[n-1].from {
		spans = spans[:n-1] // it was taken as gone
	}
	last := &spans[len(spans)-1]
	last.to, at = 0, max(at, last.from)
	switch recent := len(spans) - spansPerDay; {
	case last.Levels == now:
	case recent >= 0 && spans[recent].from > at-24*3600:
		last.Levels = now
	default:
		old := last.Levels
		last.to = at
		if since = max(since, last.from); at-since > outage {
			last.to = since
			middle := since + (at-since)/2
			spans = append(spans, levelSpan{since, middle, true, old}, levelSpan{middle, at, true, now})
		}
		spans = append(spans, levelSpan{from: at, Levels: now})
	}
	return endAt(spans, to)
}

// end returns the end of a span, of which nothing after a time matters.
func end(to, at int64) int64 {
	if to == 0 {
		return at
	}
	return to
}

// endAt cuts spans at a second; 0 cuts nothing.
func endAt(spans []levelSpan, to int64) []levelSpan {
	if to != 0 {
		for i := range spans {
			spans[i].to = min(end(spans[i].to, to), to)
		}
	}
	return slices.DeleteFunc(spans, func(s levelSpan) bool { return s.to != 0 && s.to <= s.from })
}

// vanish ends the spans of a container whose pod is gone at a time, and was last seen at since. unsure says that it is not
// known when it ended in between.
func vanish(had []levelSpan, since, at int64) (spans []levelSpan, unsure bool) {
	spans = slices.Clone(had)
	if len(spans) == 0 || spans[len(spans)-1].to != 0 {
		return spans, false
	}
	last := &spans[len(spans)-1]
	if since = max(since, last.from); at-since <= outage {
		return endAt(spans, at), false
	}
	last.to = since
	return endAt(append(spans, levelSpan{since, since + (at-since)/2, true, last.Levels}), at), true
}

// settle ends the last span, of a pod that vanished, at the second at which its node saw it end.
func settle(had []levelSpan, to int64) []levelSpan {
	spans := slices.Clone(had)
	if n := len(spans) - 1; n >= 0 && spans[n].rough {
		spans[n].to = max(to, spans[n].from)
	}
	return endAt(spans, 0)
}

// levelsUsage returns what spans of a container amount to from one second to another one; false if there are none. Without
// a name it is what the pod reserves beyond its containers.
func levelsUsage(spans []levelSpan, container string, from, to int64) (u usage.Usage, some bool) {
	for _, s := range spans {
		seconds := min(end(s.to, to), to) - max(s.from, from)
		if seconds <= 0 {
			continue
		}
		some = true
		q := usage.Measured
		if s.rough {
			q = usage.Apportioned
		}
		// A thousandth of a CPU for a second is 10^6 ns.
		u.Put(usage.CPUReserved, s.CPU*seconds*1e6, q)
		u.Put(usage.MemoryReserved, s.Memory*seconds, q)
		u.Put(usage.StorageReserved, s.Storage*seconds, q)
		u.Put(usage.GPUReserved, s.GPU*seconds*1e6, q)
		time := func(r usage.Resource, is bool) {
			if container != "" && is {
				u.Put(r, seconds*1e9, q)
			} else if container != "" {
				u.Put(r, 0, q)
			}
		}
		time(usage.ReservedTime, true)
		time(usage.CPULimitedTime, s.CPULimit != pod.NoLimit)
		time(usage.MemoryLimitedTime, s.MemoryLimit != pod.NoLimit)
		if s.CPULimit != pod.NoLimit {
			u.Put(usage.CPULimit, s.CPULimit*seconds*1e6, q)
		}
		if s.MemoryLimit != pod.NoLimit {
			u.Put(usage.MemoryLimit, s.MemoryLimit*seconds, q)
		}
	}
	return u, some
}

package walltime

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// Judge returns for each window of a batch the duration to add to its wall time,
// given that its sender's clocks show c now.
//
// Windows of the sender's present boot get their boottime plus the offset that now
// and c.Boottime give, unless their own offsets agree with it within Tolerance: then
// Judge keeps these. The decision is the same for all of them, so that they keep
// their distances.
//
// The server cannot check the clock of an earlier boot. A boot of which something is booked
// already stays where it was placed: booked is, by boot, what was added to boottimes then. That is
// best where the boot was the sender's at that time, so that its clock was checked. Windows of another
// boot get the offset of its last window, which is the last one that the boot knew, unless that window
// would end after the next boot began or MaxAge ago: then it ends where the next boot began. Which
// window is the last one follows from c.Earlier, so that a backlog is placed alike however it is
// divided into batches. Of a boot that is not in it, the last one in the batch counts.
//
// An older agent states no boots. If its backlog of one boot takes several batches, the first is
// placed as if no other followed, and the others follow it: they may be booked over windows of the
// next boot, and, if they would end in the future, over the previous ones.
//
// If Judge moves any window, boots that it places by their windows in the batch do not overlap
// afterwards.
//
// So no window ends later than Tolerance after now, a batch whose clocks are right
// does not change by more than Tolerance, and windows that did not overlap do not overlap
// afterwards, but for those of older agents.
// The error wraps fault.ErrInvalid: a stamp is impossible.
func Judge(now time.Time, c batch.Clock, ws []usage.Window, booked map[string]int64) ([]time.Duration, error) {
	if err := Check(ws); err != nil {
		return nil, err
	}
	if c.Boot == "" || len(c.Boot) > maxBootID || c.Boottime < 0 || c.Boottime > maxBoottime {
		return nil, fmt.Errorf("clock: %d ns of a boot with an id of %d bytes: %w", c.Boottime, len(c.Boot), fault.ErrInvalid)
	}
	j := judgment{now: now.UnixNano(), clock: c, ws: ws, by: make([]time.Duration, len(ws))}
	boots := j.boots()
	j.places = j.placeBoots(boots, booked)
	moved := false
	for _, b := range boots {
		boot := j.ws[b[0]].Boot
		offset, placed := j.places[boot]
		switch {
		case boot == c.Boot:
			moved = j.judgeCurrent(b) || moved
		case placed:
			j.setOffset(b, offset)
			if l := j.latest(b); l > j.now+int64(Tolerance) {
				j.move(b, j.now-l)
			}
		default:
			moved = j.judgeEarlier(b) || moved
		}
	}
	return j.by, j.separateBoots(boots, moved)
}

// placeBoots returns, for the boots before the sender's that are booked already or stated by the
// sender, what to add to boottimes. Boots follow each other: a boot ends before the next one began,
// whose boottime was 0 then.
func (j *judgment) placeBoots(boots [][]int, booked map[string]int64) map[string]int64 {
	places := map[string]int64{}
	j.limit = j.now - j.clock.Boottime
	for _, e := range slices.Backward(j.clock.Earlier) {
		offset, ok := booked[e.Boot]
		if _, twice := places[e.Boot]; twice || e.Boot == j.clock.Boot || e.End < 0 || e.End > maxBoottime || abs(e.Offset) > maxOffset {
			continue
		}
		if !ok {
			// A batch that was made before the agent started may hold later windows.
			for _, b := range boots {
				if last := &j.ws[b[len(b)-1]]; last.Boot == e.Boot && last.End > e.End {
					e.End, e.Offset = last.End, last.Offset
				}
			}
			offset = e.Offset
			if end := e.End + offset; end > j.limit || end < j.now-int64(MaxAge) {
				offset = j.limit - e.End
			}
		}
		places[e.Boot] = offset
		j.limit = min(j.limit, offset)
	}
	maps.Copy(places, booked)
	return places
}

type judgment struct {
	now   int64
	clock batch.Clock
	ws    []usage.Window
	by    []time.Duration
	// places is what to add to boottimes of earlier boots that are placed without their windows.
	places map[string]int64
	limit  int64 // wall time at which the first of the stated boots began, else the sender's
}

// boots returns the windows' indices by boot, in the order in which boots
// appear, the sender's last.
func (j *judgment) boots() (boots [][]int) {
	at := make(map[string]int, 1)
	for i := range j.ws {
		n, ok := at[j.ws[i].Boot]
		if !ok {
			n = len(boots)
			at[j.ws[i].Boot] = n
			boots = append(boots, nil)
		}
		boots[n] = append(boots[n], i)
	}
	if n, ok := at[j.clock.Boot]; ok {
		own := boots[n]
		boots = append(slices.Delete(boots, n, n+1), own)
	}
	return boots
}

// judgeCurrent judges the windows of the sender's boot.
func (j *judgment) judgeCurrent(b []int) bool {
	offset := j.now - j.clock.Boottime
	if j.offsetsAgree(b, offset) && j.latest(b) <= j.now+int64(Tolerance) {
		return false
	}
	j.setOffset(b, offset)
	// A sender whose windows end after its own clock's present contradicts
	// itself.
	if l := j.latest(b); l > j.now+int64(Tolerance) {
		j.move(b, j.now-l)
	}
	return true
}

// judgeEarlier judges the windows of an earlier boot that is not in places.
func (j *judgment) judgeEarlier(b []int) (moved bool) {
	if offset := j.ws[b[len(b)-1]].Offset; !j.offsetsAgree(b, offset) {
		j.setOffset(b, offset)
		moved = true
	}
	if l := j.latest(b); l > j.limit+int64(Tolerance) || l < j.now-int64(MaxAge) {
		j.move(b, j.limit-l)
		moved = true
	}
	return moved
}

// separateBoots moves earlier boots so that they end before later ones begin, where
// anything was moved at all.
func (j *judgment) separateBoots(boots [][]int, moved bool) error {
	limit := int64(math.MaxInt64)
	for _, b := range slices.Backward(boots) {
		_, placed := j.places[j.ws[b[0]].Boot]
		if l := j.latest(b); moved && !placed && l > limit {
			j.move(b, limit-l)
		}
		earliest := j.earliest(b)
		if earliest < 0 {
			return invalid(b[0], "begins before 1970")
		}
		limit = min(limit, earliest)
	}
	return nil
}

// offsetsAgree reports whether all windows' offsets are within Tolerance of offset.
func (j *judgment) offsetsAgree(b []int, offset int64) bool {
	return !slices.ContainsFunc(b, func(i int) bool {
		return distance(j.ws[i].Offset, offset) > int64(Tolerance)
	})
}

// setOffset gives all windows this offset.
func (j *judgment) setOffset(b []int, offset int64) {
	for _, i := range b {
		j.by[i] = time.Duration(offset - j.ws[i].Offset)
	}
}

func (j *judgment) move(b []int, by int64) {
	for _, i := range b {
		j.by[i] += time.Duration(by)
	}
}

// latest returns the latest end of the windows in wall time, ns.
func (j *judgment) latest(b []int) int64 {
	at := int64(math.MinInt64)
	for _, i := range b {
		at = max(at, End(&j.ws[i], j.by[i]).UnixNano())
	}
	return at
}

// earliest returns the earliest start of the windows in wall time, ns.
func (j *judgment) earliest(b []int) int64 {
	at := int64(math.MaxInt64)
	for _, i := range b {
		at = min(at, Start(&j.ws[i], j.by[i]).UnixNano())
	}
	return at
}

func abs(v int64) int64 { return max(v, -v) }

// distance returns the difference of two numbers, which is never negative.
func distance[T ~int64](a, b T) T { return max(a, b) - min(a, b) }

// BootStart returns the wall time, in ns since 1970, at which the sender's boot began
// if its clock shows c now. held is the previous result for the same boot, 0 if there
// is none; BootStart returns it while the new result is within OffsetJitter of it.
func BootStart(now time.Time, c batch.Clock, held int64) int64 {
	fresh := now.UnixNano() - c.Boottime
	if distance(fresh, held) <= int64(OffsetJitter) {
		return held
	}
	return fresh
}

// Shifts says what was moved by more than OffsetJitter: one line for each run of windows of a
// boot that were moved alike.
func Shifts(now time.Time, ws []usage.Window, by []time.Duration) []batch.Shift {
	var shifts []batch.Shift
	var last *batch.Shift // that the window before was moved by
	for i := range ws {
		if by[i].Abs() <= OffsetJitter {
			last = nil
			continue
		}
		if last != nil && last.Boot == ws[i].Boot && distance(by[i], last.By) <= OffsetJitter {
			continue
		}
		shifts = append(shifts, batch.Shift{Boot: ws[i].Boot, At: now.UTC(), By: by[i], From: Start(&ws[i], by[i])})
		last = &shifts[len(shifts)-1]
	}
	return shifts
}

// Places says where windows are placed that by moves: for each boot, what was added to the boottime
// of its last window. booked are the boots of which something is booked, as for [Judge].
func Places(c batch.Clock, ws []usage.Window, by []time.Duration, booked map[string]int64) (places []batch.BootPlace) {
	for i := range ws {
		_, known := booked[ws[i].Boot]
		p := batch.BootPlace{Boot: ws[i].Boot, Offset: ws[i].Offset + int64(by[i]), New: !known && ws[i].Boot != c.Boot}
		at := slices.IndexFunc(places, func(o batch.BootPlace) bool { return o.Boot == p.Boot })
		if at < 0 {
			places = append(places, p)
			continue
		}
		places[at] = p
	}
	return places
}

package wire

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

// A line is a row of a table together with what predicting it takes.
type line struct {
	*usage.Row
	length int64 // of its window, ns
	place  int   // of its workload in the batch's list
	before int   // the latest line before it of the same workload; -1 is none
}

// amount is that of r, and 0 where it is absent.
func (l *line) amount(r usage.Resource) int64 {
	if !l.Usage.Present.Has(r) {
		return 0
	}
	return l.Usage.Amount[r]
}

// amountColumn is the column of a resource: of the lines that have an amount of it.
func amountColumn(lines []line, r usage.Resource) column {
	return column{
		rows: len(lines),
		at: func(i int) *int64 {
			if u := &lines[i].Usage; u.Present.Has(r) {
				return &u.Amount[r]
			}
			return nil
		},
		predict: func(i int) int64 { return predict(lines, i, r) },
	}
}

// predict predicts the amount of r in line i from that line's amounts of resources
// before r and from the previous line of the same workload: the system's time is the
// CPU's less the user's; levels, peaks and rates stay.
func predict(lines []line, i int, r usage.Resource) int64 {
	l := &lines[i]
	switch {
	case r == usage.CPUSystem:
		return l.amount(usage.CPU) - l.amount(usage.CPUUser)
	case l.before < 0:
		return predictFirst(l, r)
	case r.Detail().Kind == usage.Integral:
		return scale(lines[l.before].amount(r), l.length, lines[l.before].length)
	}
	return lines[l.before].amount(r)
}

// predictFirst predicts without a previous line: a peak is about the mean, and
// memory that is not anonymous is page cache.
func predictFirst(l *line, r usage.Resource) int64 {
	switch r {
	case usage.MemoryPeak:
		return scale(l.amount(usage.Memory), 1e9, l.length)
	case usage.MemoryFile:
		return l.amount(usage.Memory) - l.amount(usage.MemoryAnon)
	case usage.MemoryWorking:
		return l.amount(usage.Memory)
	case usage.PIDsPeak:
		return scale(l.amount(usage.PIDs), 1e9, l.length)
	}
	return 0
}

// scale returns floor(amount x length / of), or amount if the quotient is undefined or
// more than an int64 holds.
func scale(amount, length, of int64) int64 {
	if amount < 0 || length < 0 || of <= 0 {
		return amount
	}
	hi, lo := bits.Mul64(uint64(amount), uint64(length))
	if hi >= uint64(of) {
		return amount
	}
	q, _ := bits.Div64(hi, lo, uint64(of))
	if q > 1<<63-1 {
		return amount
	}
	return int64(q)
}

// eachTotal calls f for every total of lines, one resource after the other; places is
// the number of workloads of lines. foretold is the predicted total: the previous total
// of the workload, initially 0, plus its use since. f returns the total. at is the index
// of the total among all totals in the order of the lines.
func eachTotal(lines []line, places int, f func(l *line, r usage.Resource, at int, foretold int64) int64) {
	var any usage.Set
	for i := range lines {
		any |= lines[i].Has
	}
	sums := make([]int64, places)
	any.Each(func(r usage.Resource) {
		clear(sums)
		at := 0
		for i := range lines {
			l := &lines[i]
			sum := &sums[l.place]
			*sum += l.amount(r)
			if l.Has.Has(r) {
				below := l.Has & (1<<r - 1)
				*sum = f(l, r, at+below.Len(), *sum)
			}
			at += l.Has.Len()
		}
	})
}

// countTotals counts the totals of lines.
func countTotals(lines []line) (n int) {
	for i := range lines {
		n += lines[i].Has.Len()
	}
	return n
}

// A shape is a pb.Shape, comparable.
type shape struct {
	present, has   usage.Set
	quality        usage.Qualities // of what is present
	ended, partial bool
}

func shapeOf(l *line) shape {
	return shape{present: l.Usage.Present, has: l.Has, quality: l.Usage.Quality.Only(l.Usage.Present),
		ended: l.Ended, partial: l.Usage.Covered != time.Duration(l.length)}
}

func (s shape) message() *proto.Shape {
	measured, apportioned, modelled := s.quality.Sets()
	return &proto.Shape{Present: uint64(s.present), Has: uint64(s.has), Ended: s.ended, Partial: s.partial,
		Measured: uint64(measured), Apportioned: uint64(apportioned), Modelled: uint64(modelled)}
}

// shapeFrom reads a shape, or says what is wrong with it.
func shapeFrom(m *proto.Shape) (s shape, err error) {
	s = shape{present: usage.Set(m.Present), has: usage.Set(m.Has), ended: m.Ended, partial: m.Partial}
	if err := checkPresent(s.present | s.has); err != nil {
		return s, err
	}
	var ok bool
	if s.quality, ok = usage.QualitiesOfSets(usage.Set(m.Measured), usage.Set(m.Apportioned), usage.Set(m.Modelled)); !ok || (m.Measured|m.Apportioned|m.Modelled)&^m.Present != 0 {
		return s, invalid("qualities %x, %x, %x of %x: one resource has two, or is missing", m.Measured, m.Apportioned, m.Modelled, m.Present)
	}
	return s, nil
}

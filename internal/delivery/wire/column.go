package wire

import "google.golang.org/protobuf/encoding/protowire"

// A column is one number of each of some rows. It is sent as the numbers themselves,
// or as deltas: what they differ by from what a reader predicts. A column of
// zeros is not sent.
type column struct {
	rows int
	// at returns where the number of a row stands; nil where the row has none.
	at func(i int) *int64
	// predict returns what a reader makes of the rows and columns before: a number is
	// the predicted one plus its delta. nil is 0 for all.
	predict func(i int) int64
	// full says that rows without a number send 0 in its place; else they send nothing.
	full   bool
	signed bool  // numbers may be negative
	limit  int64 // the largest number; 0 is none
}

// measure counts the numbers, and the bytes that they take as values and as deltas. It
// reports whether there is one that is not 0.
func (c *column) measure() (n, values, deltas int, some bool) {
	for i := range c.rows {
		if v := c.at(i); v != nil {
			n, some = n+1, some || *v != 0
			values += protowire.SizeVarint(uint64(*v))
			deltas += protowire.SizeVarint(protowire.EncodeZigZag(*v - c.predicted(i)))
		}
	}
	return n, values, deltas, some
}

// values returns the numbers that are sent, n of them.
func (c *column) values(n int) []uint64 {
	list := make([]uint64, 0, n)
	for i := range c.rows {
		if v := c.at(i); v != nil {
			list = append(list, uint64(*v))
		}
	}
	return list
}

// deltas returns the deltas of the numbers that are sent, n of them.
func (c *column) deltas(n int) []int64 {
	list := make([]int64, 0, n)
	for i := range c.rows {
		if v := c.at(i); v != nil {
			list = append(list, *v-c.predicted(i))
		} else if c.full {
			list = append(list, 0)
		}
	}
	return list
}

func (c *column) predicted(i int) int64 {
	if c.predict == nil {
		return 0
	}
	return c.predict(i)
}

// read puts numbers into the rows, from values or from deltas, one of which is empty.
// It refuses numbers that are missing, too many or out of bounds, and others than
// 0 for rows that have none.
func (c *column) read(values []uint64, deltas []int64) error {
	for i := range c.rows {
		to := c.at(i)
		if to == nil && !c.full {
			continue
		}
		var v int64
		switch {
		case len(values) > 0:
			v, values = int64(values[0]), values[1:]
		case len(deltas) > 0:
			v, deltas = deltas[0]+c.predicted(i), deltas[1:]
		default:
			return invalid("row %d: the number is missing", i)
		}
		switch {
		case to == nil && v != 0:
			return invalid("row %d has an amount of what is absent", i)
		case to == nil:
		case v < 0 && !c.signed:
			return invalid("row %d: %d is negative", i, v)
		case v > c.limit && c.limit > 0:
			return invalid("row %d: %d is more than %d", i, v, c.limit)
		default:
			*to = v
		}
	}
	if n := len(values) + len(deltas); n > 0 {
		return invalid("%d numbers too many", n)
	}
	return nil
}

// omitZeros returns a column as it is sent: nil where all numbers are 0.
func omitZeros[T comparable](list []T) []T {
	var zero T
	for _, v := range list {
		if v != zero {
			return list
		}
	}
	return nil
}

// isComplete reports whether a column that is of zeros where it is empty is of n rows.
func isComplete[T any](list []T, n int) bool { return len(list) == 0 || len(list) == n }

// elementAt is one of a column, which is of zeros where it is empty.
func elementAt[T any](list []T, i int) (v T) {
	if len(list) > 0 {
		v = list[i]
	}
	return v
}

// Package shapes has functions of each shape.
package shapes

import "errors"

var errFailed = errors.New("failed")

var limit = max(6, 7)

var begun int

func init() { begun += 8 }

type less func(int, int) bool

// Unnamed has no names for its parameters.
func Unnamed(int, string) int { return 1 }

// Blank leaves one parameter without a name.
func Blank(_ int, n int) int { return n - 2 }

// Sum takes any number of values.
func Sum(first int, rest ...int) (sum int) {
	for _, n := range rest {
		sum += n
	}
	return sum - first
}

// Least returns the least of two values of any type.
func Least[A, B any](a A, _ B, least less) A {
	if least(1, 2) {
		return a
	}
	panic("unreachable")
}

// Named has a result that a deferred function changes, and assigns to it next to a new variable.
func Named(n int) (err error) {
	defer func() { err = errors.Join(err, errFailed) }()
	half, err := n/2, error(nil)
	if half > 3 {
		return nil
	}
	return errors.ErrUnsupported
}

// A Stack has methods.
type Stack[T any] struct{ all []T }

// Push has a receiver with a name.
func (s *Stack[T]) Push(v T) { s.all = append(s.all, v) }

// Max has a receiver without a name.
func (Stack[T]) Max() int { return 9 }

// Find jumps to a label.
func Find(rows [][]int, n int) (found int) {
outer:
	for _, row := range rows {
		for _, v := range row {
			if v == n {
				found++
				continue outer
			}
		}
	}
	return found
}

// Caught is deferred, so that it catches a panic itself.
func Caught(n *int) {
	if recover() != nil {
		*n += 4
	}
}

package tsdb

import "slices"

// A span is time of which all windows of a node came, in ms since 1970.
type span struct{ from, to int64 }

// spans are such times in order. Between two of them something is missing that may
// still come.
type spans []span

const (
	// joint is how far apart two windows may be that follow one another: clocks
	// are set.
	joint = 1000
	// most is how many spans are kept apart.
	most = 64
)

// add adds a window.
func (s spans) add(from, to int64) spans {
	i := 0
	for i < len(s) && s[i].to+joint < from {
		i++
	}
	j := i
	for j < len(s) && s[j].from-joint <= to {
		from, to = min(from, s[j].from), max(to, s[j].to)
		j++
	}
	s = slices.Replace(s, i, j, span{from, to})
	if len(s) > most {
		s = slices.Delete(s, 0, len(s)-most)
	}
	return s
}

// since is when the latest of them begins.
func (s spans) since() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].from
}

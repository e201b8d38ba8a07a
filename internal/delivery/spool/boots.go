package spool

import (
	"slices"

	"mete.dev/mete/internal/model/batch"
)

// Boots returns, for each boot of which windows wait to be put into batches, the end of its last
// window. They are in the order of the windows.
func (s *Spool) Boots() (boots []batch.BootEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.index {
		w := &s.index[i].windowHead
		last := batch.BootEnd{Boot: w.Boot, End: w.End, Offset: w.Offset}
		at := slices.IndexFunc(boots, func(b batch.BootEnd) bool { return b.Boot == w.Boot })
		if at < 0 {
			boots = append(boots, last)
			continue
		}
		boots[at] = last
	}
	return boots
}

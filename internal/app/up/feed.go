package up

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
)

// A feed holds the latest tick for all readers. Only run writes it.
type feed struct {
	latest atomic.Pointer[frame]
	missed atomic.Pointer[string] // error of the latest tick; nil if it succeeded
	ready  chan struct{}          // closed at the first tick
}

func newFeed() *feed { return &feed{ready: make(chan struct{})} }

// A frame is one tick. Its JSON is encoded once, on the first request.
type frame struct {
	machine *live.Machine
	tag     string // changes with every tick
	json    func() ([]byte, error)
}

func newFrame(m *live.Machine) *frame {
	return &frame{
		machine: m,
		tag:     `"` + strconv.FormatInt(m.Time.UnixNano(), 36) + `"`,
		json:    sync.OnceValues(func() ([]byte, error) { return json.Marshal(m) }),
	}
}

// run reads every tick of m until ctx ends, or m fails permanently.
func (f *feed) run(ctx context.Context, tick time.Duration, m Meter) error {
	first := true
	for {
		machine, err := m.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrInvalid):
			return err
		case err != nil:
			why := err.Error()
			f.missed.Store(&why)
			// Do not retry at once: a broken meter may fail immediately.
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
			continue
		}
		f.latest.Store(newFrame(machine))
		f.missed.Store(nil)
		if first {
			first = false
			close(f.ready)
		}
	}
}

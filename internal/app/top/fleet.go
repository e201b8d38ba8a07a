package top

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/ui/top"
)

// Limits of --interval with --server: agents close a window every ten seconds, so shorter intervals
// return the same answer.
const (
	fleetTick    = 5 * time.Second // the default
	minFleetTick = time.Second
)

// remoteFlags are the flags for machines of a server.
type remoteFlags struct {
	client.Target
	node string
}

func (r *remoteFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.URL, "server", "", "show the machines that the server at `URL` knows, in place of this one")
	r.TokenFlag(f)
	f.StringVar(&r.node, "node", "", "only the `NODE` of this name or id")
}

// conflict rejects flags that only apply to this machine's meter.
func (r *remoteFlags) conflict(cmd *cobra.Command) error {
	f := cmd.Flags()
	for _, name := range []string{"token", "node"} {
		if r.URL == "" && f.Changed(name) {
			return fault.WithHint(fmt.Errorf("--%s without --server: %w", name, fault.ErrInvalid), "name the server too: --server "+client.Default)
		}
	}
	for _, name := range []string{"reader", "powercap"} {
		if r.URL != "" && f.Changed(name) {
			return fault.WithHint(fmt.Errorf("--%s with --server: %w", name, fault.ErrInvalid), "it applies to this machine's meter; omit it")
		}
	}
	return nil
}

// fleetMeter is a Meter that queries a server.
type fleetMeter struct {
	remoteFlags
	client *client.Client
	tick   time.Duration
	asked  time.Time     // time of the latest query
	first  *live.Machine // first answer, until Next returns it
}

// openFleet queries once, to report errors before the screen starts.
func openFleet(ctx context.Context, r remoteFlags, tick time.Duration) (Meter, error) {
	c, err := r.Open()
	if err != nil {
		return nil, err
	}
	m := &fleetMeter{remoteFlags: r, client: c, tick: tick}
	m.first, err = m.ask(ctx)
	return m, err
}

// Next implements Meter.
func (m *fleetMeter) Next(ctx context.Context) (*live.Machine, error) {
	if first := m.first; first != nil {
		m.first = nil
		return first, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Until(m.asked.Add(m.tick))):
	}
	return m.ask(ctx)
}

func (m *fleetMeter) ask(ctx context.Context) (*live.Machine, error) {
	m.asked = time.Now()
	nodes, err := m.client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	rates, err := m.client.Rates(ctx)
	if err != nil {
		return nil, err
	}
	return top.Fleet{Server: m.URL, At: time.Now(), Nodes: nodes, Rates: rates, Only: m.node}.Machine()
}

// Close implements Meter.
func (m *fleetMeter) Close() error { return nil }

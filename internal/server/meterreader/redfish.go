package meterreader

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/httpx"
)

// A redfish is a management controller that speaks Redfish (DMTF DSP0266). It reads the
// EnvironmentMetrics of a chassis, or else the older Power resource, which has no energy.
type redfish struct {
	spec    *external.Spec
	access  *access
	client  *gofish.APIClient
	chassis string // @odata.id of the chassis, once known
}

// Read implements reader. After an error it connects and searches the chassis again.
func (r *redfish) Read(ctx context.Context) (v int64, err error) {
	defer func() {
		if err != nil {
			err = httpx.WithoutURL(err)
			r.client, r.chassis = nil, ""
		}
	}()
	if r.client == nil {
		// Basic authentication, because controllers limit the number of sessions.
		r.client, err = gofish.ConnectContext(ctx, gofish.ClientConfig{
			Endpoint: r.spec.URL, Username: r.access.user, Password: r.access.password, BasicAuth: true,
			HTTPClient: r.access.client, NoModifyTransport: true, ReuseConnections: true,
		})
		if err != nil {
			return 0, err
		}
	}
	c := r.client.WithContext(ctx)
	if r.chassis != "" {
		chassis, err := schemas.GetChassis(c, r.chassis)
		if err != nil {
			return 0, err
		}
		return r.readChassis(chassis)
	}
	all, err := c.Service.Chassis()
	if err != nil {
		return 0, err
	}
	return r.readAny(all)
}

// readAny reads the configured chassis, or the only one that has a value.
func (r *redfish) readAny(all []*schemas.Chassis) (v int64, err error) {
	var found []string
	for _, c := range all {
		if r.spec.Chassis != "" && r.spec.Chassis != c.ID {
			continue
		}
		var now int64
		if now, err = r.readChassis(c); err == nil {
			v, r.chassis, found = now, c.ODataID, append(found, c.ID)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) == 1:
		return v, nil
	case len(found) > 1:
		return 0, fmt.Errorf("chassis %s have %s: name one with the key chassis: %w", strings.Join(found, ", "), r.spec.Unit.Kind, fault.ErrConflict)
	case err != nil && r.spec.Chassis != "":
		return 0, err
	case r.spec.Chassis != "":
		return 0, fmt.Errorf("chassis %q: %w", r.spec.Chassis, fault.ErrNotFound)
	}
	return 0, fmt.Errorf("none of %d chassis has %s: %w", len(all), r.spec.Unit.Kind, fault.ErrUnsupported)
}

// readChassis reads the value of a chassis, in uW or uJ.
func (r *redfish) readChassis(c *schemas.Chassis) (int64, error) {
	var v *float64
	m, err := c.EnvironmentMetrics()
	if err != nil {
		return 0, fmt.Errorf("chassis %q: %w", c.ID, err)
	}
	switch {
	case m != nil && r.spec.Unit.Kind == power.Energy:
		// Clients can reset Reading to 0, but not LifetimeReading.
		if v = m.EnergykWh.LifetimeReading; v == nil {
			v = m.EnergykWh.Reading
		}
	case m != nil:
		v = m.PowerWatts.Reading
	}
	if v == nil && r.spec.Unit.Kind == power.Power {
		if v, err = powerConsumed(c); err != nil {
			return 0, fmt.Errorf("chassis %q: %w", c.ID, err)
		}
	}
	if v == nil {
		return 0, fmt.Errorf("chassis %q has no %s: %w", c.ID, r.spec.Unit.Kind, fault.ErrUnsupported)
	}
	return r.spec.Unit.Value(strconv.FormatFloat(*v, 'f', -1, 64))
}

// powerConsumed returns the power of the first PowerControl that has one.
func powerConsumed(c *schemas.Chassis) (*float64, error) {
	p, err := c.Power()
	if err != nil || p == nil {
		return nil, err
	}
	for i := range p.PowerControl {
		if w := p.PowerControl[i].PowerConsumedWatts; w != nil {
			v := float64(*w)
			return &v, nil
		}
	}
	return nil, nil
}

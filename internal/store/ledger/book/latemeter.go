package book

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// energies are the resources that external meters change.
var energies = slices.Concat(usage.Energies[:], []usage.Resource{usage.EnergyError, usage.EnergyIdle})

// divideLate divides the energy of external meters again, in the minutes that they had settled before
// this booking added rows to them. The rows are then as if all of them had come in time.
func (b *booking) divideLate() error {
	settled, err := b.Ints("SELECT 1 FROM outer_energy LIMIT 1")
	if err != nil || len(settled) == 0 {
		return err
	}
	booked := map[int64][]int64{} // minutes by node
	for k := range b.nodeRows.Rows {
		node, _ := schema.SplitKey(k.ID)
		booked[node] = append(booked[node], k.Minute)
	}
	late := map[int64]map[int64]bool{} // nodes by minute
	for node, minutes := range booked {
		settled, err := b.Ints("SELECT minute FROM outer_minute WHERE node = $1 AND minute >= $2 AND minute <= $3 AND before IS NOT NULL",
			node, slices.Min(minutes), slices.Max(minutes))
		if err != nil {
			return err
		}
		for _, m := range settled {
			if !slices.Contains(minutes, m) {
				continue
			}
			if late[m] == nil {
				late[m] = map[int64]bool{}
			}
			late[m][node] = true
		}
	}
	for _, minute := range slices.Sorted(maps.Keys(late)) {
		groups, err := settledGroups(b.Tx, minute, late[minute])
		if err != nil {
			return err
		}
		for i := range groups {
			if _, err := bookMinute(b.Tx, &groups[i], b.usageRows.Rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// settledGroups returns what the meters of some nodes, and those connected with them, showed in a
// settled minute.
func settledGroups(t *db.Tx, minute int64, nodes map[int64]bool) (groups []external.GroupMinute, err error) {
	var meters []external.MeterEnergy
	late := map[string]bool{}
	err = db.Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
		var e external.MeterEnergy
		var n int64
		var id string
		if err := scan(&e.Meter, &n, &id, &e.Energy, &e.Error); err != nil {
			return err
		}
		if last := len(meters) - 1; last < 0 || meters[last].Meter != e.Meter {
			meters = append(meters, e)
		}
		m := &meters[len(meters)-1]
		m.Nodes = append(m.Nodes, id)
		if nodes[n] {
			late[id] = true
		}
		return nil
	}, "SELECT o.meter, o.node, n.node_id, o.energy, o.error FROM outer_energy o JOIN node n ON n.id = o.node WHERE o.minute = $1 ORDER BY o.meter, o.place", minute)
	if err != nil {
		return nil, t.DB.Fault(err)
	}
	list := make([]external.Meter, len(meters))
	for i := range meters {
		list[i].Nodes = meters[i].Nodes
	}
	for _, set := range external.GroupConnected(list, func(id string) string { return id }) {
		gm := external.GroupMinute{Minute: minute}
		for _, i := range set {
			gm.Meters = append(gm.Meters, meters[i])
		}
		if slices.ContainsFunc(gm.Nodes(), func(id string) bool { return late[id] }) {
			groups = append(groups, gm)
		}
	}
	return groups, nil
}

// keepEnergy stores what the meters of a minute showed.
func keepEnergy(t *db.Tx, gm *external.GroupMinute, nodes map[string]int64) error {
	for i := range gm.Meters {
		e := &gm.Meters[i]
		for place, id := range e.Nodes {
			_, err := t.Exec("INSERT INTO outer_energy (minute, meter, place, node, energy, error) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
				gm.Minute, schema.Clean(e.Meter), place, nodes[id], e.Energy, e.Error)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// keepOnlyEnergies removes all other resources from u, and the time that it covers.
func keepOnlyEnergies(u *usage.Usage) {
	only := usage.Usage{}
	for _, r := range energies {
		if v, ok := u.Get(r); ok {
			only.Put(r, v, u.Quality.Get(r))
		}
	}
	*u = only
}

// replaceEnergies replaces the energies of u by those of from.
func replaceEnergies(u *usage.Usage, from *usage.Usage) {
	for _, r := range energies {
		u.Present &^= usage.SetOf(r)
		u.Amount[r] = 0
		u.Quality.Set(r, usage.Absent)
	}
	u.Add(from)
}

// energiesVersion is the first byte of encoded energies.
const energiesVersion = 1

// encodeEnergies encodes the energies of rows by workload; decodeEnergies reverses it.
func encodeEnergies(rows []external.Row) []byte {
	out := []byte{energiesVersion}
	for i := range rows {
		u := rows[i].Usage
		if keepOnlyEnergies(&u); u.Present == 0 || rows[i].Key == 0 {
			continue
		}
		id, _ := schema.SplitKey(rows[i].Key)
		out = binary.AppendUvarint(out, uint64(id))
		out = binary.AppendUvarint(out, uint64(u.Present))
		uncertainty := u.Quality.Uncertainty(u.Present)
		for _, w := range uncertainty[:u.Present.Words()] {
			out = binary.AppendUvarint(out, uint64(w))
		}
		u.Present.Each(func(r usage.Resource) { out = binary.AppendVarint(out, u.Amount[r]) })
	}
	return out
}

func decodeEnergies(stored []byte) (map[int64]usage.Usage, error) {
	if len(stored) == 0 || stored[0] != energiesVersion {
		return nil, fmt.Errorf("energies of a settled minute have an unknown form: %w", fault.ErrUnsupported)
	}
	rows := map[int64]usage.Usage{}
	for b := bytes.NewReader(stored[1:]); b.Len() > 0; {
		short := false
		next := func() uint64 {
			v, err := binary.ReadUvarint(b)
			short = short || err != nil
			return v
		}
		key := int64(next())
		u := usage.Usage{Present: usage.Set(next()) & usage.All}
		var uncertainty usage.Uncertainty
		for i := range u.Present.Words() {
			uncertainty[i] = int64(next())
		}
		u.Quality = uncertainty.Qualities(u.Present)
		u.Present.Each(func(r usage.Resource) {
			v, err := binary.ReadVarint(b)
			short = short || err != nil
			u.Amount[r] = v
		})
		if short {
			return nil, fmt.Errorf("energies of a settled minute: %w", io.ErrUnexpectedEOF)
		}
		rows[key] = u
	}
	return rows, nil
}

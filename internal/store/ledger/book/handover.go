package book

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/schema"
)

const (
	// maxSilence is how long a guest may report no share and still be nested.
	maxSilence = time.Hour
	// maxEpoch is the maximum length of an epoch id, and of a guest's UUID, in bytes. No agent makes
	// longer ones, and they do not fit the index.
	maxEpoch = 64
	// maxGiven limits the energy of an entry that is compared, in uJ: 30 years of a kilowatt.
	maxGiven = 1 << 60
	// maxGuestName is the maximum length of a guest's name in bytes.
	maxGuestName = 256
)

// bookHandovers stores the shares that an entry reports, and compares those that both host and
// guest have reported.
func (b *booking) bookHandovers(e *batch.Entry, n *bookedNode) error {
	energy := map[workload.ShortID]int64{}
	if slices.ContainsFunc(e.Handovers, func(h batch.TimedHandover) bool { return h.Workload != "" }) {
		for i := range e.Minutes {
			m := &e.Minutes[i]
			for _, r := range usage.Energies {
				energy[m.Workload] = min(energy[m.Workload]+m.Usage.Amount[r], maxGiven)
			}
		}
	}
	for i := range e.Handovers {
		h := &e.Handovers[i]
		for shares := range splitEpochs(h.Shares) {
			var err error
			switch {
			case len(shares[0].Epoch) > maxEpoch || len(h.Guest) > maxEpoch || h.To.Before(h.From):
			case h.Workload != "":
				err = b.bookGiven(h, shares, n, energy)
			default:
				err = b.bookReceived(h, shares, n)
			}
			if err != nil {
				return err
			}
		}
	}
	return b.continueNesting(e, n)
}

// splitEpochs splits shares where the epoch changes.
func splitEpochs(shares []power.Share) func(yield func([]power.Share) bool) {
	return func(yield func([]power.Share) bool) {
		for len(shares) > 0 {
			n := 1
			for n < len(shares) && shares[n].Epoch == shares[0].Epoch {
				n++
			}
			if !yield(shares[:n:n]) {
				return
			}
			shares = shares[n:]
		}
	}
}

// bookGiven stores shares of one epoch that a host reports, and compares them with the guest's. energy
// is that of the workloads in the entry's rows, uJ, as far as no share has been compared with it.
func (b *booking) bookGiven(h *batch.TimedHandover, shares []power.Share, n *bookedNode, energy map[workload.ShortID]int64) error {
	short, ok := workload.ShortIDOf(h.Workload)
	if !ok {
		return nil // not an id: no row can belong to it
	}
	w, err := b.workload(n, short)
	if err != nil {
		return err
	}
	guest, epoch := schema.Clean(h.Guest), schema.Clean(shares[0].Epoch)
	if n.isHost {
		// It may be of a series that ended long ago, and goes on.
		nodes, err := b.Ints("SELECT x.node FROM share_series s JOIN nested_series x ON x.series = s.id WHERE s.guest = $1 AND s.epoch = $2 AND s.host = $3", guest, epoch, n.id)
		for _, id := range nodes {
			if err == nil {
				_, err = b.guest(id)
			}
		}
		if err != nil {
			return err
		}
	}
	given := shares[len(shares)-1].Energy()
	if h.Opened.Epoch == shares[0].Epoch {
		given -= h.Opened.Energy()
	}
	given = min(max(0, given), maxGiven)
	held := min(given, energy[short])
	energy[short] -= held
	var series int64
	err = b.QueryRow(`INSERT INTO share_series (guest, epoch, host, workload, name, first_ns, last_ns, given, held) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (guest, epoch, host) DO UPDATE SET workload = excluded.workload, name = excluded.name,
		given = share_series.given + excluded.given, held = share_series.held + excluded.held,
		first_ns = CASE WHEN excluded.first_ns < share_series.first_ns THEN excluded.first_ns ELSE share_series.first_ns END,
		last_ns = CASE WHEN excluded.last_ns > share_series.last_ns THEN excluded.last_ns ELSE share_series.last_ns END RETURNING id`,
		guest, epoch, n.id, w.ID, schema.Clean(h.Name[:min(len(h.Name), maxGuestName)]), schema.Nanos(h.From), schema.Nanos(h.To), given, held).Scan(&series)
	if err != nil {
		return err
	}
	byNumber := func(a, c power.Share) int { return cmp.Compare(a.N, c.N) }
	shares = slices.SortedFunc(slices.Values(shares), byNumber)
	first, last := shares[0].N, shares[len(shares)-1].N
	_, err = b.Exec("INSERT INTO share_part (series, first_n, last_n, shares, booked_ns) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (series, first_n) DO NOTHING",
		series, first, last, packShares(shares), b.now)
	if err != nil {
		return err
	}
	var waiting []comparison
	err = b.Each(func(scan func(...any) error) error {
		c := comparison{guest: guest, epoch: epoch, series: series, host: n.id, workload: w.ID}
		err := scan(&c.n, &c.node, &c.received, &c.from, &c.to)
		waiting = append(waiting, c)
		return err
	}, "SELECT n, node, energy, from_ns, to_ns FROM closing WHERE guest = $1 AND epoch = $2 AND n >= $3 AND n <= $4 AND node <> $5 AND compared = 0 ORDER BY n, node",
		guest, epoch, first, last, n.id)
	for i := range waiting {
		c := &waiting[i]
		at, ok := slices.BinarySearchFunc(shares, power.Share{N: c.n}, byNumber)
		if !ok || err != nil {
			continue
		}
		c.given = shares[at].Energy()
		err = b.compare(c)
	}
	return err
}

// bookReceived stores the shares with which a guest closed its windows, each once, and compares
// them with the host's.
func (b *booking) bookReceived(h *batch.TimedHandover, shares []power.Share, n *bookedNode) error {
	guest, epoch := schema.Clean(h.Guest), schema.Clean(shares[0].Epoch)
	for i := range shares {
		c := comparison{guest: guest, epoch: epoch, n: shares[i].N, node: n.id, received: shares[i].Energy(), from: schema.Nanos(h.From), to: schema.Nanos(h.To)}
		fresh, err := b.Exec("INSERT INTO closing (guest, epoch, n, node, energy, from_ns, to_ns, compared, booked_ns) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8) ON CONFLICT DO NOTHING",
			guest, epoch, c.n, n.id, c.received, c.from, c.to, b.now)
		if err != nil {
			return err
		}
		if fresh == 0 {
			continue
		}
		var found []comparison
		err = b.Each(func(scan func(...any) error) error {
			var packed []byte
			c := c
			if err := scan(&c.series, &c.host, &c.workload, &packed); err != nil {
				return err
			}
			for _, s := range unpackShares(packed) {
				if s.N == c.n {
					c.given = s.Energy()
					found = append(found, c)
					break
				}
			}
			return nil
		}, `SELECT s.id, s.host, s.workload, p.shares FROM share_series s JOIN share_part p ON p.series = s.id
			WHERE s.guest = $1 AND s.epoch = $2 AND s.host <> $3 AND p.first_n <= $4 AND p.last_n >= $4`, guest, epoch, n.id, c.n)
		for i := range found {
			if err == nil {
				err = b.compare(&found[i])
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A comparison compares one share of a host with that of its guest. Energy is in uJ.
type comparison struct {
	guest, epoch    string
	series          int64
	n               int64
	node            int64 // of the guest
	host, workload  int64
	given, received int64 // by host and guest
	from, to        int64 // the guest's window, ns
}

// mayNest reports whether a node can be a guest of a host: both are of one cluster, since the agents
// of one cluster have no rights in another, and neither is a node of jobs, which has no energy to
// hand over and no machine to be.
func (b *booking) mayNest(guest, host int64) (ok bool, err error) {
	var clusters [2]string
	var machines [2]string
	err = b.QueryRow("SELECT g.cluster, h.cluster, g.machine_id, h.machine_id FROM node g, node h WHERE g.id = $1 AND h.id = $2", guest, host).
		Scan(&clusters[0], &clusters[1], &machines[0], &machines[1])
	return clusters[0] == clusters[1] && !registry.IsJobsMachine(machines[0]) && !registry.IsJobsMachine(machines[1]), err
}

// compare books the result of comparing one share. If host and guest agree, the node is nested.
func (b *booking) compare(c *comparison) error {
	if ok, err := b.mayNest(c.node, c.host); err != nil || !ok {
		return err
	}
	differing, largest := int64(0), max(c.given-c.received, c.received-c.given)
	if largest != 0 {
		differing = 1
	}
	_, err := b.Exec("UPDATE closing SET compared = 1 WHERE guest = $1 AND epoch = $2 AND n = $3 AND node = $4", c.guest, c.epoch, c.n, c.node)
	if err != nil {
		return err
	}
	_, err = b.Exec(`INSERT INTO reconciled (minute, node, guest, host, workload, compared, differing, largest, n, to_ns) VALUES ($1, $2, $3, $4, $5, 1, $6, $7, $8, $9)
		ON CONFLICT (minute, node, guest, host, workload) DO UPDATE SET compared = reconciled.compared + 1, differing = reconciled.differing + excluded.differing,
		largest = CASE WHEN excluded.largest > reconciled.largest THEN excluded.largest ELSE reconciled.largest END,
		n = CASE WHEN excluded.to_ns >= reconciled.to_ns THEN excluded.n ELSE reconciled.n END,
		to_ns = CASE WHEN excluded.to_ns >= reconciled.to_ns THEN excluded.to_ns ELSE reconciled.to_ns END`,
		dayOf(max(c.from, c.to-1)), c.node, c.guest, c.host, c.workload, differing, largest, c.n, c.to)
	if err != nil || differing > 0 {
		return err
	}
	return b.noteGuest(c)
}

// dayOf returns the first minute of the day of an instant in ns.
func dayOf(ns int64) int64 {
	m := ns / int64(time.Minute)
	return m - m%schema.DayMinutes
}

// noteGuest records that a node was a guest, as a share of a series shows, and that it is one unless a
// later window says otherwise. The host's rows must have the energy that it says it gave: the guest's
// rows are left out because of them.
func (b *booking) noteGuest(c *comparison) error {
	var given, held int64
	err := b.QueryRow("SELECT given, held FROM share_series WHERE id = $1", c.series).Scan(&given, &held)
	if err != nil || given == 0 || held < given {
		return err
	}
	known, err := b.Ints("SELECT 1 FROM nested_series WHERE node = $1 AND series = $2", c.node, c.series)
	if err != nil {
		return err
	}
	if len(known) == 0 {
		if circle, err := b.isGuestOf(c.host, c.node); err != nil || circle {
			return err
		}
		if _, err := b.guest(c.node); err != nil {
			return err
		}
		if _, err := b.Exec("INSERT INTO nested_series (node, series, host) VALUES ($1, $2, $3)", c.node, c.series, c.host); err != nil {
			return err
		}
	}
	if n := b.nodeByID(c.node); n != nil {
		n.host = c.host // for later entries of this transaction
	}
	_, err = b.Exec(`UPDATE node SET host = $2, host_workload = $3, nested_ns = CASE WHEN host = $2 AND host_workload = $3 THEN nested_ns ELSE $4 END,
		equal_ns = $5, handed_ns = CASE WHEN handed_ns > $5 THEN handed_ns ELSE $5 END, rev = $6 WHERE id = $1 AND equal_ns <= $5`,
		c.node, c.host, c.workload, c.from, c.to, b.Rev)
	return err
}

// nodeByID returns a node that sent an entry in this transaction, or nil.
func (b *booking) nodeByID(id int64) *bookedNode {
	for _, n := range b.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// isGuestOf reports whether a node is another one, or was ever a guest of it, directly or through
// others. Two nodes nested in each other would both be left out of sums.
func (b *booking) isGuestOf(node, of int64) (bool, error) {
	seen := map[int64]bool{}
	for open := []int64{node}; len(open) > 0; open = open[1:] {
		if open[0] == of {
			return true, nil
		}
		if seen[open[0]] {
			continue
		}
		seen[open[0]] = true
		hosts, err := b.Ints("SELECT DISTINCT host FROM nested_series WHERE node = $1", open[0])
		if err != nil {
			return false, err
		}
		open = append(open, hosts...)
	}
	return false, nil
}

// continueNesting notes up to when a guest reports shares, if one was equal recently enough. After
// maxSilence without shares the guest is an ordinary node again.
func (b *booking) continueNesting(e *batch.Entry, n *bookedNode) error {
	if n.host == 0 {
		return nil
	}
	var host, equal, handed int64
	err := b.QueryRow("SELECT host, equal_ns, handed_ns FROM node WHERE id = $1", n.id).Scan(&host, &equal, &handed)
	if err != nil {
		return err
	}
	if host == 0 { // a later window ended it
		n.host = 0
		return nil
	}
	had := handed
	for i := range e.Handovers {
		h := &e.Handovers[i]
		if h.Workload != "" || len(h.Shares) == 0 || h.To.Before(h.From) || schema.Nanos(h.To)-equal > int64(schema.KeepShares) || schema.Nanos(h.From) < equal {
			continue
		}
		handed = max(handed, schema.Nanos(h.To))
	}
	if schema.Nanos(e.Through)-handed > int64(maxSilence) {
		n.host = 0
		_, err = b.Exec("UPDATE node SET host = 0, host_workload = 0, nested_ns = 0, rev = $2 WHERE id = $1", n.id, b.Rev)
	} else if handed != had {
		_, err = b.Exec("UPDATE node SET handed_ns = $2 WHERE id = $1", n.id, handed)
	}
	return err
}

// packShares encodes shares in the order of their numbers.
func packShares(shares []power.Share) (b []byte) {
	var last power.Share
	for _, s := range shares {
		b = binary.AppendVarint(b, s.N-last.N)
		b = binary.AppendVarint(b, s.Active-last.Active)
		b = binary.AppendVarint(b, s.Idle-last.Idle)
		last = s
	}
	return b
}

// unpackShares decodes shares up to the first incomplete one.
func unpackShares(b []byte) (shares []power.Share) {
	var last power.Share
	for {
		for _, to := range []*int64{&last.N, &last.Active, &last.Idle} {
			v, n := binary.Varint(b)
			if n <= 0 {
				return shares
			}
			*to, b = *to+v, b[n:]
		}
		shares = append(shares, last)
	}
}

package check

import (
	"fmt"
	"math"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// checkConnections checks that the connections of each hour of a day and version of a workload can be read, and have at most the network
// traffic of its rows.
func (c *checkRun) checkConnections(day int64) error {
	r := schema.Range{Level: schema.Hours, From: day, To: day + schema.DayMinutes}
	switch {
	case c.incomplete[day]:
		r.To = min(r.To, c.Hour)
	case c.hasMinutes(day):
		r.Level = schema.Minutes
	}
	var found faults
	for hour := r.From; hour < r.To; hour += schema.HourMinutes {
		if err := c.checkConnectionsOf(schema.Range{Level: r.Level, From: hour, To: min(r.To, hour+schema.HourMinutes)}, &found); err != nil {
			return err
		}
	}
	return c.reportFaults("connections", schema.UsageLayout, &found, true)
}

// checkConnectionsOf adds the faults of an hour.
func (c *checkRun) checkConnectionsOf(r schema.Range, found *faults) error {
	sketches, wholes := map[int64]connection.Sketch{}, map[int64]connection.Traffic{} // by version of a workload
	err := db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
		var id int64
		var b []byte
		if err := scan(&id, &b); err != nil {
			return err
		}
		s, err := connection.Decode(b)
		if err != nil {
			found.add(id, c.span(schema.Hours, r.From, err.Error()))
			return nil
		}
		sketches[id] = connection.Sketch{Entries: []connection.Entry{{Traffic: s.Sum()}}, Missed: s.Missed} // with less memory
		return nil
	}, "SELECT workload, sketch FROM connections WHERE minute = $1", r.From)
	if err != nil || len(sketches) == 0 {
		return err
	}
	err = db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
		var id int64
		var n connection.Traffic
		err := scan(&id, &n.RxBytes, &n.TxBytes, &n.RxPackets, &n.TxPackets)
		if id, _ = schema.SplitKey(id); err == nil && len(sketches[id].Entries) > 0 {
			wholes[id] = saturatedSum(wholes[id], n)
		}
		return err
	}, c.DB.Expand(fmt.Sprintf("SELECT workload, network_rx, network_tx, network_rx_packets, network_tx_packets FROM %s WHERE minute >= $1 AND minute < $2", r.Table(schema.UsageLayout))), r.From, r.To)
	for id, s := range sketches {
		if whole := wholes[id]; !s.IsWithin(whole) {
			found.add(id, c.span(schema.Hours, r.From, fmt.Sprintf("the edges have %+v and have missed %d bytes, all traffic is %+v", s.Sum(), s.Missed, whole)))
		}
	}
	return err
}

// saturatedSum adds amounts, of which the largest stands for more.
func saturatedSum(a, b connection.Traffic) connection.Traffic {
	add := func(x, y int64) int64 {
		if x > math.MaxInt64-y {
			return math.MaxInt64
		}
		return x + y
	}
	return connection.Traffic{RxBytes: add(a.RxBytes, b.RxBytes), TxBytes: add(a.TxBytes, b.TxBytes), RxPackets: add(a.RxPackets, b.RxPackets), TxPackets: add(a.TxPackets, b.TxPackets)}
}

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
	sketches, wholes := map[schema.RowKey]*connection.Sketch{}, map[schema.RowKey]connection.Traffic{}
	err := db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
		var k schema.RowKey
		var b []byte
		if err := scan(&k.Minute, &k.ID, &b); err != nil {
			return err
		}
		s, err := connection.Decode(b)
		if err != nil {
			found.add(k.ID, c.span(schema.Hours, k.Minute, err.Error()))
			return nil
		}
		sketches[k] = s
		return nil
	}, c.DB.Expand("SELECT minute, workload, sketch FROM connections WHERE minute >= $1 AND minute < $2 ORDER BY minute, workload"), r.From, r.To)
	if err != nil {
		return err
	}
	if len(sketches) > 0 {
		err = db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
			var k schema.RowKey
			var n connection.Traffic
			if err := scan(&k.Minute, &k.ID, &n.RxBytes, &n.TxBytes, &n.RxPackets, &n.TxPackets); err != nil {
				return err
			}
			k.Minute -= k.Minute % schema.Hours.Width()
			if k.ID, _ = schema.SplitKey(k.ID); sketches[k] != nil {
				wholes[k] = saturatedSum(wholes[k], n)
			}
			return nil
		}, c.DB.Expand(fmt.Sprintf("SELECT minute, workload, network_rx, network_tx, network_rx_packets, network_tx_packets FROM %s WHERE minute >= $1 AND minute < $2", r.Table(schema.UsageLayout))), r.From, r.To)
		if err != nil {
			return err
		}
	}
	for k, s := range sketches {
		if whole := wholes[k]; !s.IsWithin(whole) {
			found.add(k.ID, c.span(schema.Hours, k.Minute, fmt.Sprintf("the edges have %+v, all traffic is %+v", s.Sum(), whole)))
		}
	}
	return c.reportFaults("connections", schema.UsageLayout, &found, true)
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

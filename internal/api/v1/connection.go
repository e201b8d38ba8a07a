package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// Connections are the peers with which workloads exchanged network traffic in a range.
type Connections struct {
	From   time.Time         `json:"from" doc:"start of the sums: that of an hour, or of a day where only whole days are kept"`
	To     time.Time         `json:"to" doc:"end of the sums: that of an hour or a day"`
	By     []query.Dimension `json:"by" nullable:"false" doc:"the dimensions of the groups"`
	Edges  []Edge            `json:"connections" nullable:"false" doc:"the largest by bytes in both directions, in descending order"`
	Others int64             `json:"others_at_most_bytes" doc:"the most bytes, in both directions, that any one edge may have had that is not listed, of what workloads exchanged while their connections were recorded"`
	Rest   *Figures          `json:"rest" line:"own" doc:"total less the edges: edges that are not listed, and traffic of workloads, hours and nodes of which connections are not recorded"`
	Total  *Figures          `json:"total" line:"own" doc:"network traffic of the same workloads in the same range, as /v1/usage has it; null if none is known"`
}

// An Edge is all connections of the workloads of a group with one peer to one port. In JSON it has a key for each dimension.
type Edge struct {
	Keys      []string `json:"-"` // in the order of the dimensions; "" is none
	Peer      string   `json:"peer" doc:"address of the other end: of the real one, where the machine translates addresses and knows it"`
	Port      int      `json:"port" doc:"port of the end that listens; 0 if the protocol has no ports"`
	Protocol  string   `json:"protocol" doc:"tcp, udp, icmp, icmpv6, or the number of another protocol in IP"`
	Direction string   `json:"direction" enum:"inbound,outbound" doc:"inbound: the workload listens on the port, and the peer opened the connections; outbound: the other way"`
	Class     string   `json:"class" enum:"unclassified,node,box,internal,zone,peering,internet" doc:"where the peer is, as for traffic by class"`
	RxBytes   int64    `json:"network_rx_bytes" doc:"bytes that the workloads received"`
	TxBytes   int64    `json:"network_tx_bytes" doc:"bytes that they sent"`
	RxPackets int64    `json:"network_rx_packets" doc:"packets that they received"`
	TxPackets int64    `json:"network_tx_packets" doc:"packets that they sent"`
	Error     int64    `json:"error_bytes" doc:"the most bytes, in both directions, by which the edge may have had more; it had no less"`

	texts map[string]json.RawMessage // what the edge was read of
}

// Directions returns the words for the directions in which the connections of an edge were opened.
func Directions() []string { return []string{"inbound", "outbound"} }

// connectionFigures are the figures of all traffic.
var connectionFigures = figuresOf([]string{"network_rx_bytes", "network_tx_bytes"})

// ConnectionsOf makes Connections.
func ConnectionsOf(c *query.Connections) *Connections {
	out := &Connections{From: c.From, To: c.To, By: c.By, Edges: make([]Edge, len(c.Edges)), Others: c.Missed}
	for i := range c.Edges {
		e := &c.Edges[i]
		out.Edges[i] = Edge{Keys: e.Keys, Peer: e.Peer.String(), Port: int(e.Port), Protocol: protocolOf(e.Protocol), Direction: Directions()[1], Class: usage.Unclassified.String(),
			RxBytes: e.RxBytes, TxBytes: e.TxBytes, RxPackets: e.RxPackets, TxPackets: e.TxPackets, Error: e.Error}
		if e.Listens {
			out.Edges[i].Direction = Directions()[0]
		}
		if c := usage.NetworkClass(e.Class); c < usage.NetworkClassLimit {
			out.Edges[i].Class = c.String()
		}
	}
	u := &Usage{figures: connectionFigures}
	rest := c.Traffic
	rest.Sum[usage.NetworkRx], rest.Sum[usage.NetworkTx] = c.Rest()
	out.Total, out.Rest = u.totalOf(&c.Traffic), u.totalOf(&rest)
	return out
}

// protocolOf returns the name of a common protocol of IP, otherwise its number.
func protocolOf(number uint8) string {
	switch number {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	}
	return strconv.Itoa(int(number))
}

// WriteJSON implements [Document]: one object with a line for each edge.
func (c *Connections) WriteJSON(w io.Writer) error { return writeDocument(w, c, c.By) }

// UnmarshalJSON reads what WriteJSON wrote. Its errors wrap fault.ErrInvalid.
func (c *Connections) UnmarshalJSON(body []byte) error {
	type plain Connections // without methods
	if err := json.Unmarshal(body, (*plain)(c)); err != nil {
		return fmt.Errorf("%w answer: %w", fault.ErrInvalid, err)
	}
	for i := range c.Edges {
		e := &c.Edges[i]
		for _, d := range c.By {
			var key string
			if err := json.Unmarshal(e.texts[string(d)], &key); err != nil {
				return fmt.Errorf("%w answer: %s of an edge: %w", fault.ErrInvalid, d, err)
			}
			e.Keys = append(e.Keys, key)
		}
		e.texts = nil
	}
	c.Rest.only(connectionFigures)
	c.Total.only(connectionFigures)
	return nil
}

// UnmarshalJSON reads an edge; its keys are those of the answer.
func (e *Edge) UnmarshalJSON(body []byte) error {
	type plain Edge // without methods
	*e = Edge{}
	return errors.Join(json.Unmarshal(body, (*plain)(e)), json.Unmarshal(body, &e.texts))
}

// WriteCSV implements [Table]: a row for each edge, then one without names and peer for the rest.
func (c *Connections) WriteCSV(w io.Writer) error {
	r, columns := newRowWriter(w), columnsOf(reflect.TypeFor[Edge](), nil)
	row := func(keys []string, field func(*column) string) error {
		for _, k := range keys {
			r.add(k)
		}
		for i := range columns {
			r.add(field(&columns[i]))
		}
		r.add(c.From.UTC().Format(time.RFC3339))
		r.add(c.To.UTC().Format(time.RFC3339))
		return r.flush()
	}
	for _, d := range c.By {
		r.add(string(d))
	}
	for i := range columns {
		r.add(columns[i].name)
	}
	r.add("from")
	r.add("to")
	err := r.flush()
	for i := 0; i < len(c.Edges) && err == nil; i++ {
		v := reflect.ValueOf(&c.Edges[i]).Elem()
		err = row(c.Edges[i].Keys, func(f *column) string { return string(f.append(nil, v)) })
	}
	if c.Rest != nil && err == nil {
		err = row(make([]string, len(c.By)), func(f *column) string {
			if a := c.Rest.Get(f.name); a.Quality != usage.Absent {
				return a.Value.String()
			}
			return ""
		})
	}
	if err != nil {
		return err
	}
	return r.close()
}

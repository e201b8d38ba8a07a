package v1_test

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// TestConnections checks that a client reads what a server writes.
func TestConnections(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := query.Connections{From: noon.Add(-time.Hour), To: noon, By: []query.Dimension{query.ByJob, "label:peer"}, Missed: 7}
	for i := range 3 {
		c.Edges = append(c.Edges, query.Edge{Keys: []string{"a\"<", []string{"", "b", "c"}[i]}, Entry: connection.Entry{
			Edge:    connection.Edge{Peer: netip.MustParseAddr("fd00::1"), Port: uint16(i), Protocol: 6, Listens: i == 1, Class: uint8(usage.ClassZone)},
			Traffic: connection.Traffic{RxBytes: 5, TxBytes: 6, RxPackets: 7, TxPackets: 8}, Error: 9}})
	}
	put(&c.Traffic, usage.NetworkRx, usage.Measured, 100)
	put(&c.Traffic, usage.NetworkTx, usage.Apportioned, 20)
	want := v1.ConnectionsOf(&c)
	body := v1.JSON(want)
	var got v1.Connections
	if err := got.UnmarshalJSON(body); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if d := cmp.Diff(body, v1.JSON(&got)); d != "" || !cmp.Equal(want.Edges, got.Edges, cmp.AllowUnexported(v1.Edge{})) {
		t.Errorf("(-written +read):\n%s%+v", d, got.Edges)
	}
	if rest := got.Rest.Get("network_rx_bytes"); rest.Value.String() != "85" || rest.Quality != usage.Measured {
		t.Errorf("rest %+v", rest)
	}
	if rest := got.Rest.Get("network_tx_bytes"); rest.Value.String() != "2" || rest.Quality != usage.Apportioned {
		t.Errorf("rest %+v", rest)
	}
	for _, bad := range []string{`[]`, `{"by":["job"],"connections":[{"peer":"::1"}]}`, `{"by":["job"],"connections":[{"job":1}]}`, `{"connections":[1]}`} {
		if err := new(v1.Connections).UnmarshalJSON([]byte(bad)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestEdgeWords checks that the description of an edge has all words.
func TestEdgeWords(t *testing.T) {
	var classes []string
	for c := range usage.NetworkClassLimit {
		classes = append(classes, c.String())
	}
	for field, words := range map[string][]string{"Class": classes, "Direction": v1.Directions()} {
		f, ok := reflect.TypeFor[v1.Edge]().FieldByName(field)
		if got, want := f.Tag.Get("enum"), strings.Join(words, ","); !ok || got != want {
			t.Errorf("%s is one of %s, want %s", field, got, want)
		}
	}
}

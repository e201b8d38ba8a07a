package meterreader

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"mete.dev/mete/internal/testkit"
)

// A meter accepts one number from Prometheus, and reports any other result.
func TestPrometheus(t *testing.T) {
	answers := map[string]string{
		"sum(w)": `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1772323200.5,"200.5"]}]}}`,
		"7":      `{"status":"success","data":{"resultType":"scalar","result":[1772323200.5,"7"]}}`,
		"w":      `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"o":"1"},"value":[1,"1"]},{"metric":{"o":"2"},"value":[1,"2"]}]}}`,
		"none":   `{"status":"success","data":{"resultType":"vector","result":[]}}`,
		"w[1m]":  `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
		"nan":    `{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}`,
		"late":   `{"status":"error","errorType":"timeout","error":"query timed out"}`,
		"odd":    `{"status":"success","data":{"resultType":"scalar","result":[1]}}`,
		"text":   `hello`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.FormValue("query")]
		if !ok || r.URL.Path != "/prom/api/v1/query" {
			http.Error(w, r.URL.String(), http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, text)
	}))
	defer s.Close()
	as := func(query, unit string) []string {
		return []string{"type: prometheus", "url: " + s.URL + "/prom", "query: '" + query + "'", "unit: " + unit}
	}
	checkRead(t, 200500000, as("sum(w)", "W")...)
	checkRead(t, 7000000, as("7", "J")...)
	checkRead(t, "2 series instead of one", as("w", "W")...)
	checkRead(t, "0 series instead of one", as("none", "W")...)
	checkRead(t, "result is a matrix", as("w[1m]", "W")...)
	checkRead(t, "is out of range", as("nan", "W")...)
	checkRead(t, "query: query timed out", as("late", "W")...)
	checkRead(t, "not an answer of Prometheus", as("odd", "W")...)
	checkRead(t, "not an answer of Prometheus", as("text", "W")...)
	checkRead(t, "400", as("sum(", "W")...)
}

// A broker is an MQTT broker with one user. It refuses the topic "secret".
type broker struct {
	ln net.Listener

	mu       sync.Mutex
	retained map[string]string
	topics   map[net.Conn]string // subscription of each open connection
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{ln: ln, retained: map[string]string{}, topics: map[net.Conn]string{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		b.drop()
		all.Wait()
	})
	return b
}

func (b *broker) url() string { return "tcp://" + b.ln.Addr().String() }

// serve answers one client until it disconnects.
func (b *broker) serve(c net.Conn) {
	b.mu.Lock()
	b.topics[c] = ""
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.topics, c)
		b.mu.Unlock()
		_ = c.Close()
	}()
	for {
		p, err := packets.ReadPacket(c)
		if err != nil {
			return
		}
		switch p := p.(type) {
		case *packets.ConnectPacket:
			ack := packets.NewControlPacket(packets.Connack).(*packets.ConnackPacket)
			if p.Username != "mete" || string(p.Password) != "pass" {
				ack.ReturnCode = packets.ErrRefusedNotAuthorised
			}
			if ack.Write(c) != nil || ack.ReturnCode != packets.Accepted {
				return
			}
		case *packets.SubscribePacket:
			ack := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
			ack.MessageID, ack.ReturnCodes = p.MessageID, []byte{0}
			topic := p.Topics[0]
			if topic == "secret" {
				ack.ReturnCodes[0] = 0x80
			}
			b.mu.Lock()
			err := ack.Write(c)
			if text, ok := b.retained[topic]; ok && err == nil {
				err = send(c, topic, text, true)
			}
			b.topics[c] = topic
			b.mu.Unlock()
			if err != nil {
				return
			}
		case *packets.PingreqPacket:
			if packets.NewControlPacket(packets.Pingresp).Write(c) != nil {
				return
			}
		case *packets.DisconnectPacket:
			return
		}
	}
}

func send(c net.Conn, topic, text string, retained bool) error {
	p := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket)
	p.TopicName, p.Payload, p.Retain = topic, []byte(text), retained
	return p.Write(c)
}

// publish waits for a subscriber of the topic and sends it a message.
func (b *broker) publish(t *testing.T, topic, text string) {
	t.Helper()
	testkit.Eventually(t, "a subscriber of "+topic, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for c, has := range b.topics {
			if has == topic {
				return send(c, topic, text, false) == nil
			}
		}
		return false
	})
}

// drop closes all connections.
func (b *broker) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Collect(maps.Keys(b.topics)) {
		delete(b.topics, c)
		_ = c.Close()
	}
}

// A meter records the messages of a broker except retained ones, and resumes after the
// connection was lost.
func TestMQTT(t *testing.T) {
	b := newBroker(t)
	b.retained["tele/plug/SENSOR"] = `{"ENERGY":{"Power":1}}`
	plain := listen(t, b.url(), "password: pass", "topic: strip/energy", "unit: kWh")
	inside := listen(t, b.url(), "password: pass", "topic: tele/plug/SENSOR", "path: ENERGY.Power", "unit: W")
	refused := listen(t, b.url(), "password: pass", "topic: secret", "unit: W")
	hear := func(got *recorded, want int64, topic, message string) {
		t.Helper()
		b.publish(t, topic, message)
		got.until(t, topic+" "+message, func() bool { return got.last() == want })
	}
	hear(plain, 4500000000000, "strip/energy", "1.25")
	hear(plain, 5400000000000, "strip/energy", "1.5")
	hear(inside, 61000000, "tele/plug/SENSOR", `{"Time":"2026-03-01T00:00:00","ENERGY":{"Total":3.1,"Power":61}}`)
	hear(inside, 62000000, "tele/plug/SENSOR", `{"ENERGY":{"Power":"62"}}`)
	if got := inside.all(); !slices.Equal(got, []int64{61000000, 62000000}) {
		t.Errorf("recorded %v", got)
	}
	b.publish(t, "tele/plug/SENSOR", `{"ENERGY":{}}`)
	inside.until(t, "an error for the invalid message", func() bool { return inside.failed("topic tele/plug/SENSOR: there is no ENERGY.Power") })
	refused.until(t, "the topic is refused", func() bool { return refused.failed("broker refuses topic secret") })
	b.drop()
	plain.until(t, "the connection is lost", func() bool { return plain.failed("connection to the broker lost") })
	hear(plain, 7200000000000, "strip/energy", "2")
}

// A meter reports an unreachable broker after readTimeout.
func TestMQTTUnreached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s, err := open(spec(t, "type: mqtt", "url: tcp://127.0.0.1:1", "user: mete", "password: pass", "topic: t", "unit: W"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var errs []string
		s.Run(ctx, func(at time.Time, _ int64, err error) {
			errs = append(errs, fmt.Sprint(at.Sub(began), " ", err))
			stop()
		})
		if len(errs) != 1 || !strings.HasPrefix(errs[0], "10s ") || !strings.Contains(errs[0], "cannot reach the broker") {
			t.Errorf("recorded %q", errs)
		}
		time.Sleep(time.Minute) // lets the client end
	})
}

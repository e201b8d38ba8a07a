package meterreader

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"mete.dev/mete/internal/attribute/external"
)

// An mqttTopic is a meter that publishes to a topic of a broker. The client speaks MQTT
// 3.1.1, or 3.1 with older brokers.
type mqttTopic struct {
	spec *external.Spec
	*access
}

// reconnectDelay is the delay between attempts to connect to the broker.
const reconnectDelay = 10 * time.Second

// Run implements source. It ignores retained messages, because their time is unknown.
func (m *mqttTopic) Run(ctx context.Context, record recordFunc) {
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			record(time.Now(), 0, err)
		}
	}
	o := mqtt.NewClientOptions().AddBroker(m.spec.URL).SetClientID("mete-" + rand.Text()[:12]).
		SetUsername(m.user).SetPassword(m.password).SetTLSConfig(m.tls).SetCleanSession(true).SetOrderMatters(true).
		SetConnectTimeout(readTimeout).SetAutoReconnect(true).SetMaxReconnectInterval(reconnectDelay).SetConnectRetry(true).SetConnectRetryInterval(reconnectDelay)
	o.SetConnectionLostHandler(func(_ mqtt.Client, err error) { fail(fmt.Errorf("connection to the broker lost: %w", err)) })
	o.SetOnConnectHandler(func(c mqtt.Client) {
		t := c.Subscribe(m.spec.Topic, 1, func(_ mqtt.Client, msg mqtt.Message) {
			if msg.Retained() || ctx.Err() != nil {
				return
			}
			v, err := valueIn(m.spec, msg.Payload())
			if err != nil {
				err = fmt.Errorf("topic %s: %w", m.spec.Topic, err)
			}
			record(time.Now(), v, err)
		})
		go func() {
			switch {
			case !t.WaitTimeout(readTimeout):
				fail(errors.New("broker does not answer"))
			case t.Error() != nil:
				fail(fmt.Errorf("topic %s: %w", m.spec.Topic, t.Error()))
			case t.(*mqtt.SubscribeToken).Result()[m.spec.Topic] > 2: // 0x80: refused
				fail(fmt.Errorf("broker refuses topic %s", m.spec.Topic))
			}
		}()
	})
	c := mqtt.NewClient(o)
	t := c.Connect()
	select {
	case <-ctx.Done():
	case <-t.Done():
		fail(t.Error())
	case <-time.After(readTimeout):
		// The client keeps trying to connect.
		fail(errors.New("cannot reach the broker"))
	}
	<-ctx.Done()
	c.Disconnect(250)
}

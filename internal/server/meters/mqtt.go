package meters

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"mete.dev/mete/internal/attribute/external"
)

// A mqttTopic is a meter that publishes under a topic of a broker. It speaks MQTT
// 3.1.1, and 3.1 where the broker is older: both are what smart plugs and their
// brokers speak.
type mqttTopic struct {
	spec *external.Spec
	*access
}

// reconnectDelay is how long a broker that is away is not asked for.
const reconnectDelay = 10 * time.Second

// Run implements source. A message that the broker had kept says nothing of when it
// was true, and is not taken.
func (m *mqttTopic) Run(ctx context.Context, take recordFunc) {
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			take(time.Now(), 0, err)
		}
	}
	o := mqtt.NewClientOptions().AddBroker(m.spec.URL).SetClientID("mete-" + rand.Text()[:12]).
		SetUsername(m.user).SetPassword(m.password).SetTLSConfig(m.tls).SetCleanSession(true).SetOrderMatters(true).
		SetConnectTimeout(readTimeout).SetAutoReconnect(true).SetMaxReconnectInterval(reconnectDelay).SetConnectRetry(true).SetConnectRetryInterval(reconnectDelay)
	o.SetConnectionLostHandler(func(_ mqtt.Client, err error) { fail(fmt.Errorf("the broker is gone: %w", err)) })
	o.SetOnConnectHandler(func(c mqtt.Client) {
		t := c.Subscribe(m.spec.Topic, 1, func(_ mqtt.Client, msg mqtt.Message) {
			if msg.Retained() || ctx.Err() != nil {
				return
			}
			v, err := valueIn(m.spec, msg.Payload())
			if err != nil {
				err = fmt.Errorf("topic %s: %w", m.spec.Topic, err)
			}
			take(time.Now(), v, err)
		})
		go func() {
			switch {
			case !t.WaitTimeout(readTimeout):
				fail(errors.New("the broker does not answer"))
			case t.Error() != nil:
				fail(fmt.Errorf("topic %s: %w", m.spec.Topic, t.Error()))
			case t.(*mqtt.SubscribeToken).Result()[m.spec.Topic] > 2: // 0x80: refused
				fail(fmt.Errorf("the broker refuses the topic %s", m.spec.Topic))
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
		// It goes on trying; this is for the log.
		fail(errors.New("the broker cannot be reached"))
	}
	<-ctx.Done()
	c.Disconnect(250)
}

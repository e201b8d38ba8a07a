package rule

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/common/model"
)

// An Alert is a firing or ended alert.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"` // zero while it fires
	// Source is a link to the query of the rule.
	Source string `json:"generatorURL"`
}

// Fingerprint identifies an alert by its labels, as Alertmanager does.
func (a *Alert) Fingerprint() string {
	ls := make(model.LabelSet, len(a.Labels))
	for k, v := range a.Labels {
		ls[model.LabelName(k)] = model.LabelValue(v)
	}
	return ls.Fingerprint().String()
}

// IsFiring reports whether the alert has not ended.
func (a *Alert) IsFiring() bool { return a.EndsAt.IsZero() }

// A Message is one notification of a receiver: alerts of one name.
type Message struct {
	Name   string
	Alerts []Alert
}

const (
	// RepeatAnnotation is the annotation with the interval at which a receiver is notified
	// again of a firing alert; defaultRepeat applies without it.
	RepeatAnnotation = "repeat"
	defaultRepeat    = 4 * time.Hour
	// maxAlerts limits the alerts in memory, maxPerMessage those in one message.
	maxAlerts     = 10_000
	maxPerMessage = 200
)

// Notifications tracks which alerts one receiver knows and which it still has to receive. A
// receiver that was unreachable gets the current state. The zero value is ready to use.
type Notifications struct {
	// Dropped counts alerts above maxAlerts, of which the receiver is not notified.
	Dropped int64
	alerts  map[string]*notification
}

// A notification is a firing alert, or an ended one whose end the receiver does not know.
type notification struct {
	Alert         Alert     `json:"alert"`
	Until         time.Time `json:"until"` // end of the alert unless Add renews it
	Notified      time.Time `json:"told"`  // time of the last notification that it fires; zero is never
	NotifiedStart time.Time `json:"since"` // StartsAt in that notification
	restored      bool      // Restore made it, and Add has not renewed it
}

// Add takes the state of an alert from the rules. A firing alert ends at until unless Add
// renews it.
func (n *Notifications) Add(a Alert, until time.Time) {
	id := a.Fingerprint()
	k := n.alerts[id]
	switch {
	case k != nil:
		if k.restored && k.Alert.IsFiring() && a.IsFiring() {
			k.NotifiedStart = a.StartsAt // after a restart the rules give another one
		}
		k.restored = false
		k.Alert, k.Until = a, until
		return
	case !a.IsFiring():
		return // the receiver does not know it
	case len(n.alerts) >= maxAlerts:
		n.Dropped++
		return
	case n.alerts == nil:
		n.alerts = map[string]*notification{}
	}
	n.alerts[id] = &notification{Alert: a, Until: until}
}

// Pending returns the messages that are due, sorted by name. It forgets alerts that started
// and ended without a notification. The receiver is not notified that a silenced alert fires, but
// is notified that one has ended of which it knows.
func (n *Notifications) Pending(now time.Time, silenced func(labels map[string]string) bool) (list []Message) {
	by := map[string][]Alert{}
	for _, id := range slices.Sorted(maps.Keys(n.alerts)) {
		k := n.alerts[id]
		if k.Alert.IsFiring() && now.After(k.Until) {
			k.Alert.EndsAt = k.Until
		}
		switch {
		case !k.Alert.IsFiring() && k.Notified.IsZero():
			delete(n.alerts, id)
			continue
		case k.Alert.IsFiring() && k.NotifiedStart.Equal(k.Alert.StartsAt) && now.Sub(k.Notified) < k.repeat():
			continue
		case k.Alert.IsFiring() && silenced(k.Alert.Labels):
			continue
		}
		name := k.Alert.Labels[model.AlertNameLabel]
		by[name] = append(by[name], k.Alert)
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		for part := range slices.Chunk(by[name], maxPerMessage) {
			list = append(list, Message{name, part})
		}
	}
	return list
}

// Ack records that the receiver has accepted a message of Pending.
func (n *Notifications) Ack(m Message, now time.Time) {
	for i := range m.Alerts {
		a := &m.Alerts[i]
		id := a.Fingerprint()
		k := n.alerts[id]
		switch {
		case k == nil:
		case a.IsFiring():
			k.Notified, k.NotifiedStart = now, a.StartsAt
		case !k.Alert.IsFiring():
			delete(n.alerts, id)
		default:
			k.Notified, k.NotifiedStart = time.Time{}, time.Time{} // fires again since Pending
		}
	}
}

func (n *notification) repeat() time.Duration {
	d, err := model.ParseDuration(cmp.Or(n.Alert.Annotations[RepeatAnnotation], "0s"))
	if err != nil || d <= 0 {
		return defaultRepeat
	}
	return time.Duration(d)
}

// Save encodes the alerts that the receiver knows, for Restore.
func (n *Notifications) Save() []byte {
	list := []*notification{}
	for _, id := range slices.Sorted(maps.Keys(n.alerts)) {
		if k := n.alerts[id]; !k.Notified.IsZero() {
			list = append(list, k)
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic("rule: " + err.Error()) // the list holds only text and times
	}
	return b
}

// Restore restores the state that Save encoded before a restart. Restored alerts end at
// until unless Add renews them.
func (n *Notifications) Restore(b []byte, until time.Time) error {
	var list []*notification
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	n.alerts = map[string]*notification{}
	for _, k := range list {
		if k == nil || len(n.alerts) >= maxAlerts {
			continue
		}
		if k.Alert.IsFiring() {
			k.Until = until
		}
		k.restored = true
		n.alerts[k.Alert.Fingerprint()] = k
	}
	return nil
}

package rule

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/common/model"
)

// An Alert is one that fires, or fired.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"` // zero while it fires
	// Source is a link to what it comes from.
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

// IsFiring says whether it has not ended.
func (a *Alert) IsFiring() bool { return a.EndsAt.IsZero() }

// A Message is what a receiver is told at once: alerts of one name.
type Message struct {
	Name   string
	Alerts []Alert
}

const (
	// RepeatAnnotation is the annotation that says how often a receiver is told of an alert that
	// goes on, and repeat how often without it.
	RepeatAnnotation = "repeat"
	defaultRepeat    = 4 * time.Hour
	// maxAlerts is how many alerts are remembered at most, and most how many are in one
	// message.
	maxAlerts     = 10_000
	maxPerMessage = 200
)

// Notifications is what one receiver was told, and what it is yet to be told. A receiver that
// is away hears the state as it is when it is back. The zero value is of one who
// was told nothing.
type Notifications struct {
	// Dropped counts alerts that nobody is told of, as there were too many.
	Dropped int64
	alerts  map[string]*notification
}

// A notification is an alert that fires, or of which the receiver is to hear that it ended.
type notification struct {
	Alert         Alert     `json:"alert"`
	Until         time.Time `json:"until"` // when it is over, unless it is heard of again
	Notified      time.Time `json:"told"`  // when the receiver was told that it fires; zero is never
	NotifiedStart time.Time `json:"since"` // StartsAt, as it was told
}

// Add takes what the rules say of an alert. What fires is over at a time unless they
// say it again.
func (t *Notifications) Add(a Alert, until time.Time) {
	id := a.Fingerprint()
	k := t.alerts[id]
	switch {
	case k != nil:
		k.Alert, k.Until = a, until
		return
	case !a.IsFiring():
		return // its start was not told
	case len(t.alerts) >= maxAlerts:
		t.Dropped++
		return
	case t.alerts == nil:
		t.alerts = map[string]*notification{}
	}
	t.alerts[id] = &notification{Alert: a, Until: until}
}

// Pending returns what the receiver is to be told now, by name. An alert that began and
// ended untold is forgotten.
func (t *Notifications) Pending(now time.Time) (list []Message) {
	by := map[string][]Alert{}
	for _, id := range slices.Sorted(maps.Keys(t.alerts)) {
		k := t.alerts[id]
		if k.Alert.IsFiring() && now.After(k.Until) {
			k.Alert.EndsAt = k.Until
		}
		switch {
		case !k.Alert.IsFiring() && k.Notified.IsZero():
			delete(t.alerts, id)
			continue
		case k.Alert.IsFiring() && k.NotifiedStart.Equal(k.Alert.StartsAt) && now.Sub(k.Notified) < k.repeat():
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

// Ack notes that the receiver has a message of Pending.
func (t *Notifications) Ack(m Message, now time.Time) {
	for i := range m.Alerts {
		a := &m.Alerts[i]
		id := a.Fingerprint()
		k := t.alerts[id]
		switch {
		case k == nil:
		case a.IsFiring():
			k.Notified, k.NotifiedStart = now, a.StartsAt
		case !k.Alert.IsFiring():
			delete(t.alerts, id)
		default:
			k.Notified, k.NotifiedStart = time.Time{}, time.Time{} // it fires again
		}
	}
}

func (k *notification) repeat() time.Duration {
	d, err := model.ParseDuration(cmp.Or(k.Alert.Annotations[RepeatAnnotation], "0s"))
	if err != nil || d <= 0 {
		return defaultRepeat
	}
	return time.Duration(d)
}

// Save is what the receiver believes to fire, for Restore.
func (t *Notifications) Save() []byte {
	list := []*notification{}
	for _, id := range slices.Sorted(maps.Keys(t.alerts)) {
		if k := t.alerts[id]; !k.Notified.IsZero() {
			list = append(list, k)
		}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic("rule: " + err.Error()) // it is text and times
	}
	return b
}

// Restore takes up what Save wrote before a restart. Alerts that the rules do not
// say again until a time are over then.
func (t *Notifications) Restore(b []byte, until time.Time) error {
	var list []*notification
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	t.alerts = map[string]*notification{}
	for _, k := range list {
		if k == nil || len(t.alerts) >= maxAlerts {
			continue
		}
		if k.Alert.IsFiring() {
			k.Until = until
		}
		t.alerts[k.Alert.Fingerprint()] = k
	}
	return nil
}

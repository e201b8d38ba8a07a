package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/rules"

	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/x/atomicfile"
	"mete.dev/mete/internal/x/httpx"
)

// maxRetryDelay limits the pause after requests that failed.
const maxRetryDelay = 5 * time.Minute

// A webhook posts notifications of alerts to one URL. It keeps a record of them, so that the
// receiver is notified once when an alert begins, at intervals while it lasts, and once when it
// has ended, even if the server is restarted meanwhile.
type webhook struct {
	target *url.URL
	cfg    Config
	client *http.Client
	wake   chan struct{}
	log    *slog.Logger

	silences *silences

	mu            sync.Mutex
	notifications rule.Notifications
	refused       map[string]refusal // by alert name
	unsaved       bool               // the state file could not be written
	sent, failed  int64
}

func openWebhook(cfg Config, silences *silences, log *slog.Logger) (*webhook, error) {
	text := cfg.Webhook
	if path, ok := strings.CutPrefix(text, "@"); ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--alert-webhook: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	u, err := parseAddress("--alert-webhook", text)
	if err != nil {
		return nil, err
	}
	if err := addHeaders(http.Header{}, cfg.WebhookHeader); err != nil {
		return nil, fmt.Errorf("--alert-webhook-header: %w", err)
	}
	wh := &webhook{
		refused: map[string]refusal{},
		target:  u, cfg: cfg, wake: make(chan struct{}, 1), log: log.With("receiver", u.Scheme+"://"+u.Host), silences: silences,
		client: &http.Client{
			Timeout:       requestTimeout,
			CheckRedirect: httpx.NoRedirect,
		},
	}
	if cfg.State == "" {
		return wh, nil
	}
	b, err := os.ReadFile(cfg.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wh, nil
	case err != nil:
		return nil, err
	}
	if err := wh.notifications.Restore(b, time.Now().Add(cfg.RestoreGrace)); err != nil {
		log.Warn("the record of the webhook's notifications cannot be read; all alerts are sent again", "path", cfg.State, "err", err)
	}
	return wh, nil
}

// add records the present state of alerts, which the rules give.
func (wh *webhook) add(alerts []*rules.Alert, source string) {
	wh.mu.Lock()
	for _, a := range alerts {
		wh.notifications.Add(rule.Alert{
			Labels: a.Labels.Map(), Annotations: a.Annotations.Map(), StartsAt: a.FiredAt.UTC(), EndsAt: a.ResolvedAt.UTC(), Source: source,
		}, a.ValidUntil)
	}
	wh.mu.Unlock()
	select {
	case wh.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// run delivers notifications until over is closed. Those that are pending then are delivered
// after the next start.
func (wh *webhook) run(over <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-over
		cancel()
	}()
	var pause time.Duration
	for {
		// An alert also ends, or is due again, because time passes.
		wait := min(10*time.Second, 2*wh.cfg.RetryDelay)
		if pause > 0 {
			wait = pause
		}
		timer := time.NewTimer(wait)
		wake := wh.wake
		if pause > 0 {
			wake = nil // a new alert does not shorten the pause
		}
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		switch err := wh.deliver(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil && pause > 0:
			wh.log.Info("webhook accepts alerts again")
			pause = 0
		case err != nil && pause == 0:
			wh.log.Warn("cannot deliver alerts to the webhook; retrying", "err", err)
			fallthrough
		case err != nil:
			pause = min(max(wh.cfg.RetryDelay, 2*pause), maxRetryDelay)
		}
	}
}

// A refusedError is an answer that says that the message is wrong, and not that the receiver cannot take any.
type refusedError struct{ status string }

func (e refusedError) Error() string { return "webhook answered " + e.status }

// A refusal is of the messages of one name.
type refusal struct {
	until time.Time // they are not sent again before
	delay time.Duration
}

// noteRefusal delays the messages of a name, the longer the more often they were refused. wh.mu is locked.
func (wh *webhook) noteRefusal(name string, err error) {
	r, again := wh.refused[name]
	if !again {
		wh.log.Warn("the webhook refuses alerts of a name; they are sent again later, and others meanwhile", "alert", name, "err", err)
	}
	r.delay = min(max(wh.cfg.RetryDelay, 2*r.delay), maxRetryDelay)
	r.until = time.Now().Add(r.delay)
	wh.refused[name] = r
}

// save writes what the receiver knows to the state file. wh.mu is locked.
func (wh *webhook) save() {
	if wh.cfg.State == "" {
		return
	}
	err := atomicfile.Replace(wh.cfg.State, wh.notifications.Save())
	if err != nil && !wh.unsaved {
		wh.log.Warn("cannot record which alerts were sent; after a restart they are sent again", "err", err)
	}
	wh.unsaved = err != nil
}

// deliver posts the pending messages. A message that the receiver refuses does not delay the
// others. The error is that of a receiver that takes none.
func (wh *webhook) deliver(ctx context.Context) error {
	wh.mu.Lock()
	now := time.Now()
	list := wh.notifications.Pending(now, func(labels map[string]string) bool { return len(wh.silences.ids(labels, now)) > 0 })
	wh.mu.Unlock()
	var errs []error
	for _, m := range list {
		if now.Before(wh.refused[m.Name].until) {
			continue
		}
		reached, err := wh.post(ctx, m)
		wh.mu.Lock()
		refused, ok := errors.AsType[refusedError](err)
		switch {
		case ok:
			wh.failed++
			wh.noteRefusal(m.Name, refused)
		case err != nil:
			wh.failed++
			errs = append(errs, err)
		default:
			wh.sent++
			delete(wh.refused, m.Name)
			wh.notifications.Ack(m, time.Now())
			wh.save()
		}
		wh.mu.Unlock()
		if !reached {
			break
		}
	}
	return errors.Join(errs...)
}

// post sends one message. reached reports whether the receiver answered.
func (wh *webhook) post(ctx context.Context, m rule.Message) (reached bool, err error) {
	b, err := json.Marshal(bodyOf(m, wh.cfg.PageURL))
	if err != nil {
		return true, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, wh.target.String(), bytes.NewReader(b))
	if err != nil {
		return true, errors.New("the address is not a URL")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "mete")
	if err := addHeaders(r.Header, wh.cfg.WebhookHeader); err != nil {
		return false, err
	}
	resp, err := wh.client.Do(r)
	if err != nil {
		return false, httpx.WithoutURL(err) // in which there may be a secret
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true, refusedError{resp.Status}
	}
	if resp.StatusCode/100 != 2 {
		return true, fmt.Errorf("webhook answered %s", resp.Status)
	}
	return true, nil
}

func (wh *webhook) counts() (sent, failed, dropped int64) {
	wh.mu.Lock()
	defer wh.mu.Unlock()
	return wh.sent, wh.failed, wh.notifications.Dropped
}

// A body is the JSON that Alertmanager posts to webhooks, version 4:
// https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
type body struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []bodyAlert       `json:"alerts"`
}

type bodyAlert struct {
	Status string `json:"status"`
	rule.Alert
	Fingerprint string `json:"fingerprint"`
}

func bodyOf(m rule.Message, page string) body {
	group := map[string]string{"alertname": m.Name}
	b := body{Version: "4", GroupKey: fmt.Sprintf("{}:{alertname=%q}", m.Name), Status: resolved, Receiver: "mete", GroupLabels: group, ExternalURL: page}
	for i := range m.Alerts {
		a := m.Alerts[i]
		one := bodyAlert{Status: resolved, Alert: a, Fingerprint: a.Fingerprint()}
		if a.IsFiring() {
			one.Status, b.Status = firing, firing
		}
		b.Alerts = append(b.Alerts, one)
		b.CommonLabels, b.CommonAnnotations = common(i == 0, b.CommonLabels, a.Labels), common(i == 0, b.CommonAnnotations, a.Annotations)
	}
	return b
}

const firing, resolved = "firing", "resolved"

// common returns the labels or annotations that both maps have with the same value; those of
// more if it is the first.
func common(first bool, have, more map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range more {
		if w, ok := have[k]; first || ok && w == v {
			out[k] = v
		}
	}
	return out
}

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
)

// maxRetryDelay is that after requests that failed.
const maxRetryDelay = 5 * time.Minute

// A webhook posts alerts to one URL. It keeps what the receiver was told, so that
// each alert is told once as it begins, now and then as it goes on, and once as it
// ends, also where that is after a restart.
type webhook struct {
	target *url.URL
	cfg    Config
	client *http.Client
	wake   chan struct{}
	log    *slog.Logger

	mu            sync.Mutex
	notifications rule.Notifications
	sent, failed  int64
}

func openWebhook(cfg Config, log *slog.Logger) (*webhook, error) {
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
	h := &webhook{
		target: u, cfg: cfg, wake: make(chan struct{}, 1), log: log.With("receiver", u.Scheme+"://"+u.Host),
		client: &http.Client{
			Timeout:       requestTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if cfg.State == "" {
		return h, nil
	}
	b, err := os.ReadFile(cfg.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h, nil
	case err != nil:
		return nil, err
	}
	if err := h.notifications.Restore(b, time.Now().Add(cfg.RestoreGrace)); err != nil {
		log.Warn("what the webhook was told is not known any more; it is told anew", "path", cfg.State, "err", err)
	}
	return h, nil
}

// add takes what the rules say of alerts.
func (h *webhook) add(alerts []*rules.Alert, source string) {
	h.mu.Lock()
	for _, a := range alerts {
		h.notifications.Add(rule.Alert{
			Labels: a.Labels.Map(), Annotations: a.Annotations.Map(), StartsAt: a.FiredAt.UTC(), EndsAt: a.ResolvedAt.UTC(), Source: source,
		}, a.ValidUntil)
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default: // it is awake already
	}
}

// run delivers until over is closed. What is not delivered then is told after the
// next start.
func (h *webhook) run(over <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-over
		cancel()
	}()
	var pause time.Duration
	for {
		// Alerts end and are repeated without anybody saying so.
		wait := min(10*time.Second, 2*h.cfg.RetryDelay)
		if pause > 0 {
			wait = pause
		}
		timer := time.NewTimer(wait)
		wake := h.wake
		if pause > 0 {
			wake = nil // it is not to be hurried
		}
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		switch err := h.deliver(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil && pause > 0:
			h.log.Info("the webhook takes alerts again")
			pause = 0
		case err != nil && pause == 0:
			h.log.Warn("the webhook does not take alerts; trying on", "err", err)
			fallthrough
		case err != nil:
			pause = min(max(h.cfg.RetryDelay, 2*pause), maxRetryDelay)
		}
	}
}

// deliver posts what the receiver is yet to be told. One message that is refused does
// not keep the others back.
func (h *webhook) deliver(ctx context.Context) error {
	h.mu.Lock()
	list := h.notifications.Pending(time.Now())
	h.mu.Unlock()
	var errs []error
	for _, m := range list {
		reached, err := h.post(ctx, m)
		h.mu.Lock()
		if err != nil {
			h.failed++
			errs = append(errs, err)
		} else {
			h.sent++
			h.notifications.Ack(m, time.Now())
			if h.cfg.State != "" {
				errs = append(errs, atomicfile.Replace(h.cfg.State, h.notifications.Save()))
			}
		}
		h.mu.Unlock()
		if !reached {
			break
		}
	}
	return errors.Join(errs...)
}

// post sends one message. reached is false where nobody answered.
func (h *webhook) post(ctx context.Context, m rule.Message) (reached bool, err error) {
	b, err := json.Marshal(bodyOf(m, h.cfg.PageURL))
	if err != nil {
		return true, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.target.String(), bytes.NewReader(b))
	if err != nil {
		return true, errors.New("the address is no URL")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "mete")
	if err := addHeaders(r.Header, h.cfg.WebhookHeader); err != nil {
		return false, err
	}
	resp, err := h.client.Do(r)
	if err != nil {
		// The error would show the whole address, in which there may be a secret.
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return false, err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return true, fmt.Errorf("it answers %s", resp.Status)
	}
	return true, nil
}

func (h *webhook) counts() (sent, failed, dropped int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent, h.failed, h.notifications.Dropped
}

// A body is what Alertmanager posts to webhooks, version 4:
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

// common is what both have alike; all that is added at first.
func common(first bool, have, more map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range more {
		if w, ok := have[k]; first || ok && w == v {
			out[k] = v
		}
	}
	return out
}

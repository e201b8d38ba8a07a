// Package alert evaluates Prometheus rules over a server's metrics and sends the alerts to
// receivers: Alertmanagers and a webhook. Prometheus's own packages evaluate the rules and
// notify Alertmanagers.
package alert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/notifier"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/querylimit"
	"mete.dev/mete/internal/store/tsdb"
)

// A Config configures the rules and the receivers of alerts.
type Config struct {
	// Rules are rule files, and directories with rule files *.yml and *.yaml. They are
	// evaluated in addition to the shipped rules.
	Rules []string
	// Alertmanagers are the URLs of Alertmanagers; each of them receives all alerts.
	Alertmanagers []string
	// Webhook is a URL that receives alerts in the format of Alertmanager's webhooks, or
	// @FILE with such a URL; "" is none.
	Webhook string
	// AlertmanagerHeader and WebhookHeader are files with lines "Name: value", the headers
	// of each request. They may hold secrets and are read for each request.
	AlertmanagerHeader, WebhookHeader string
	// PageURL is the address of the server's page, for links in alerts; without it, alerts have no links.
	PageURL string
	// State is the file with the alerts that the webhook received, and Silences the file with the
	// silences; "" keeps them in memory only.
	State, Silences string
	// Interval is the evaluation interval of groups without one. Resend is the interval at
	// which a firing alert is sent to Alertmanagers again.
	Interval, Resend time.Duration
	// RetryDelay is the first delay after a failed request to the webhook; it doubles up to
	// five minutes. RestoreGrace is the time after a restart for which restored alerts count
	// as firing: the rules need a while to find them again.
	RetryDelay, RestoreGrace time.Duration
}

// Default returns a Config with the shipped rules and without receivers.
func Default() Config {
	return Config{Interval: 30 * time.Second, Resend: time.Minute, RetryDelay: 5 * time.Second, RestoreGrace: 15 * time.Minute}
}

// Validate reports all invalid fields. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	var errs []error
	if min(c.Interval, c.Resend, c.RetryDelay, c.RestoreGrace) <= 0 {
		errs = append(errs, fmt.Errorf("rules: durations must be positive: %w", fault.ErrInvalid))
	}
	for _, u := range c.Alertmanagers {
		_, err := parseAddress("--alertmanager", u)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// parseAddress parses the URL of a receiver. Its errors contain at most the host, because
// the rest may be secret.
func parseAddress(flag, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fault.WithHint(fmt.Errorf("%s: not a URL of a receiver: %w", flag, fault.ErrInvalid), "write it as https://HOST:PORT/PATH")
	case u.User != nil:
		return nil, fault.WithHint(fmt.Errorf("%s %s: every user of this machine can read a password in a URL: %w", flag, u.Host, fault.ErrInvalid),
			"put a line \"Authorization: ...\" into a file, and name it with "+flag+"-header")
	}
	return u, nil
}

// Counts count deliveries since the start.
type Counts struct {
	Sent, Failed               int64 // requests to Alertmanagers
	WebhookSent, WebhookFailed int64 // requests to the webhook
	WebhookDropped             int64 // alerts above the limit that the webhook does not receive
}

// Alerts evaluates rules and delivers alerts.
type Alerts struct {
	cfg      Config
	rules    *rules.Manager
	notifier *notifier.Manager
	targets  targets
	webhook  *webhook // nil without
	silences *silences
	files    *files
	log      *slog.Logger

	sent, failed atomic.Int64
}

// Open reads the rules; Run evaluates them. engine evaluates their queries over the whole
// store, and recording rules write to the store. An error in a rule file names file and
// line and wraps fault.ErrInvalid.
func Open(cfg Config, engine promql.QueryEngine, store *tsdb.Store, reg prometheus.Registerer, log *slog.Logger) (*Alerts, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	// Do not log Prometheus's messages about its own start and stop.
	quiet := slog.New(levelHandler{log.Handler(), slog.LevelWarn})
	a := &Alerts{cfg: cfg, files: &files{parser: querylimit.Parser(parser.NewParser(parser.Options{})), log: quiet}, log: log}
	if err := a.files.load(cfg.Rules); err != nil {
		return nil, err
	}
	var err error
	if a.silences, err = openSilences(cfg.Silences, log); err != nil {
		return nil, err
	}
	if cfg.Webhook != "" {
		if a.webhook, err = openWebhook(cfg, a.silences, log); err != nil {
			return nil, err
		}
	}
	if a.notifier, a.targets, err = a.newNotifier(reg, quiet); err != nil {
		return nil, err
	}
	a.rules = rules.NewManager(&rules.ManagerOptions{
		NameValidationScheme: model.UTF8Validation,
		QueryFunc:            rules.EngineQueryFunc(engine, store.Queryable()),
		NotifyFunc:           a.notify,
		Context:              context.Background(),
		Appendable:           store.Records(),
		Queryable:            store.DB(),
		Logger:               quiet,
		Registerer:           reg,
		OutageTolerance:      time.Hour,
		ForGracePeriod:       10 * time.Minute,
		ResendDelay:          cfg.Resend,
		RestoreNewRuleGroups: true,
		GroupLoader:          a.files,
		Parser:               a.files.parser,
	})
	return a, nil
}

// Run evaluates the rules and delivers alerts until ctx ends.
func (a *Alerts) Run(ctx context.Context) error {
	if err := a.updateRules(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	updates := make(chan targets, 1)
	updates <- a.targets
	close(updates)
	// Stop the rules first, so that their last alerts are delivered too.
	stopped := make(chan struct{})
	g.Go(func() error { a.notifier.Run(updates); return nil })
	g.Go(func() error { a.rules.Run(); return nil })
	g.Go(func() error {
		<-ctx.Done()
		a.rules.Stop()
		close(stopped)
		a.notifier.Stop()
		return nil
	})
	if a.webhook != nil {
		g.Go(func() error { return a.webhook.run(stopped) })
	}
	return g.Wait()
}

// Reload reads the rule files again. After an error the previous rules stay in use.
func (a *Alerts) Reload() error {
	if err := a.files.load(a.cfg.Rules); err != nil {
		return err
	}
	return a.updateRules()
}

// updateRules passes the rules that were read last to the rule manager.
func (a *Alerts) updateRules() error {
	return a.rules.Update(a.cfg.Interval, a.files.names(), labels.EmptyLabels(), a.cfg.PageURL, nil)
}

// notify passes alerts of the rule manager to the receivers. An Alertmanager does not get an alert
// that is silenced, and so takes it as ended; it gets the end of one, which is harmless.
func (a *Alerts) notify(_ context.Context, expr string, alerts ...*rules.Alert) {
	if len(alerts) == 0 {
		return
	}
	source := ""
	if a.cfg.PageURL != "" {
		source = strings.TrimSuffix(a.cfg.PageURL, "/") + "/query?" + url.Values{"q": {expr}}.Encode()
	}
	now := time.Now()
	var list []*notifier.Alert
	for _, one := range alerts {
		out := &notifier.Alert{StartsAt: one.FiredAt, EndsAt: one.ValidUntil, Labels: one.Labels, Annotations: one.Annotations, GeneratorURL: source}
		switch {
		case !one.ResolvedAt.IsZero():
			out.EndsAt = one.ResolvedAt
		case len(a.SilencedBy(one.Labels, now)) > 0:
			continue
		}
		list = append(list, out)
	}
	if len(list) > 0 {
		a.notifier.Send(list...)
	}
	if a.webhook != nil {
		a.webhook.add(alerts, source)
	}
}

// RuleGroups implements api.Rules.
func (a *Alerts) RuleGroups() []*rules.Group { return a.rules.RuleGroups() }

// AlertingRules implements api.Rules.
func (a *Alerts) AlertingRules() []*rules.AlertingRule { return a.rules.AlertingRules() }

// Alertmanagers implements api.Rules.
func (a *Alerts) Alertmanagers() []*url.URL { return a.notifier.Alertmanagers() }

// DroppedAlertmanagers implements api.Rules: there are none.
func (a *Alerts) DroppedAlertmanagers() []*url.URL { return a.notifier.DroppedAlertmanagers() }

// Counts returns the counts of deliveries.
func (a *Alerts) Counts() Counts {
	c := Counts{Sent: a.sent.Load(), Failed: a.failed.Load()}
	if a.webhook != nil {
		c.WebhookSent, c.WebhookFailed, c.WebhookDropped = a.webhook.counts()
	}
	return c
}

// Firing returns the number of firing alerts.
func (a *Alerts) Firing() (n int64) {
	for _, r := range a.rules.AlertingRules() {
		r.ForEachActiveAlert(func(one *rules.Alert) {
			if one.State == rules.StateFiring {
				n++
			}
		})
	}
	return n
}

// levelHandler drops records below a level.
type levelHandler struct {
	slog.Handler
	level slog.Level
}

func (h levelHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && h.Handler.Enabled(ctx, l)
}
func (h levelHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(as), h.level}
}
func (h levelHandler) WithGroup(name string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(name), h.level}
}

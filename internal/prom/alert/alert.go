// Package alert evaluates rules over a server's metrics, and tells receivers of the
// alerts: Alertmanagers, and a webhook. Rules are Prometheus's, and so is what
// evaluates them and what speaks to an Alertmanager.
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
	"mete.dev/mete/internal/store/subquery"
	"mete.dev/mete/internal/store/tsdb"
)

// A Config says which rules there are, and who is told.
type Config struct {
	// Rules are files, and directories of files *.yml and *.yaml, beside the rules
	// that are shipped.
	Rules []string
	// Alertmanagers are their URLs: all of them are told.
	Alertmanagers []string
	// Webhook is a URL to which alerts are posted as Alertmanager's webhooks are, or
	// @FILE with one; "" is none.
	Webhook string
	// AlertmanagerHeader and WebhookHeader are files with lines "Name: value" that are
	// headers of each request: that is where a secret goes. They are read at each.
	AlertmanagerHeader, WebhookHeader string
	// PageURL is the address of the server's page, for links in alerts; "" is no links.
	PageURL string
	// State is the file in which is kept what the webhook was told.
	State string
	// Interval is how often rules are evaluated whose group does not say, and Resend
	// how often an Alertmanager hears that an alert goes on.
	Interval, Resend time.Duration
	// RetryDelay is the first pause after a request to the webhook that failed; it is doubled
	// up to five minutes. RestoreGrace is for how long what it was told is believed to go on
	// after a restart: the rules need a while to find it again.
	RetryDelay, RestoreGrace time.Duration
}

// Default evaluates the rules that are shipped, and tells nobody.
func Default() Config {
	return Config{Interval: 30 * time.Second, Resend: time.Minute, RetryDelay: 5 * time.Second, RestoreGrace: 15 * time.Minute}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	var errs []error
	if min(c.Interval, c.Resend, c.RetryDelay, c.RestoreGrace) <= 0 {
		errs = append(errs, fmt.Errorf("rules: times must be positive: %w", fault.ErrInvalid))
	}
	for _, u := range c.Alertmanagers {
		_, err := parseAddress("--alertmanager", u)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// parseAddress reads the URL of a receiver. No error shows more of it than its host: the
// rest may be a secret.
func parseAddress(flag, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fault.WithHint(fmt.Errorf("%s: no address: %w", flag, fault.ErrInvalid), "write it as https://HOST:PORT/PATH")
	case u.User != nil:
		return nil, fault.WithHint(fmt.Errorf("%s %s: a user in an address is shown to everyone on this machine: %w", flag, u.Host, fault.ErrInvalid),
			"put a line \"Authorization: ...\" into a file, and name it with "+flag+"-header")
	}
	return u, nil
}

// Counts are of what was delivered since the start.
type Counts struct {
	Sent, Failed               int64 // requests to Alertmanagers
	WebhookSent, WebhookFailed int64 // the same to the webhook
	WebhookDropped             int64 // alerts that the webhook is not told of, as there were too many
}

// Alerts evaluates rules and delivers alerts.
type Alerts struct {
	cfg      Config
	rules    *rules.Manager
	notifier *notifier.Manager
	targets  targets
	webhook  *webhook // nil without
	files    *files
	log      *slog.Logger

	sent, failed atomic.Int64
}

// Open reads the rules. It starts nothing. The engine answers their questions over
// the store, all of it, and the store keeps what they record. An error that names
// a file and a line wraps fault.ErrInvalid.
func Open(cfg Config, engine promql.QueryEngine, store *tsdb.Store, reg prometheus.Registerer, log *slog.Logger) (*Alerts, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	// What Prometheus says of its own starts and stops is nobody's news.
	quiet := slog.New(levelHandler{log.Handler(), slog.LevelWarn})
	a := &Alerts{cfg: cfg, files: &files{parser: subquery.Parser(parser.NewParser(parser.Options{})), log: quiet}, log: log}
	if err := a.files.load(cfg.Rules); err != nil {
		return nil, err
	}
	var err error
	if cfg.Webhook != "" {
		if a.webhook, err = openWebhook(cfg, log); err != nil {
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
		Appendable:           store.DB(),
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

// Run evaluates and delivers until ctx ends.
func (a *Alerts) Run(ctx context.Context) error {
	if err := a.updateRules(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	told := make(chan targets, 1)
	told <- a.targets
	close(told)
	// The rules end first, so that what they say last is delivered too.
	over := make(chan struct{})
	g.Go(func() error { a.notifier.Run(told); return nil })
	g.Go(func() error { a.rules.Run(); return nil })
	g.Go(func() error {
		<-ctx.Done()
		a.rules.Stop()
		close(over)
		a.notifier.Stop()
		return nil
	})
	if a.webhook != nil {
		g.Go(func() error { return a.webhook.run(over) })
	}
	return g.Wait()
}

// Reload reads the files of rules again. Where they are wrong those before stay, and
// the error says what is wrong.
func (a *Alerts) Reload() error {
	if err := a.files.load(a.cfg.Rules); err != nil {
		return err
	}
	return a.updateRules()
}

// updateRules has the rules evaluated that were read last.
func (a *Alerts) updateRules() error {
	return a.rules.Update(a.cfg.Interval, a.files.names(), labels.EmptyLabels(), a.cfg.PageURL, nil)
}

// notify tells the receivers what the rules say of alerts.
func (a *Alerts) notify(_ context.Context, expr string, alerts ...*rules.Alert) {
	if len(alerts) == 0 {
		return
	}
	source := ""
	if a.cfg.PageURL != "" {
		source = strings.TrimSuffix(a.cfg.PageURL, "/") + "/query?" + url.Values{"q": {expr}}.Encode()
	}
	list := make([]*notifier.Alert, len(alerts))
	for i, one := range alerts {
		list[i] = &notifier.Alert{StartsAt: one.FiredAt, EndsAt: one.ValidUntil, Labels: one.Labels, Annotations: one.Annotations, GeneratorURL: source}
		if !one.ResolvedAt.IsZero() {
			list[i].EndsAt = one.ResolvedAt
		}
	}
	a.notifier.Send(list...)
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

// Counts returns what was delivered so far.
func (a *Alerts) Counts() Counts {
	c := Counts{Sent: a.sent.Load(), Failed: a.failed.Load()}
	if a.webhook != nil {
		c.WebhookSent, c.WebhookFailed, c.WebhookDropped = a.webhook.counts()
	}
	return c
}

// Firing is how many alerts fire at present.
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

// levelHandler is a log without what is below a level.
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

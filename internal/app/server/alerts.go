package server

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/server"
)

// alertFlags are the flags about rules, and about who is told of alerts.
type alertFlags struct {
	rules, alertmanagers, caps                []string
	webhook, header, alertmanagerHeader, page string
}

func (t *alertFlags) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&t.rules, "rules", nil, "rules in Prometheus's format, beside those that are shipped: a file, or a directory of *.yml; may be repeated")
	f.StringArrayVar(&t.alertmanagers, "alertmanager", nil, "http(s)://HOST:PORT of an Alertmanager that is told of alerts; may be repeated")
	f.StringVar(&t.alertmanagerHeader, "alertmanager-header", "", "`FILE` with lines \"Name: value\", headers of requests to them, as for a secret")
	f.StringVar(&t.webhook, "alert-webhook", "", "`URL` to which alerts are posted as JSON, as Alertmanager's webhooks are, or @FILE with it")
	f.StringVar(&t.header, "alert-webhook-header", "", "`FILE` with lines \"Name: value\", headers of these requests, as for a secret")
	f.StringVar(&t.page, "page", "", "`URL` at which people reach this server, for links in alerts (default: --name and the port)")
	f.StringArrayVar(&t.caps, "power-cap", nil, "CLUSTER=WATTS or CLUSTER/NODE=WATTS above which an alert fires; may be repeated")
}

// apply puts what the flags say into a configuration.
func (t *alertFlags) apply(c *server.Config) error {
	c.Alerts.Rules, c.Alerts.Alertmanagers, c.Alerts.AlertmanagerHeader = t.rules, t.alertmanagers, t.alertmanagerHeader
	c.Alerts.Webhook, c.Alerts.WebhookHeader, c.Alerts.PageURL = t.webhook, t.header, t.page
	for _, text := range t.caps {
		one, err := rule.ParseCap(text)
		if err != nil {
			return err
		}
		c.Caps = append(c.Caps, one)
	}
	return nil
}

// pageURL is where people reach a server that listens on an address.
func pageURL(at net.Addr, names []string, insecure bool) string {
	scheme, host := "https", "localhost"
	if insecure {
		scheme = "http"
	} else if name, err := os.Hostname(); err == nil {
		host = name
	}
	if len(names) > 0 {
		host = cmp.Or(names[0], host)
	}
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return ""
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// notifyHangup are the SIGHUPs that the process gets, until stop.
func notifyHangup() (hup chan os.Signal, stop func()) {
	hup = make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	return hup, func() { signal.Stop(hup) }
}

// reload has a server read its rules again at each of hup, until ctx ends.
func reload(ctx context.Context, hup <-chan os.Signal, s *server.Server, log *slog.Logger) {
	for {
		select {
		case <-hup:
			if err := s.Reload(); err != nil {
				log.Error("the rules stay as they were: their files cannot be used", "err", err, "hint", fault.Hint(err))
				continue
			}
			log.Info("rules read again")
		case <-ctx.Done():
			return
		}
	}
}

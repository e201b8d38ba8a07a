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

// alertFlags are the flags for rules and for receivers of alerts.
type alertFlags struct {
	rules, alertmanagers, caps                []string
	webhook, header, alertmanagerHeader, page string
}

func (a *alertFlags) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&a.rules, "rules", nil, "rules in Prometheus's format, in addition to the built-in ones: a file, or a directory of *.yml; may be repeated")
	f.StringArrayVar(&a.alertmanagers, "alertmanager", nil, "http(s)://HOST:PORT of an Alertmanager that receives the alerts; may be repeated")
	f.StringVar(&a.alertmanagerHeader, "alertmanager-header", "", "`FILE` with lines \"Name: value\", headers of requests to them, as for a secret")
	f.StringVar(&a.webhook, "alert-webhook", "", "`URL` to which alerts are posted as JSON, as Alertmanager's webhooks are, or @FILE with it")
	f.StringVar(&a.header, "alert-webhook-header", "", "`FILE` with lines \"Name: value\", headers of these requests, as for a secret")
	f.StringVar(&a.page, "page", "", "`URL` at which people reach this server, for links in alerts (default: --name and the port)")
	f.StringArrayVar(&a.caps, "power-cap", nil, "CLUSTER=WATTS or CLUSTER/NODE=WATTS above which an alert fires; may be repeated")
}

// apply copies the flags into a configuration.
func (a *alertFlags) apply(c *server.Config) error {
	c.Alerts.Rules, c.Alerts.Alertmanagers, c.Alerts.AlertmanagerHeader = a.rules, a.alertmanagers, a.alertmanagerHeader
	c.Alerts.Webhook, c.Alerts.WebhookHeader, c.Alerts.PageURL = a.webhook, a.header, a.page
	for _, text := range a.caps {
		one, err := rule.ParseCap(text)
		if err != nil {
			return err
		}
		c.Caps = append(c.Caps, one)
	}
	return nil
}

// pageURL returns the URL at which people reach a server that listens on an address.
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

// notifyHangup delivers SIGHUP to hup until stop.
func notifyHangup() (hup chan os.Signal, stop func()) {
	hup = make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	return hup, func() { signal.Stop(hup) }
}

// reload reloads the server's rules at each signal of hup, until ctx ends.
func reload(ctx context.Context, hup <-chan os.Signal, s *server.Server, log *slog.Logger) {
	for {
		select {
		case <-hup:
			if err := s.Reload(); err != nil {
				log.Error("cannot reload rules; keeping the old ones", "err", err, "hint", fault.Hint(err))
				continue
			}
			log.Info("rules reloaded")
		case <-ctx.Done():
			return
		}
	}
}

package server

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/x/settings"
)

// alertSettings are the settings of rules and of receivers of alerts.
type alertSettings struct {
	rules, alertmanagers                      []string
	caps                                      []rule.Cap
	webhook, header, alertmanagerHeader, page string
}

func (a *alertSettings) add(s *settings.Set) {
	s.List(&a.rules, "rules", "PATH", "rules in Prometheus's format, in addition to the built-in ones: a file, or a directory of *.yml; may be repeated")
	s.List(&a.alertmanagers, "alertmanager", "URL", "http(s)://HOST:PORT of an Alertmanager that receives the alerts; may be repeated").SecretURL("a header with a password belongs into the file of --alertmanager-header")
	s.Text(&a.alertmanagerHeader, "alertmanager-header", "FILE", "file with lines \"Name: value\", headers of requests to them, as for a secret")
	s.Text(&a.webhook, "alert-webhook", "URL", "URL to which alerts are posted as JSON, as Alertmanager's webhooks are, or @FILE with it").Secret()
	s.Text(&a.header, "alert-webhook-header", "FILE", "file with lines \"Name: value\", headers of these requests, as for a secret")
	s.Text(&a.page, "page", "URL", "URL at which people reach this server, for links in alerts (default: --name and the port)")
	s.ListFunc("power-cap", "CAP", "CLUSTER=WATTS or CLUSTER/NODE=WATTS above which an alert fires; may be repeated", func(texts []string) error {
		var caps []rule.Cap
		for _, text := range texts {
			one, err := rule.ParseCap(text)
			if err != nil {
				return err
			}
			caps = append(caps, one)
		}
		a.caps = caps
		return nil
	})
}

// apply copies the settings into a configuration.
func (a *alertSettings) apply(c *server.Config) {
	c.Alerts.Rules, c.Alerts.Alertmanagers, c.Alerts.AlertmanagerHeader = a.rules, a.alertmanagers, a.alertmanagerHeader
	c.Alerts.Webhook, c.Alerts.WebhookHeader, c.Alerts.PageURL = a.webhook, a.header, a.page
	c.Caps = append(c.Caps, a.caps...)
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
				log.Error("cannot reload rules; keeping the old ones", fault.Attrs(err)...)
				continue
			}
			log.Info("rules reloaded")
		case <-ctx.Done():
			return
		}
	}
}

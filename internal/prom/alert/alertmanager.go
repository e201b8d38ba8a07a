package alert

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/textproto"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/notifier"

	"mete.dev/mete/internal/model/fault"
)

// targets are the Alertmanagers, in the form that Prometheus's notifier takes.
type targets = map[string][]*targetgroup.Group

const (
	// queueCapacity is the number of alerts that wait for one Alertmanager at most. Of more, the
	// oldest are dropped: the rules send those that still fire again each minute.
	queueCapacity  = 10_000
	requestTimeout = 10 * time.Second // for the answer of a receiver
)

// newNotifier returns Prometheus's notifier, which sends alerts to the Alertmanagers.
func (a *Alerts) newNotifier(reg prometheus.Registerer, log *slog.Logger) (*notifier.Manager, targets, error) {
	n := notifier.NewManager(&notifier.Options{
		QueueCapacity: queueCapacity, DrainOnShutdown: true, Registerer: reg, Do: a.post,
	}, model.UTF8Validation, log)
	to := targets{}
	c := config.DefaultConfig
	for i, text := range a.cfg.Alertmanagers {
		u, err := parseAddress("--alertmanager", text)
		if err != nil {
			return nil, nil, err
		}
		am := config.DefaultAlertmanagerConfig
		am.Scheme, am.PathPrefix, am.Timeout = u.Scheme, u.Path, model.Duration(requestTimeout)
		// A redirect would send the configured headers to another host.
		am.HTTPClientConfig.FollowRedirects = false
		c.AlertingConfig.AlertmanagerConfigs = append(c.AlertingConfig.AlertmanagerConfigs, &am)
		host := u.Host
		if u.Port() == "" {
			host += map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
		}
		key := fmt.Sprintf("config-%d", i) // its name in the notifier
		to[key] = []*targetgroup.Group{{Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(host)}}}}
	}
	return n, to, n.ApplyConfig(&c)
}

// post sends one request of the notifier to an Alertmanager, and counts it.
func (a *Alerts) post(ctx context.Context, client *http.Client, r *http.Request) (*http.Response, error) {
	err := addHeaders(r.Header, a.cfg.AlertmanagerHeader)
	var resp *http.Response
	if err == nil {
		resp, err = client.Do(r.WithContext(ctx))
	}
	if err != nil || resp.StatusCode/100 != 2 {
		a.failed.Add(1)
	} else {
		a.sent.Add(1)
	}
	return resp, err
}

// addHeaders copies the headers in a file to those of a request. Its errors show nothing of the
// file's content.
func addHeaders(into http.Header, path string) error {
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	hs, err := textproto.NewReader(bufio.NewReader(io.MultiReader(bytes.NewReader(bytes.TrimSpace(b)), bytes.NewReader([]byte("\r\n\r\n"))))).ReadMIMEHeader()
	if err != nil || len(hs) == 0 {
		return fault.WithHint(fmt.Errorf("%s: not lines of the form \"Name: value\": %w", path, fault.ErrInvalid), "write for example: Authorization: Bearer TOKEN")
	}
	maps.Copy(into, hs)
	return nil
}

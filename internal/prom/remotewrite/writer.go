// Package remotewrite implements Prometheus's remote write with Prometheus's own packages: a
// [Writer] sends the samples of a database to remote-write receivers, and a [Handler]
// receives samples from other senders.
package remotewrite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/model/fault"
)

// A Receiver is a server that receives samples.
type Receiver struct {
	// URL may hold a secret; @FILE is a file with it, which is read at the start and at each Reload.
	URL     string
	Version string // of remote write: "1.0" or "2.0"
	// Header is a file with lines "Name: value", the headers of each request. It may hold
	// secrets and is read at the start and at each Reload; "" is none.
	Header string
}

// versions maps the versions of remote write to their protobuf messages.
var versions = addVersion("2.0", "io.prometheus.write.v2.Request", addVersion("1.0", config.DefaultRemoteWriteConfig.ProtobufMessage, nil))

func addVersion[T ~string](version string, message T, others map[string]T) map[string]T {
	all := map[string]T{version: message}
	maps.Copy(all, others)
	return all
}

// address parses the URL of a receiver. Its errors contain at most the host, because the
// rest may be secret.
func (r *Receiver) address() (*url.URL, error) {
	text := r.URL
	if path, ok := strings.CutPrefix(text, "@"); ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--remote-write: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fault.WithHint(fmt.Errorf("--remote-write: not a URL of a receiver: %w", fault.ErrInvalid), "write it as https://HOST:PORT/api/v1/write, or as @FILE with that in FILE")
	case u.User != nil:
		return nil, fault.WithHint(fmt.Errorf("--remote-write %s: every user of this machine can read a password in a URL: %w", u.Host, fault.ErrInvalid),
			`put a line "Authorization: ..." into a file, and name it with --remote-write-header`)
	case versions[r.Version] == "":
		return nil, fault.WithHint(fmt.Errorf("--remote-write-version %q: %w", r.Version, fault.ErrInvalid), "use 1.0 or 2.0")
	}
	return u, nil
}

// headers reads the file of headers. Its errors do not contain the file's content.
func (r *Receiver) headers() (map[string]string, error) {
	if r.Header == "" {
		return nil, nil
	}
	b, err := os.ReadFile(r.Header)
	if err != nil {
		return nil, fmt.Errorf("--remote-write-header: %w", err)
	}
	hs, err := textproto.NewReader(bufio.NewReader(strings.NewReader(strings.TrimSpace(string(b)) + "\r\n\r\n"))).ReadMIMEHeader()
	if err != nil || len(hs) == 0 {
		return nil, fault.WithHint(fmt.Errorf("--remote-write-header %s: not lines of the form \"Name: value\": %w", r.Header, fault.ErrInvalid), "write a line such as: Authorization: Bearer TOKEN")
	}
	out := map[string]string{}
	for name := range hs {
		out[name] = hs.Get(name)
	}
	return out, nil
}

// A Writer sends the samples that a database accepts while Run runs to receivers.
type Writer struct {
	receivers []Receiver
	names     []string // host of each receiver, which may have a number; the rest may be secret
	dir       string
	reg       *prometheus.Registry
	log       *slog.Logger // without URLs of receivers
	hide      *hider
	began     time.Time

	mu      sync.Mutex // serializes changes of running
	running atomic.Pointer[remote.Storage]
}

// flushTimeout limits the delivery of pending samples at the end of Run.
const flushTimeout = 5 * time.Second

// NewWriter returns a writer for db. Call it before the first append to db. Errors about
// receivers wrap fault.ErrInvalid.
func NewWriter(to []Receiver, db *tsdb.DB, log *slog.Logger) (*Writer, error) {
	hide := &hider{}
	w := &Writer{receivers: to, dir: db.Dir(), reg: prometheus.NewRegistry(), log: slog.New(hidingHandler{log.Handler(), hide}), hide: hide, began: time.Now()}
	seen, hosts := map[string]bool{}, map[string]int{}
	for i := range to {
		u, err := to[i].address()
		if err != nil {
			return nil, err
		}
		if seen[u.String()] {
			return nil, fmt.Errorf("--remote-write %s is given twice: %w", u.Host, fault.ErrInvalid)
		}
		seen[u.String()] = true
		hosts[u.Host]++
		name := u.Host
		if n := hosts[u.Host]; n > 1 {
			name = fmt.Sprintf("%s (%d)", name, n)
		}
		w.names = append(w.names, name)
	}
	if _, err := w.config(); err != nil {
		return nil, err
	}
	if len(to) > 0 {
		db.SetWriteNotified(w)
	}
	return w, nil
}

// config returns Prometheus's configuration of the receivers.
func (w *Writer) config() (*config.Config, error) {
	c := config.DefaultConfig
	for i := range w.receivers {
		r := &w.receivers[i]
		u, err := r.address()
		if err != nil {
			return nil, err
		}
		w.hide.add(u)
		one := config.DefaultRemoteWriteConfig
		one.Name, one.URL, one.ProtobufMessage = strconv.Itoa(i), &commonconfig.URL{URL: u}, versions[r.Version]
		// A redirect would send the headers to another host.
		one.HTTPClientConfig.FollowRedirects = false
		one.MetadataConfig.Send = false // metadata comes from scrapes, and there are none
		if one.Headers, err = r.headers(); err != nil {
			return nil, err
		}
		c.RemoteWriteConfigs = append(c.RemoteWriteConfigs, &one)
	}
	return &c, nil
}

// Notify implements wlog.WriteNotified.
func (w *Writer) Notify() {
	if s := w.running.Load(); s != nil {
		s.Notify()
	}
}

// Run sends samples until ctx ends, and then delivers pending samples for up to
// flushTimeout.
func (w *Writer) Run(ctx context.Context) error {
	if len(w.receivers) == 0 {
		return nil
	}
	c, err := w.config()
	if err != nil {
		return err
	}
	s := remote.NewStorage(w.log, w.reg, func() (int64, error) { return 0, nil }, w.dir, flushTimeout, nil, false)
	w.mu.Lock()
	err = s.ApplyConfig(c)
	if err == nil {
		w.running.Store(s)
	}
	w.mu.Unlock()
	if err == nil {
		<-ctx.Done()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running.Store(nil)
	return errors.Join(err, s.Close())
}

// Reload reads the files of headers again. After an error the previous headers stay in use.
func (w *Writer) Reload() error {
	c, err := w.config()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.running.Load(); s != nil {
		return s.ApplyConfig(c)
	}
	return nil
}

// A Status is the state of the delivery to one receiver, with counts since the start.
type Status struct {
	Name                           string // host of its URL, with a number if another receiver has the same
	Sent, Failed, Retried, Dropped int64  // samples; the receiver refused Failed permanently
	Bytes                          int64  // of requests, compressed
	Pending                        int64  // samples that wait
	Behind                         time.Duration
}

// Status returns the state of all receivers in the order of NewWriter.
func (w *Writer) Status() []Status {
	out := make([]Status, len(w.receivers))
	for i := range out {
		out[i].Name = w.names[i]
	}
	families, err := w.reg.Gather()
	if err != nil {
		return out // a later call shows the counts
	}
	newest, sent := make([]float64, len(out)), make([]float64, len(out))
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "prometheus_remote_storage_")
		for _, m := range f.GetMetric() {
			at := -1
			for _, l := range m.GetLabel() {
				if n, err := strconv.Atoi(l.GetValue()); err == nil && l.GetName() == "remote_name" {
					at = n
				}
			}
			if !ok || at < 0 || at >= len(out) {
				continue
			}
			s, counted, shown := &out[at], int64(m.GetCounter().GetValue()), m.GetGauge().GetValue()
			switch name {
			case "samples_total":
				s.Sent += counted
			case "samples_failed_total":
				s.Failed += counted
			case "samples_retried_total":
				s.Retried += counted
			case "samples_dropped_total":
				s.Dropped += counted
			case "bytes_total":
				s.Bytes += counted
			case "samples_pending":
				s.Pending = int64(shown)
			case "queue_highest_timestamp_seconds":
				newest[at] = shown
			case "queue_highest_sent_timestamp_seconds":
				sent[at] = shown
			}
		}
	}
	for i := range out {
		since := max(sent[i], float64(w.began.UnixMilli())/1e3)
		out[i].Behind = time.Duration(max(0, newest[i]-since) * float64(time.Second))
	}
	return out
}

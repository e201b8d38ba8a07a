package server

import (
	"fmt"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/x/settings"
)

// remoteWriteSettings are the settings of receivers of samples.
type remoteWriteSettings struct{ urls, versions, headers []string }

func (r *remoteWriteSettings) add(s *settings.Set) {
	s.List(&r.urls, "remote-write", "URL", "URL of a receiver of Prometheus's remote write, to which the server sends all new samples, or @FILE with it; may be repeated").SecretURL("")
	s.List(&r.versions, "remote-write-version", "VERSION", "1.0 or 2.0, of remote write: the first for the first --remote-write, and so on, the last for all that follow (default 1.0)").OneOf("1.0", "2.0")
	s.List(&r.headers, "remote-write-header", "FILE", "file with lines \"Name: value\", headers of requests to it, as for a secret: the first for the first --remote-write, and so on")
}

// receivers returns what the settings configure.
func (r *remoteWriteSettings) receivers() (list []remotewrite.Receiver, err error) {
	for _, of := range []struct {
		flag   string
		values []string
	}{{"--remote-write-version", r.versions}, {"--remote-write-header", r.headers}} {
		if len(of.values) > len(r.urls) {
			return nil, fault.WithHint(fmt.Errorf("%d times %s for %d receivers: %w", len(of.values), of.flag, len(r.urls), fault.ErrInvalid),
				"name each receiver with a --remote-write of its own")
		}
	}
	version := "1.0"
	for i, url := range r.urls {
		one := remotewrite.Receiver{URL: url}
		if i < len(r.versions) {
			version = r.versions[i]
		}
		if i < len(r.headers) {
			one.Header = r.headers[i]
		}
		one.Version = version
		list = append(list, one)
	}
	return list, nil
}

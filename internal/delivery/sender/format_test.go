package sender_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// newerFormat returns a format newer than the latest one.
func newerFormat() wire.Format {
	return wire.Format{Layout: 1, Resource: wire.LatestFormat().Resource + 1}
}

const outdated = "server older than this program; windows wait in the spool"

// TestOlderServer checks that the sender offers nothing that the server cannot read,
// and sends everything after the server's upgrade.
func TestOlderServer(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.format = newerFormat()
		b.server.setFormat(wire.BaseFormat())
		b.run()
		b.wait(time.Hour)
		if n := len(b.server.offers); n > 0 {
			b.Errorf("a server that cannot read them was offered %d batches", n)
		}
		if s := b.sender.Status(); s.State != sender.Outdated || s.Refused != 0 {
			b.Errorf("status %+v", s)
		}
		if b.server.asked > 300 { // about twice a minute, more often at the start
			b.Errorf("asked %d times in an hour", b.server.asked)
		}
		b.server.setFormat(newerFormat())
		b.wait(10 * time.Minute)
		b.server.checkBookedOnce(b.spool)
		if s := b.sender.Status(); s.State != sender.Connected || s.Refused != 0 {
			b.Errorf("after the upgrade: %+v", s)
		}
		b.logs(outdated, again, splitOff)
	})
}

// TestServerReplacedByOlder checks that a batch is kept that an older server refuses
// as invalid.
func TestServerReplacedByOlder(t *testing.T) {
	for name, refuses := range map[string]error{"invalid": fault.ErrInvalid, "newer": wire.ErrNewer} {
		t.Run(name, func(t *testing.T) {
			withBench(t, nil, func(b *bench) {
				b.spool.format = newerFormat()
				b.server.setFormat(newerFormat())
				b.run()
				b.wait(10 * time.Minute)
				b.server.setFormat(wire.BaseFormat())
				b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
					return batch.Reply{}, fmt.Errorf("resource 31 is unknown: %w", refuses)
				})
				b.wait(time.Hour)
				if s := b.sender.Status(); s.State != sender.Outdated || s.Refused != 0 {
					b.Errorf("status %+v", s)
				}
				b.server.setFormat(newerFormat())
				b.server.set(nil)
				b.wait(10 * time.Minute)
				b.server.checkBookedOnce(b.spool)
			})
		})
	}
}

// TestFirstFormatIsOffered checks that batches of the first format are offered without
// a call of Reads, and that a refusal of them as invalid is final.
func TestFirstFormatIsOffered(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		b.spool.format = wire.BaseFormat()
		b.run()
		b.wait(time.Minute)
		b.server.checkBookedOnce(b.spool)
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{}, fmt.Errorf("row 7: %w", fault.ErrInvalid)
		})
		b.wait(time.Minute)
		if s := b.sender.Status(); s.Refused == 0 || b.server.asked != 0 {
			b.Errorf("%d batches refused, %d calls of Reads; want some and none", s.Refused, b.server.asked)
		}
	})
}

// TestHTTPReads checks the format that Reads derives from each kind of answer.
func TestHTTPReads(t *testing.T) {
	own := func(status int) string { return fmt.Sprintf(`{"title":"no batch","status":%d}`, status) }
	for _, c := range []struct {
		header string
		status int
		body   string // empty for the answer of a proxy
		want   wire.Format
		err    error
	}{
		{"layout=2; resource=40", http.StatusBadRequest, own(400), wire.Format{Layout: 2, Resource: 40}, nil},
		{"layout=2; resource=40", http.StatusForbidden, own(403), wire.Format{Layout: 2, Resource: 40}, nil},
		{"", http.StatusBadRequest, own(400), wire.BaseFormat(), nil}, // a server without the header
		{"nonsense", http.StatusBadRequest, own(400), wire.BaseFormat(), nil},
		{"", http.StatusBadRequest, "", wire.Format{}, fault.ErrUnavailable},
		{"", http.StatusServiceUnavailable, own(503), wire.Format{}, fault.ErrUnavailable},
		{"", http.StatusOK, `{"verdict":"taken","next":"2"}`, wire.Format{}, fault.ErrUnavailable},
		{"", http.StatusForbidden, "", wire.Format{}, fault.ErrDenied},
	} {
		h := serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/mete/v1/batches" || r.ContentLength != 0 {
				t.Errorf("%s %s of %d bytes", r.Method, r.URL, r.ContentLength)
			}
			if c.header != "" {
				w.Header().Set("Mete-Reads", c.header)
			}
			if c.body != "" {
				w.Header().Set("Content-Type", fault.ProblemType)
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		})))
		got, err := h.Reads(t.Context())
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("header %q, status %d, body %q: %v, %v; want %v, %v", c.header, c.status, c.body, got, err, c.want, c.err)
		}
	}
}

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

// next is a format of after the latest one.
func next() wire.Format { return wire.Format{Layout: 1, Resource: wire.LatestFormat().Resource + 1} }

const older = "server older than this program; what is measured waits in the spool"

// TestOlderServer checks that a server is offered nothing that it cannot read, and
// gets all of it once it was upgraded.
func TestOlderServer(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.spool.format = next()
		b.server.become(wire.BaseFormat())
		b.run()
		b.wait(time.Hour)
		if n := len(b.server.offers); n > 0 {
			b.Errorf("a server that cannot read them was offered %d batches", n)
		}
		if s := b.shipper.Status(); s.State != sender.Outdated || s.Refused != 0 {
			b.Errorf("status %+v", s)
		}
		if b.server.asked > 300 { // once a minute at most, and somewhat more in the beginning
			b.Errorf("asked %d times in an hour", b.server.asked)
		}
		b.server.become(next())
		b.wait(10 * time.Minute)
		b.server.once(b.spool)
		if s := b.shipper.Status(); s.State != sender.Connected || s.Refused != 0 {
			b.Errorf("after the upgrade: %+v", s)
		}
		b.logs(older, again, aside)
	})
}

// TestServerReplacedByOlder checks that a batch which an older server calls invalid
// is kept.
func TestServerReplacedByOlder(t *testing.T) {
	for name, refuses := range map[string]error{"invalid": fault.ErrInvalid, "newer": wire.ErrNewer} {
		t.Run(name, func(t *testing.T) {
			on(t, nil, func(b *bench) {
				b.spool.format = next()
				b.server.become(next())
				b.run()
				b.wait(10 * time.Minute)
				b.server.become(wire.BaseFormat())
				b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
					return batch.Reply{}, fmt.Errorf("resource 31 is unknown: %w", refuses)
				})
				b.wait(time.Hour)
				if s := b.shipper.Status(); s.State != sender.Outdated || s.Refused != 0 {
					b.Errorf("status %+v", s)
				}
				b.server.become(next())
				b.server.set(nil)
				b.wait(10 * time.Minute)
				b.server.once(b.spool)
			})
		})
	}
}

// TestFirstFormatIsOffered checks that what each server reads is offered without a
// question, and that a server which calls it invalid is believed.
func TestFirstFormatIsOffered(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.spool.format = wire.BaseFormat()
		b.run()
		b.wait(time.Minute)
		b.server.once(b.spool)
		b.server.set(func(context.Context, *parcel) (batch.Reply, error) {
			return batch.Reply{}, fmt.Errorf("row 7: %w", fault.ErrInvalid)
		})
		b.wait(time.Minute)
		if s := b.shipper.Status(); s.Refused == 0 || b.server.asked != 0 {
			b.Errorf("refused %d batches, asked %d times what the server reads", s.Refused, b.server.asked)
		}
	})
}

// TestHTTPReads checks what each kind of answer says that a server reads.
func TestHTTPReads(t *testing.T) {
	own := func(status int) string { return fmt.Sprintf(`{"title":"no batch","status":%d}`, status) }
	for _, c := range []struct {
		header string
		status int
		body   string // "" is of something in between
		want   wire.Format
		err    error
	}{
		{"layout=2; resource=40", http.StatusBadRequest, own(400), wire.Format{Layout: 2, Resource: 40}, nil},
		{"layout=2; resource=40", http.StatusForbidden, own(403), wire.Format{Layout: 2, Resource: 40}, nil},
		{"", http.StatusBadRequest, own(400), wire.BaseFormat(), nil}, // a server from before it was stated
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

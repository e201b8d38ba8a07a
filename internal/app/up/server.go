package up

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/web"
	"mete.dev/mete/internal/x/httpx"
)

// maxConns limits the connections of the page's listener: any user of the machine can open them.
const maxConns = 256

// newServer returns the server of a feed for requests to allowed hosts; kept answers from the
// ledger, and may be nil; authorize returns why the sender of a request may not see the machine.
// Its time limits are such that a slow or silent client holds nothing
// for long.
func newServer(f *feed, kept http.Handler, authorize func(*http.Request) error, allow func(host string) bool) *http.Server {
	mux := http.NewServeMux()
	shown := web.New(true)
	shown.Mount(mux)
	mux.Handle("/", shown.NotFoundHandler(http.NotFoundHandler()))
	if kept != nil {
		mux.Handle("/v1/", kept)
		mux.Handle("/api/v1/", kept)
		mux.Handle("/metrics", kept)
		mux.Handle("/docs", kept)
		mux.Handle("/docs/", kept)
		mux.Handle("/openapi.json", kept)
	}
	mux.Handle("/api/v0/snapshot", api.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := authorize(r); err != nil {
			refuse(w, r, err)
			return
		}
		f.snapshot(w, r)
	})))
	mux.HandleFunc("/healthz", f.health)
	return &http.Server{
		Handler:           guard(mux, allow),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// It would report only broken connections of clients.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// guard refuses requests to other host names, those of other sites' pages and those that could
// change something, and sets the headers that limit what a browser may do with the answer.
func guard(next http.Handler, allow func(host string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.SetHeaders(w.Header())
		switch {
		case !allow(r.Host):
			// A foreign name that resolves to this machine would make a foreign page and this one
			// the same origin (DNS rebinding).
			http.Error(w, "this name is not served here: use the address that mete up printed", http.StatusMisdirectedRequest)
		case httpx.CheckSite(r, web.IsPage(r.URL.Path) || r.URL.Path == api.DocsPath) != nil:
			http.Error(w, "a page of another site asks for this", http.StatusForbidden)
		case r.URL.Path == pageTokenPath:
			next.ServeHTTP(w, r) // it takes POST only
		case httpx.CheckMethod(w, r, http.MethodGet, http.MethodHead) != nil:
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// pageTokenPath is where a browser exchanges the code of a link for a token.
const pageTokenPath = "/v1/page-token"

// refuse answers a request without the right to see the machine.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Header.Get("Authorization") == "" || ca.IsUnidentified(err) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		err = httpx.WithStatus(err, httpx.ErrUnauthorized)
	}
	httpx.Fail(w, err)
}

// allowed returns a check of Host headers. It accepts the names and addresses of the loopback and
// the host given by --listen. If the server listens on more than the loopback, it also accepts
// any IP address and this machine's own name: an address cannot be made to resolve elsewhere.
func allowed(addr net.Addr, listen string) func(host string) bool {
	own, err := os.Hostname()
	if err != nil {
		own = ""
	}
	a, ok := addr.(*net.TCPAddr)
	open := ok && !a.IP.IsLoopback()
	return func(host string) bool {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
		if host == "" {
			return false
		}
		if isLoopback(host) || strings.EqualFold(host, listen) {
			return true
		}
		_, err := netip.ParseAddr(host)
		return open && (err == nil || own != "" && strings.EqualFold(host, own))
	}
}

// serve answers with body, or with 304 if the client has it by its tag.
func serve(w http.ResponseWriter, r *http.Request, kind, tag string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("ETag", tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// snapshot answers with the latest tick.
func (f *feed) snapshot(w http.ResponseWriter, r *http.Request) {
	frame := f.latest.Load()
	if frame == nil {
		f.unavailable(w)
		return
	}
	body, err := frame.json()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	serve(w, r, "application/json", frame.tag, body)
}

// health reports whether the machine can be read.
func (f *feed) health(w http.ResponseWriter, _ *http.Request) {
	if f.latest.Load() == nil || f.missed.Load() != nil {
		f.unavailable(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n") // a client that has gone away needs no answer
}

// unavailable answers with the reason why there is no reading.
func (f *feed) unavailable(w http.ResponseWriter) {
	why := "no reading yet"
	if p := f.missed.Load(); p != nil {
		why = "the latest reading was lost: " + *p
	}
	httpx.SetRetryAfter(w, time.Second)
	http.Error(w, why, http.StatusServiceUnavailable)
}

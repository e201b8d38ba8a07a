package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/x/httpx"
)

// maxRequestBody is the largest body of an order, in bytes.
const maxRequestBody = 64 << 10

// bodyTimeout is how long the body of an order may take.
const bodyTimeout = 10 * time.Second

// Tokens creates and revokes tokens.
type Tokens interface {
	// Create creates a token of the role, cluster, uses and end in want. The text, which
	// its bearer shows, is not stored.
	Create(ctx context.Context, want registry.Token) (text string, made registry.Token, err error)
	List(ctx context.Context) ([]registry.Token, error)
	Revoke(ctx context.Context, id string) error
}

// Nodes revokes nodes and servers below.
type Nodes interface {
	// Revoke takes the right to send from the node or the server below with this id, or
	// with this name where only one has it, and returns it.
	Revoke(ctx context.Context, which string) (query.Node, error)
}

// Backups copies what a server keeps.
type Backups interface {
	// Backup copies it into a new directory with an absolute path.
	Backup(ctx context.Context, dir string) (v1.Backup, error)
}

// Pages makes links to the page of a server.
type Pages interface {
	// PageLink returns the URL of the page with a code for one browser. The error is
	// fault.ErrUnsupported if the server has TLS.
	PageLink() (string, error)
}

// Audits reads the audit log.
type Audits interface {
	// Audits returns the latest entries that q selects, newest first.
	Audits(ctx context.Context, q registry.AuditQuery) ([]registry.Audit, error)
}

// Silences makes and ends silences.
type Silences interface {
	// Silence makes a silence, and returns it with its id.
	Silence(ctx context.Context, s query.Silence) (query.Silence, error)
	// EndSilence ends the silence with this id, and returns it.
	EndSilence(ctx context.Context, id string) (query.Silence, error)
	// AllSilences lists the silences, those that ended lately included.
	AllSilences() []query.Silence
}

// Administration is what [Admin] administers.
type Administration struct {
	Tokens   Tokens
	Nodes    Nodes
	Backups  Backups
	Pages    Pages
	Silences Silences
	Audits   Audits
}

type adminHandler struct {
	handler
	Administration
}

// Admin returns the handler of the administrator's orders: POST /v1/tokens, GET
// /v1/tokens, DELETE /v1/tokens/ID, DELETE /v1/nodes/NODE, POST /v1/backup, POST
// /v1/page-links, GET and POST /v1/silences, DELETE /v1/silences/ID, GET /v1/audit. It
// authorizes every caller: it is for a unix socket that only the administrator can open.
func Admin(a Administration, now func() time.Time, log *slog.Logger) http.Handler {
	h := &adminHandler{handler{now: now, log: log}, a}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/tokens", h.serveTokens)
	mux.HandleFunc("/v1/tokens/{id}", h.serveToken)
	mux.HandleFunc("/v1/nodes/{node}", h.serveNode)
	mux.HandleFunc("/v1/backup", h.serveBackup)
	mux.HandleFunc("/v1/page-links", h.servePageLinks)
	mux.HandleFunc("/v1/silences", h.serveSilences)
	mux.HandleFunc("/v1/silences/{id}", h.serveSilence)
	mux.HandleFunc("/v1/audit", h.serveAudit)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, fault.WithHint(fmt.Errorf("%q: %w", r.URL.Path, fault.ErrNotFound), "the paths are /v1/tokens, /v1/nodes/NODE, /v1/backup, /v1/page-links, /v1/silences and /v1/audit"))
	})
	return mux
}

func (h *adminHandler) serveTokens(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodGet, http.MethodPost) {
		return
	}
	if r.Method == http.MethodGet {
		list, err := h.Tokens.List(r.Context())
		if err != nil {
			h.failLogged(w, r, err)
			return
		}
		now := h.now()
		writeJSON(w, http.StatusOK, v1.ListOf(list, func(t *registry.Token) v1.Token { return v1.TokenOf(t, now) }))
		return
	}
	text, made, err := h.createToken(w, r)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	h.log.Info("token made", "token", made.ID, "role", string(made.Role))
	out := v1.TokenOf(&made, h.now())
	out.Text = text
	writeJSON(w, http.StatusCreated, out)
}

func (h *adminHandler) createToken(w http.ResponseWriter, r *http.Request) (string, registry.Token, error) {
	body, err := readBody(w, r)
	if err != nil {
		return "", registry.Token{}, err
	}
	want, err := v1.ParseTokenRequest(body, h.now())
	if err != nil {
		return "", registry.Token{}, err
	}
	return h.Tokens.Create(r.Context(), want.Token())
}

// readBody reads the body of an order.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return httpx.ReadBody(w, r, maxRequestBody, bodyTimeout, bodyTimeout)
}

func (h *adminHandler) serveBackup(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodPost) {
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	order, err := v1.ParseBackupRequest(body)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	// A backup has no time limit.
	c := http.NewResponseController(w)
	if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})); err != nil && !errors.Is(err, http.ErrNotSupported) {
		h.failLogged(w, r, err)
		return
	}
	b, err := h.Backups.Backup(r.Context(), order.Dir)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, b)
}

func (h *adminHandler) servePageLinks(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodPost) {
		return
	}
	url, err := h.Pages.PageLink()
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, v1.PageLink{URL: url})
}

func (h *adminHandler) serveToken(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodDelete) {
		return
	}
	id := r.PathValue("id")
	if err := h.Tokens.Revoke(r.Context(), id); err != nil {
		h.failLogged(w, r, err)
		return
	}
	h.log.Info("token revoked", "token", id)
	w.WriteHeader(http.StatusNoContent)
}

func (h *adminHandler) serveNode(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodDelete) {
		return
	}
	n, err := h.Nodes.Revoke(r.Context(), r.PathValue("node"))
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	h.log.Info("node revoked", "node", n.ID, "name", n.Name)
	writeJSON(w, http.StatusOK, v1.List[v1.Node]{Items: []v1.Node{v1.NodeOf(&n)}})
}

func (h *adminHandler) serveSilences(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodGet, http.MethodPost) {
		return
	}
	now := h.now()
	one := func(s *query.Silence) v1.Silence { return v1.SilenceOf(s, now) }
	if r.Method == http.MethodGet {
		list := h.Silences.AllSilences()
		v1.SortSilences(list, now)
		writeJSON(w, http.StatusOK, v1.ListOf(list, one))
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	order, err := v1.ParseSilenceRequest(body)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	want, err := order.Silence(now)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	made, err := h.Silences.Silence(r.Context(), want)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	h.log.Info("silence made", "silence", made.ID)
	writeJSON(w, http.StatusCreated, one(&made))
}

func (h *adminHandler) serveSilence(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodDelete) {
		return
	}
	ended, err := h.Silences.EndSilence(r.Context(), r.PathValue("id"))
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	h.log.Info("silence ended", "silence", ended.ID)
	writeJSON(w, http.StatusOK, v1.SilenceOf(&ended, h.now()))
}

func (h *adminHandler) serveAudit(w http.ResponseWriter, r *http.Request) {
	if !allowMethods(w, r, http.MethodGet) {
		return
	}
	list, err := h.readAudit(r)
	if err != nil {
		h.failLogged(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, v1.ListOf(list, v1.AuditEntryOf))
}

func (h *adminHandler) readAudit(r *http.Request) ([]registry.Audit, error) {
	given, err := parseParameters(r)
	if err != nil {
		return nil, err
	}
	q, err := v1.ParseAuditQuery(given, h.now())
	if err != nil {
		return nil, err
	}
	return h.Audits.Audits(r.Context(), q)
}

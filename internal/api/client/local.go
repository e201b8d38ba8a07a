package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/statedir"
)

// A Local sends administration requests to the server of this machine, over a socket in
// the server's state directory.
type Local struct {
	socket string
	http   *http.Client
}

// OpenLocal returns a Local for the server with this state directory. It may also be the
// state directory of mete up, which has its server's in the subdirectory "server". If state
// is "", it is the default one. OpenLocal does not connect.
func OpenLocal(state string) (*Local, error) {
	if state == "" {
		base, err := statedir.Default(os.Getenv, os.Geteuid())
		if err != nil {
			return nil, err
		}
		return NewLocal(filepath.Join(base, "server")), nil
	}
	if within := filepath.Join(state, "server"); !exists(filepath.Join(state, v1.AdminSocket)) && exists(filepath.Join(within, v1.AdminSocket)) {
		state = within
	}
	return NewLocal(state), nil
}

// exists reports whether a path exists. It also returns true for a path that cannot be
// examined: connecting to it then returns the reason.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// NewLocal returns a Local for the server whose state is in dir. It does not connect.
func NewLocal(dir string) *Local {
	socket := filepath.Join(dir, v1.AdminSocket)
	return &Local{socket, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// CreateToken creates a token. Its Text is the secret that clients send.
func (l *Local) CreateToken(ctx context.Context, want v1.TokenRequest) (v1.Token, error) {
	request, err := json.Marshal(want)
	if err != nil {
		return v1.Token{}, err
	}
	body, err := l.do(ctx, http.MethodPost, "/v1/tokens", request)
	if err != nil {
		return v1.Token{}, err
	}
	t, err := decode[v1.Token]("token", body)
	return *t, err
}

// PageLink makes a URL that opens the server's page in one browser.
func (l *Local) PageLink(ctx context.Context) (string, error) {
	body, err := l.do(ctx, http.MethodPost, "/v1/page-links", nil)
	if err != nil {
		return "", err
	}
	link, err := decode[v1.PageLink]("link", body)
	return link.URL, err
}

// Tokens lists the tokens, without their texts.
func (l *Local) Tokens(ctx context.Context) ([]v1.Token, error) {
	body, err := l.do(ctx, http.MethodGet, "/v1/tokens", nil)
	if err != nil {
		return nil, err
	}
	return decodeList[v1.Token](body)
}

// RevokeToken revokes a token.
func (l *Local) RevokeToken(ctx context.Context, id string) error {
	_, err := l.do(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil)
	return err
}

// Silence creates a silence, which suppresses notifications of alerts.
func (l *Local) Silence(ctx context.Context, want v1.SilenceRequest) (v1.Silence, error) {
	request, err := json.Marshal(want)
	if err != nil {
		return v1.Silence{}, err
	}
	body, err := l.do(ctx, http.MethodPost, "/v1/silences", request)
	if err != nil {
		return v1.Silence{}, err
	}
	s, err := decode[v1.Silence]("silence", body)
	return *s, err
}

// Silences lists the silences, those that ended lately included.
func (l *Local) Silences(ctx context.Context) ([]v1.Silence, error) {
	body, err := l.do(ctx, http.MethodGet, "/v1/silences", nil)
	if err != nil {
		return nil, err
	}
	return decodeList[v1.Silence](body)
}

// EndSilence ends a silence.
func (l *Local) EndSilence(ctx context.Context, id string) error {
	_, err := l.do(ctx, http.MethodDelete, "/v1/silences/"+url.PathEscape(id), nil)
	return err
}

// Audit returns the latest entries of the audit log, newest first. Its parameters are those of [v1.ParseAuditQuery].
func (l *Local) Audit(ctx context.Context, parameters url.Values) ([]v1.AuditEntry, error) {
	body, err := l.do(ctx, http.MethodGet, "/v1/audit?"+parameters.Encode(), nil)
	if err != nil {
		return nil, err
	}
	return decodeList[v1.AuditEntry](body)
}

// RevokeNode revokes the right of a node or a downstream server, given by id or name, to
// send data. It returns the node.
func (l *Local) RevokeNode(ctx context.Context, which string) (n v1.Node, err error) {
	body, err := l.do(ctx, http.MethodDelete, "/v1/nodes/"+url.PathEscape(which), nil)
	if err != nil {
		return n, err
	}
	list, err := decodeList[v1.Node](body)
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("the server revoked %d machines: %w", len(list), fault.ErrInvalid)
	}
	if err != nil {
		return n, err
	}
	return list[0], nil
}

// Backup copies the server's data into a new directory, given by its absolute path. A copy
// may take long, so only ctx limits the time.
func (l *Local) Backup(ctx context.Context, dir string) (b v1.Backup, err error) {
	request, err := json.Marshal(v1.BackupRequest{Dir: dir})
	if err != nil {
		return b, err
	}
	body, err := roundTrip(ctx, l.http, http.MethodPost, "http://mete/v1/backup", request)
	if err != nil {
		return b, l.explain(err)
	}
	got, err := decode[v1.Backup]("backup", body)
	return *got, err
}

func (l *Local) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	answer, err := doTimeout(ctx, l.http, method, "http://mete"+path, body)
	return answer, l.explain(err)
}

// explain adds a hint if no server answers, or if this user may not administer the server.
func (l *Local) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fault.WithHint(fmt.Errorf("%s: no server runs here: %w", l.socket, fault.ErrUnavailable),
			"run this on the server's machine, as the user that runs it; --state names its state directory if it is not the default (--state /var/lib/mete-server for the service of the package)")
	case errors.Is(err, fs.ErrPermission):
		return fault.WithHint(fmt.Errorf("%s: %w", l.socket, fault.ErrDenied), "only the user that runs the server may do this: try it with sudo")
	}
	return err
}

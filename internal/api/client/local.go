package client

import (
	"context"
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
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/x/statedir"
)

// A Local gives orders to the server of this machine, over a socket in its state
// directory.
type Local struct {
	socket string
	http   *http.Client
}

// OpenLocal returns the way to the server whose state a person names: that of mete
// server, or that of mete up, which has a server's in it. "" is the one that both
// take by themselves. Nothing is sent yet.
func OpenLocal(state string) (*Local, error) {
	if state == "" {
		all, err := statedir.Default(os.Getenv, os.Geteuid())
		if err != nil {
			return nil, err
		}
		return NewLocal(filepath.Join(all, "server")), nil
	}
	if within := filepath.Join(state, "server"); !exists(filepath.Join(state, v1.AdminSocket)) && exists(filepath.Join(within, v1.AdminSocket)) {
		state = within
	}
	return NewLocal(state), nil
}

// exists says whether there is something at a path, or may be: what cannot be
// looked at is tried, so that the error is told.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// NewLocal returns the way to the server whose state is in dir. Nothing is sent
// yet.
func NewLocal(dir string) *Local {
	socket := filepath.Join(dir, v1.AdminSocket)
	return &Local{socket, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// CreateToken makes a token of the role, cluster, uses and end in want. The text
// is what its bearer shows.
func (l *Local) CreateToken(ctx context.Context, want registry.Token) (text string, made registry.Token, err error) {
	body, err := l.do(ctx, http.MethodPost, "/v1/tokens", v1.TokenRequestJSON(want))
	if err != nil {
		return "", made, err
	}
	made, text, err = v1.ParseToken(body)
	return text, made, err
}

// Tokens lists the tokens, without their texts.
func (l *Local) Tokens(ctx context.Context) ([]registry.Token, error) {
	body, err := l.do(ctx, http.MethodGet, "/v1/tokens", nil)
	if err != nil {
		return nil, err
	}
	return v1.ParseTokens(body)
}

// RevokeToken ends a token.
func (l *Local) RevokeToken(ctx context.Context, id string) error {
	_, err := l.do(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil)
	return err
}

// RevokeNode takes the right to send from a machine or a server below, by id or
// by name, and returns which that is.
func (l *Local) RevokeNode(ctx context.Context, which string) (n query.Node, err error) {
	body, err := l.do(ctx, http.MethodDelete, "/v1/nodes/"+url.PathEscape(which), nil)
	if err != nil {
		return n, err
	}
	list, err := v1.ParseNodes(body)
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("the server revoked %d machines: %w", len(list), fault.ErrInvalid)
	}
	if err != nil {
		return n, err
	}
	return list[0], nil
}

// Backup copies what the server keeps into a new directory with an absolute path.
func (l *Local) Backup(ctx context.Context, dir string) (b v1.Backup, err error) {
	answer, err := roundTrip(ctx, l.http, http.MethodPost, "http://mete/v1/backup", v1.BackupRequestJSON(dir))
	if err != nil {
		return b, l.explain(err)
	}
	return v1.ParseBackup(answer)
}

func (l *Local) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	answer, err := doTimeout(ctx, l.http, method, "http://mete"+path, body)
	return answer, l.explain(err)
}

// explain says what to do where there is no server, or one for others.
func (l *Local) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fault.WithHint(fmt.Errorf("%s: no server runs here: %w", l.socket, fault.ErrUnavailable),
			"run this on the server's machine, as who runs it; --state names its state directory where that is another")
	case errors.Is(err, fs.ErrPermission):
		return fault.WithHint(fmt.Errorf("%s: %w", l.socket, fault.ErrDenied), "only who runs the server may do this: try it with sudo")
	}
	return err
}

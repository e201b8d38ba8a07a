package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/sameuser"
)

// Listen opens a TCP address to serve on. Its errors have hints.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	_, badAddr := errors.AsType[*net.AddrError](err)
	_, badName := errors.AsType[*net.DNSError](err)
	switch {
	case badAddr || badName:
		return nil, fault.WithHint(fmt.Errorf("--listen %q: %w: %w", addr, err, fault.ErrInvalid), "give an address of this machine and a port: :9797, 127.0.0.1:9797, [::1]:9797")
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: the port is in use: %w", addr, fault.ErrConflict),
			"check whether mete runs already, or choose another port with --listen")
	case errors.Is(err, syscall.EACCES):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", addr, fault.ErrDenied), "ports below 1024 need root: choose a higher one with --listen")
	case err != nil:
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", addr, err), "choose an address of this machine with --listen")
	}
	return ln, nil
}

// ListenAdmin opens the socket in the state directory, which serves this user and root. The
// caller holds an open [Server] of that state, so ListenAdmin replaces a socket that an
// earlier server left.
func ListenAdmin(state string) (net.Listener, error) {
	path := filepath.Join(state, v1.AdminSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return sameuser.Listen(ln), nil
}

// Serve serves on ln until ctx ends, with TLS if secure is not nil. Its time-outs bound the
// resources of slow and silent clients, and clients that do not identify themselves have few
// connections for a short time.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, secure *tls.Config) error {
	srv := &http.Server{
		Handler:           h,
		TLSConfig:         secure,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Each connection buffers its largest frame and unread bodies; small limits
		// allow for a thousand connections.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 128 << 10},
		// It would log every broken connection of a client.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if ln.Addr().Network() != "unix" { // whose file only the administrator can open
		ln = newConnections(connLimitsOf(maxFiles())).track(srv, ln)
	}
	return ServeUntil(ctx, srv, ln)
}

// ServeUntil runs srv on ln until ctx ends, with TLS if srv.TLSConfig is not nil. Requests
// in flight then have two seconds to finish.
func ServeUntil(ctx context.Context, srv *http.Server, ln net.Listener) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		serve := srv.Serve
		if srv.TLSConfig != nil {
			serve = func(ln net.Listener) error { return srv.ServeTLS(ln, "", "") }
		}
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("%s: %w", ln.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}

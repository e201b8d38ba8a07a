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
)

// Listen opens an address to serve on.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	_, badAddr := errors.AsType[*net.AddrError](err)
	_, badName := errors.AsType[*net.DNSError](err)
	switch {
	case badAddr || badName:
		return nil, fault.WithHint(fmt.Errorf("--listen %q: %w: %w", addr, err, fault.ErrInvalid), "write an address of this machine and a port: :9797, 127.0.0.1:9797, [::1]:9797")
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: the port is in use: %w", addr, fault.ErrConflict),
			"perhaps mete runs already; else choose another port with --listen")
	case errors.Is(err, syscall.EACCES):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", addr, fault.ErrDenied), "ports below 1024 are for root: choose a higher one with --listen")
	case err != nil:
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", addr, err), "choose an address of this machine with --listen")
	}
	return ln, nil
}

// ListenAdmin opens the socket of administration in the state directory. Who
// may use it is who may use the directory. The caller holds an open [Server] of
// that state, so a socket that is there was left behind, and is replaced.
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
	return ln, nil
}

// Serve answers on ln until ctx ends: with TLS where a configuration is given.
// Its time limits are such that a slow or silent visitor holds nothing for long.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, secure *tls.Config) error {
	srv := &http.Server{
		Handler:           h,
		TLSConfig:         secure,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Each connection keeps a buffer of its largest frame, and what it has
		// received of bodies that nobody has read: a thousand may come at once.
		HTTP2: &http.HTTP2Config{MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 128 << 10},
		// It would tell of broken connections of visitors, which concern nobody.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return ServeUntil(ctx, srv, ln)
}

// ServeUntil has srv answer on ln until ctx ends: with TLS where it has a
// configuration for it. Who still reads then has a moment to finish.
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
		// ctx is over already.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}

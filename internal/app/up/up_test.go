package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/toptest"
)

var errUnsupported = fault.ErrUnsupported

// lines passes on what the command prints.
type lines struct{ c chan string }

func (l lines) Write(p []byte) (int, error) {
	l.c <- string(p)
	return len(p), nil
}

// admitting is a Meter with a ledger that admits everyone.
type admitting struct{ *toptest.Meter }

func (admitting) Serve(string)                  {}
func (admitting) Authorize(*http.Request) error { return nil }
func (admitting) PageLink() (string, error)     { return "http://127.0.0.1/#code=once", nil }
func (admitting) Socket() string                { return "/nosuch" }

// start runs the command until stop, which returns its error.
func start(t *testing.T, m *toptest.Meter, args ...string) (printed string, stop func() error) {
	t.Helper()
	t.Setenv("METE_STATE", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	out := lines{make(chan string, 1)}
	cmd := Command(func(context.Context, Options) (Meter, http.Handler, error) { return admitting{m}, nil, nil })
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
	cmd.SetOut(out)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	select {
	case printed = <-out.c:
	case err := <-done:
		cancel()
		t.Fatalf("ended at once: %v", err)
	}
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return printed, stop
}

func TestUp(t *testing.T) {
	m := &toptest.Meter{Tick: time.Millisecond}
	printed, stop := start(t, m)
	for _, want := range []string{"mete up: http://127.0.0.1:", "node-7.example: 8 CPUs, 36 workloads, reader bpf, every 1s", "note: network of 3 groups", "Ctrl-C"} {
		if !strings.Contains(printed, want) {
			t.Errorf("printed %q, want %q in it", printed, want)
		}
	}
	url := strings.Fields(printed)[2]
	for _, path := range []string{"/", "/healthz", "/api/v0/snapshot"} {
		r, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
			t.Errorf("%s: %s, %v", path, r.Status, err)
		}
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	if _, err := fmt.Fprintf(conn, "HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := http.ReadResponse(in, &http.Request{Method: http.MethodHead}); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("stopped by its context: %v, want no error", err)
	}
	if m.Closed != 1 {
		t.Errorf("meter closed %d times, want 1", m.Closed)
	}
	// By now another process may listen at the address.
	if b, err := in.ReadByte(); err == nil {
		t.Errorf("a connection is open after the end: %q", b)
	}
}

func TestMeterEnds(t *testing.T) {
	m := &toptest.Meter{Err: func(step int) error {
		if step == 1 {
			return errUnsupported
		}
		return nil
	}}
	cmd := Command(func(context.Context, Options) (Meter, http.Handler, error) { return m, nil, nil })
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0"})
	cmd.SetOut(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, errUnsupported) || m.Closed != 1 {
		t.Errorf("a meter that is over: %v, closed %d times, want its error, once", err, m.Closed)
	}
}

func TestErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	}()
	used := ln.Addr().String()
	for _, c := range []struct {
		args []string
		want error
		word string
	}{
		{[]string{"--listen", used}, fault.ErrConflict, used},
		{[]string{"--listen", "0.0.0.0:0"}, fault.ErrInvalid, "0.0.0.0:0"},
		{[]string{"--listen", ":0"}, fault.ErrInvalid, "TLS"},
		{[]string{"--listen", "[::]:0"}, fault.ErrInvalid, "TLS"},
		{[]string{"--listen", "192.0.2.1:0"}, fault.ErrInvalid, "TLS"},
		{[]string{"--listen", "node.example:0"}, fault.ErrInvalid, "TLS"},
		{[]string{"--listen", "9797"}, fault.ErrInvalid, "9797"},
		{[]string{"--interval", "1us"}, fault.ErrInvalid, "interval"},
		{[]string{"--interval", "often"}, fault.ErrInvalid, "interval"},
		{[]string{"--reader", "x"}, fault.ErrInvalid, "reader"},
		{[]string{"--demo-power", "--state", "/x"}, fault.ErrInvalid, "--state /x"},
	} {
		cmd := Command(func(context.Context, Options) (Meter, http.Handler, error) {
			t.Errorf("%v: the meter is opened", c.args)
			return nil, nil, errors.ErrUnsupported
		})
		cmd.SetArgs(c.args)
		cmd.SetOut(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) || fault.Hint(err) == "" {
			t.Errorf("%v: %v (hint %q), want %v with %q and a hint", c.args, err, fault.Hint(err), c.want, c.word)
		}
	}
}

func TestInsecureIsAllowedWhenAsked(t *testing.T) {
	printed, stop := start(t, &toptest.Meter{Tick: time.Millisecond}, "--listen", "0.0.0.0:0", "--insecure")
	if !strings.Contains(printed, "http://127.0.0.1:") || !strings.Contains(printed, "everyone who reaches") {
		t.Errorf("printed %q, want an address that can be visited and a warning", printed)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestDemo checks that simulated power is announced at the start and never stored with measured
// power.
func TestDemo(t *testing.T) {
	printed, stop := start(t, &toptest.Meter{Tick: time.Millisecond, Simulated: power.DemoLabel}, "--demo-power")
	for _, want := range []string{"SIMULATED POWER " + power.DemoLabel, "kept until the end"} {
		if !strings.Contains(printed, want) {
			t.Errorf("printed %q, want %q in it", printed, want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	var got Options
	cmd := Command(func(_ context.Context, o Options) (Meter, http.Handler, error) {
		got = o
		return nil, nil, errUnsupported
	})
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--demo-power", "-d", "2s", "--reader", "files", "--container-socket", "/run/a.sock", "--container-socket", "/run/b.sock", "--libvirt", "none", "--connections", "auto"})
	cmd.SetOut(io.Discard)
	want := Options{Tick: 2 * time.Second, Reader: "files", Containers: []string{"/run/a.sock", "/run/b.sock"}, Domains: "none", Connections: "auto", Demo: true}
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, errUnsupported) || !reflect.DeepEqual(got, want) {
		t.Errorf("opened with %+v (%v), want %+v", got, err, want)
	}
}

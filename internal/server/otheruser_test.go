package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/x/sameuser"
)

// TestOtherUser checks a server without TLS: another user of the machine reads nothing, enrolls
// nothing and sends nothing, by TCP or by the socket, even if the modes of the files let it
// connect. The server's own user needs no credential, and a viewer's token reads.
func TestOtherUser(t *testing.T) {
	hosttest.Need(t, "root")
	dir, err := os.MkdirTemp("", "mete-other-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("METE_STATE", dir)
	b := open(t, filepath.Join(dir, "server"), func(c *server.Config) { c.Local = true })
	own, err := server.ListenAdmin(filepath.Join(dir, "server"))
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(ctx, own, b.AdminHandler(b.Handler()), nil) }()
	go func() { ended <- server.Serve(ctx, tcp, b.Handler(), nil) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
	if _, err := sameuser.Publish(tcp.Addr(), own.Addr().String()); err != nil {
		t.Fatal(err)
	}
	url := "http://" + tcp.Addr().String()

	// The server's own user.
	id, err := enroll.Open(enroll.Config{Dir: filepath.Join(dir, "identity"), Server: url, Facts: enroll.Facts{Machine: "m", Boot: "b", Name: "alpha"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent, clock := aBatch(t, id.Node())
	b.url = url
	if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
		t.Errorf("own agent: %+v, %v", r, err)
	}
	reader, err := enroll.ReaderClient(url, token.Token{})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := reader.Get(url + "/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), "alpha") {
		t.Errorf("own command: %s %s, %v", resp.Status, body, err)
	}

	// Another user.
	for _, path := range []string{dir, filepath.Join(dir, "server"), own.Addr().String()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	viewer, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Uses: -1})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(network, address, method, path, body string, header ...string) (status int, text string) {
		err := hosttest.AsOther(t, func() error {
			c, err := net.Dial(network, address)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			// The server may have closed the connection.
			_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s",
				method, path, len(body), strings.Join(append(header, ""), "\r\n"), body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return nil // no answer is none
			}
			b, err := io.ReadAll(resp.Body)
			status, text = resp.StatusCode, string(b)
			return errors.Join(err, resp.Body.Close())
		})
		if err != nil {
			t.Fatal(err)
		}
		return status, text
	}
	claim := `{"machine_id":"m","boot":"b","name":"alpha"}`
	for _, c := range []struct {
		method, path, body, header string
		want                       int
	}{
		{"GET", "/v1/nodes", "", "X-None: 1", 401},
		{"GET", "/v1/usage", "", "X-None: 1", 401},
		{"GET", "/metrics", "", "X-None: 1", 401},
		{"GET", "/api/v1/query?query=1", "", "X-None: 1", 403},
		{"POST", "/v1/enroll", claim, "X-None: 1", 403},
		{"POST", "/v1/batches", "x", token.NodeHeader + ": " + id.Node(), 401},
		{"POST", "/v1/lost", "{}", token.NodeHeader + ": " + id.Node(), 401},
		{"POST", "/v1/page-token", `{"code":"guess"}`, "X-None: 1", 403},
		{"GET", "/v1/nodes", "", "Authorization: Bearer " + viewer, 200},
	} {
		if status, text := ask("tcp", tcp.Addr().String(), c.method, c.path, c.body, c.header); status != c.want || status != 200 && strings.Contains(text, "alpha") {
			t.Errorf("by TCP, %s %s: %d %s, want %d", c.method, c.path, status, text, c.want)
		}
	}
	for _, path := range []string{"/v1/nodes", "/v1/tokens"} {
		if status, text := ask("unix", own.Addr().String(), "GET", path, ""); status != 0 {
			t.Errorf("by the socket, %s: %d %s", path, status, text)
		}
	}
}

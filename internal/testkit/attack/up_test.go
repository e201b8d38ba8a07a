package attack_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit/attack"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestUpUnderAttack attacks mete up, which measures this machine: another user, a page of another
// site, and clients that send nothing or slowly.
func TestUpUnderAttack(t *testing.T) {
	attackStage(t)
	hosttest.Need(t, "root")
	state := attack.ShortDir(t)
	p := attack.Start(t, attack.Config{Memory: mostMemory, Env: []string{"METE_SOCKET=" + filepath.Join(attack.ShortDir(t), "socket")}}, filepath.Join(programs.Dir(t), "mete"), "up", "--listen", "127.0.0.1:0", "--state", state, "--interval", "500ms")
	p.Await(t, "#code=")
	_, rest, _ := strings.Cut(p.Out.String(), "http://")
	address := strings.TrimSuffix(strings.Fields(rest)[0], "/")
	_, rest, _ = strings.Cut(rest, "#code=")
	code := strings.Fields(rest)[0]
	for _, path := range []string{state, filepath.Join(state, "server"), filepath.Join(state, "server", "admin.sock")} {
		if err := os.Chmod(path, 0o777); err != nil { // the kernel names the other end nevertheless
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/api/v0/snapshot", "/v1/nodes", "/v1/usage", "/v1/workloads", "/v1/audit", "/v1/live", "/v1/health", "/metrics", "/api/v1/query?query=up", "/api/v1/rules", "/v1/tokens", "/v1/page-links", "/v1/backup", "/v1/enroll", "/v1/batches", "/v1/states", "/api/v1/write"} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			for _, header := range []string{"X-None: 1", "Authorization: Bearer metepage_guess", "Authorization: Basic cm9vdDo=", "Mete-Node: 1", "X-Forwarded-For: 127.0.0.1"} {
				status, body := attack.CallAsOther(t, attack.Call{Network: "tcp", Address: address, Method: method, Path: path, Headers: []string{header}, Body: "{}"})
				if status < 400 || status >= 500 {
					t.Errorf("%s %s by another user with %s: %d %.200s", method, path, header, status, body)
				}
			}
		}
		if status, body := attack.CallAsOther(t, attack.Call{Network: "unix", Address: filepath.Join(state, "server", "admin.sock"), Method: "GET", Path: path}); status != 0 {
			t.Errorf("%s at the socket by another user: %d %.200s", path, status, body)
		}
	}
	c := attack.NewClient(t)
	base := "http://" + address
	for _, headers := range [][]string{{"Host", "evil.example"}, {"Host", "127.0.0.1.nip.io"}, {"Host", "localhost.evil.example:1"}, {"Host", ""}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}} {
		for _, path := range []string{"/api/v0/snapshot", "/v1/nodes", "/healthz", "/v1/page-token"} {
			for _, method := range []string{"GET", "POST"} {
				if headers[1] == "" {
					continue // a client sends the address then
				}
				if a := attack.Do(t, c, method, base+path, strings.NewReader("{}"), append(headers, "Content-Type", "application/json")...); !is(a.Status, 403, 405, 421) {
					t.Errorf("%s %s with %v: %d %.200s", method, path, headers, a.Status, a.Body)
				}
			}
		}
	}
	for _, path := range []string{"/static/../../../../etc/passwd", "/..%2f..%2fetc/passwd", "/docs/..%2f..%2fserver/ledger.db", "//etc/passwd", "/static/", "/.git/config"} {
		if a := attack.Do(t, c, "GET", base+path, nil); strings.Contains(a.Body, "root:") || strings.Contains(a.Body, "SQLite") || strings.HasPrefix(a.Header.Get("Location"), "//") {
			t.Errorf("%s: %d %.200s", path, a.Status, a.Body)
		}
	}
	// Guesses of the link's code, and then the code itself, which works once.
	open := func(code string) attack.Answer {
		return attack.Do(t, c, "POST", base+"/v1/page-token", strings.NewReader(fmt.Sprintf(`{"code":%q}`, code)), "Content-Type", "application/json")
	}
	for i := range 50 {
		if a := open(fmt.Sprint(code[:len(code)-2], i+10)); a.Status < 400 || a.Status >= 500 {
			t.Errorf("a guess of the code: %d %s", a.Status, a.Body)
		}
	}
	// Connections that send nothing, and requests that come slowly.
	for i := range 3000 {
		s, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(s, "POST /v1/page-token HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
		}
	}
	if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid)); err != nil || len(files) > 1500 {
		t.Errorf("mete up has %d descriptors, %v", len(files), err)
	}
	a := open(code)
	var got struct{ Token string }
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != http.StatusOK || got.Token == "" {
		t.Fatalf("the code beside silent connections: %d %s", a.Status, a.Body)
	}
	if a := open(code); a.Status < 400 {
		t.Errorf("the code works twice: %d", a.Status)
	}
	if a := attack.Do(t, c, "GET", base+"/api/v0/snapshot", nil, attack.Bearer(got.Token)...); a.Status != http.StatusOK {
		t.Errorf("the browser: %d %.200s", a.Status, a.Body)
	}
	p.CheckSecrets(t, got.Token)
	if strings.Contains(p.Log.String(), code) {
		t.Error("the log has the code of the link")
	}
	if err := p.Stop(); err != nil {
		t.Errorf("%v\n%s", err, p.Log.String())
	}
}

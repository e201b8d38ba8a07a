package settings_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/settings"
)

// A program has a setting of each kind.
type program struct {
	listen, database, token string
	names                   []string
	debug                   bool
	queries                 int
	slow                    time.Duration
	size                    int64
}

func newProgram() (*program, *settings.Set) {
	p := &program{listen: "127.0.0.1:1", queries: 8, slow: time.Second}
	s := settings.New("server")
	s.Text(&p.listen, "listen", "ADDRESS", "where").Check(settings.Address)
	s.Text(&p.database, "database", "LEDGER", "what").SecretURL("use PGPASSFILE")
	s.Text(&p.token, "up-token", "TOKEN", "secret").Secret()
	s.List(&p.names, "host-name", "HOST", "names")
	s.Switch(&p.debug, "debug", "more")
	s.Number(&p.queries, 1, 100, "queries", "N", "how many")
	s.Duration(&p.slow, 0, time.Hour, "slow", "how slow")
	s.Size(&p.size, 1, 1<<40, "size", "how large")
	return p, s
}

// write writes a file that only its owner can write.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mete.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func environment(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

// A flag goes before the environment, that before the file, and that before the default; each value
// says where it is from.
func TestPrecedence(t *testing.T) {
	path := write(t, `# comment
agent:
  unknown_here: 1
server:
  listen: "127.0.0.1:2"
  host_name: [a, b]
  debug: true
  queries: 9
  slow: 2s
  size: 20GiB
  up_token: "@/etc/token"
`)
	p, s := newProgram()
	for _, one := range s.All() {
		switch one.Name {
		case "queries":
			if err := one.SetFlag("11"); err != nil {
				t.Fatal(err)
			}
		case "host-name":
			for _, text := range []string{"x", "y"} {
				if err := one.SetFlag(text); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.Load(environment(map[string]string{"METE_CONFIG": path, "METE_SERVER_SLOW": "3s", "METE_SERVER_QUERIES": "10", "METE_SERVER_HOST_NAME": "c"})); err != nil {
		t.Fatal(err)
	}
	want := program{listen: "127.0.0.1:2", token: "@/etc/token", names: []string{"x", "y"}, debug: true, queries: 11, slow: 3 * time.Second, size: 20 << 30}
	if diff := gocmp.Diff(want, *p, gocmp.AllowUnexported(program{})); diff != "" {
		t.Errorf("settings (-want +have):\n%s", diff)
	}
	origins := map[string]string{}
	for _, one := range s.All() {
		origins[one.Name] = one.Origin().String()
	}
	if diff := gocmp.Diff(map[string]string{"config": "environment METE_CONFIG", "listen": path + ":5", "database": "default", "up-token": path + ":11", "host-name": "flag host-name",
		"debug": path + ":7", "queries": "flag queries", "slow": "environment METE_SERVER_SLOW", "size": path + ":10"}, origins); diff != "" {
		t.Errorf("origins (-want +have):\n%s", diff)
	}
}

// Several names in a variable are a list.
func TestEnvironmentList(t *testing.T) {
	p, s := newProgram()
	if err := s.Load(environment(map[string]string{"METE_CONFIG": write(t, ""), "METE_SERVER_HOST_NAME": "a,b"})); err != nil || strings.Join(p.names, " ") != "a b" {
		t.Errorf("names %q, %v", p.names, err)
	}
}

// Each mistake is an error at its place, with a hint where it helps.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ text, err, hint string }{
		{"server:\n  lisen: x\n", `:2:3: unknown key "server.lisen": invalid`, "perhaps listen"},
		{"server:\n  zzz: x\n", `:2:3: unknown key "server.zzz": invalid`, "possible here: database, debug"},
		{"server:\n  config: x\n", `:2:3: unknown key "server.config"`, ""},
		{"servr: {}\n", `:1:1: unknown section "servr": invalid`, "perhaps server"},
		{"server:\n  debug: true\n  debug: false\n", `:3:3: `, ""},
		{"server: {}\nserver: {}\n", `:2:1: `, ""},
		{"server:\n  debug: yes\n", `:2:10: server.debug: want true or false, not text: invalid`, ""},
		{"server:\n  listen: 9797\n", `:2:11: server.listen: want text, not a number: invalid`, "quotes"},
		{"server:\n  listen: \"9797\"\n", `:2:11: server.listen "9797": invalid`, "write an address and a port"},
		{"server:\n  listen: \"a:99999\"\n", `:2:11: server.listen "a:99999": invalid`, ""},
		{"server:\n  listen:\n", `server.listen has no value, and is a text: invalid`, ""},
		{"server:\n  listen: [a]\n", `:2:11: server.listen: want text, not a list: invalid`, ""},
		{"server:\n  listen: {a: b}\n", `server.listen: want text, not a mapping: invalid`, ""},
		{"server:\n  queries: 101\n", `:2:12: server.queries "101": write a number from 1 to 100: invalid`, ""},
		{"server:\n  queries: 1.5\n", `:2:12: server.queries: want number, not a fraction: invalid`, ""},
		{"server:\n  slow: 5\n", `:2:9: server.slow: want duration, not a number: invalid`, "unit"},
		{"server:\n  slow: 2h\n", `:2:9: server.slow "2h": from 0s to 1h0m0s: invalid`, ""},
		{"server:\n  size: 3 apples\n", `:2:9: server.size "3 apples": write it as 20GiB or 500M: invalid`, ""},
		{"server:\n  host_name: a\n", `:2:14: server.host_name: want list of texts, not text: invalid`, "[A, B]"},
		{"server:\n  host_name: [a, 2]\n", `:2:18: server.host_name[1]: want text, not a number: invalid`, ""},
		{"server:\n  up_token: mete_secret\n", `:2:13: server.up_token: it is a secret, and many may read this file: invalid`, "@FILE"},
		{"server:\n  database: postgres://me:word@db/mete\n", `:2:13: server.database: it holds a password, and many may read this file: invalid`, "PGPASSFILE"},
		{"server:\n  database: postgres://me@db/mete?password=word\n", `:2:13: server.database: it holds a secret, password`, "PGPASSFILE"},
		{"- a\n", `:1:1: the file has to be a mapping`, ""},
		{"server: 5\n", `server has to be a mapping`, ""},
		{"server:\n  debug: true\n---\nserver:\n  debug: false\n", `a second document`, ""},
		{"server:\n  debug: &a true\n", `server.debug: want true or false, not a YAML`, ""},
		{"server:\n  debug: [\n", `: invalid`, ""},
		{"server:\n\tdebug: true\n", `:2:`, ""},
	} {
		path := write(t, c.text)
		_, s := newProgram()
		err := s.Load(environment(map[string]string{"METE_CONFIG": path}))
		if !errors.Is(err, fault.ErrInvalid) || !strings.HasPrefix(err.Error(), path+":") || !strings.Contains(err.Error(), c.err) || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%q: error %v, hint %q; want %s, %q", c.text, err, fault.Hint(err), c.err, c.hint)
		}
		for _, secret := range []string{"word@", "=word", "mete_secret"} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: the error has the secret: %v", c.text, err)
			}
		}
	}
}

// A wrong variable names itself.
func TestMistakenVariable(t *testing.T) {
	_, s := newProgram()
	err := s.Load(environment(map[string]string{"METE_CONFIG": write(t, ""), "METE_SERVER_SLOW": "soon"}))
	if want := `METE_SERVER_SLOW "soon": write it with a unit, as 500ms, 10s or 2m: invalid`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// A file that is named must exist, and only root and this user may have written it.
func TestFileOfOthers(t *testing.T) {
	path := write(t, "server: {}\n")
	_, s := newProgram()
	if err := s.Load(environment(map[string]string{"METE_CONFIG": path + "x"})); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
		t.Errorf("missing file: %v, want not found", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(environment(map[string]string{"METE_CONFIG": path})); !errors.Is(err, fault.ErrDenied) || fault.Hint(err) == "" {
		t.Errorf("file that all can write: %v, want permission denied", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(environment(map[string]string{"METE_CONFIG": path})); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("file of 2 MiB: %v, want invalid", err)
	}
}

// Shown values have no secrets.
func TestHidden(t *testing.T) {
	_, s := newProgram()
	for _, one := range s.All() {
		give := map[string]string{"up-token": "mete_hunter2", "database": "postgres://me:hunter2@db/mete"}[one.Name]
		if give == "" {
			continue
		}
		if err := one.SetFlag(give); err != nil {
			t.Fatal(err)
		}
		if shown := strings.Join(one.Texts(), ""); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "(secret)") {
			t.Errorf("%s shows %q", one.Name, shown)
		}
	}
}

// FuzzFile: no file makes the parser panic, and none sets a value without saying where.
func FuzzFile(f *testing.F) {
	for _, text := range []string{"server:\n  listen: \"a:1\"\n", "server: {debug: true}", "a: &b [*b]", "? a\n: b", "server: !!str x", "server:\n  <<: {debug: true}\n", "'\n", "server:\n  host_name:\n  - a\n  -\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, s := newProgram()
		if err := s.LoadText("f", []byte(text)); err != nil {
			if !errors.Is(err, fault.ErrInvalid) || !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		for _, one := range s.All() {
			if one.Name == "queries" && (p.queries != 8) != (one.Origin().Kind == settings.File) && p.queries != 8 {
				t.Errorf("%q: queries %d from %v", text, p.queries, one.Origin())
			}
		}
	})
}

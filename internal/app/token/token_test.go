package token_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/app/token"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/ui/cli"
)

// A ring stores tokens in memory.
type ring struct{ list []registry.Token }

func (r *ring) Create(_ context.Context, want registry.Token) (string, registry.Token, error) {
	if want.Uses == 0 {
		want.Uses = 1
	}
	want.ID, want.Created = fmt.Sprintf("abcd%d", len(r.list)), time.Now()
	r.list = append(r.list, want)
	return "mete_" + want.ID + "_secret", want, nil
}

func (r *ring) List(context.Context) ([]registry.Token, error) { return r.list, nil }

func (r *ring) Revoke(_ context.Context, id string) error {
	for i := range r.list {
		if r.list[i].ID == id {
			r.list[i].Revoked = time.Now()
			return nil
		}
	}
	return fmt.Errorf("token %q: %w", id, fault.ErrNotFound)
}

func (r *ring) PageLink() (string, error) { return "http://127.0.0.1:9797/#code=once", nil }

// serve runs a server for the state directory METE_STATE.
func serve(t *testing.T) *ring {
	t.Helper()
	all := t.TempDir()
	t.Setenv("METE_STATE", all)
	dir := filepath.Join(all, "server")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &ring{}
	testkit.ServeUnix(t, filepath.Join(dir, v1.AdminSocket), api.Admin(api.Administration{Tokens: r, Pages: r}, time.Now, slog.New(slog.DiscardHandler)))
	return r
}

func mete(line string) (stdout, stderr string, err error) {
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(token.Command())
	cli.Complete(root)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(strings.Fields(line))
	err = root.ExecuteContext(context.Background())
	return out.String(), errs.String(), err
}

func TestLifeOfAToken(t *testing.T) {
	r := serve(t)
	out, errs, err := mete("token create --cluster lab --uses 20 --expires 1h")
	if err != nil || out != "mete_abcd0_secret\n" || !strings.HasPrefix(errs, "token abcd0 enrolls 20 machines into cluster lab, until ") {
		t.Fatalf("create: %q, %q, %v", out, errs, err)
	}
	if left := time.Until(r.list[0].Expires); left < 59*time.Minute || left > time.Hour || r.list[0].Role != registry.Agent {
		t.Errorf("asked for %+v", r.list[0])
	}
	out, errs, err = mete("token create --role viewer --expires never -o json")
	if err != nil || errs != "" || !strings.Contains(out, `"token":"mete_abcd1_secret"`) || !r.list[1].Expires.IsZero() {
		t.Errorf("create as JSON: %q, %q, %v", out, errs, err)
	}
	if out, _, err = mete("token revoke abcd0"); err != nil || out != "revoked abcd0\n" {
		t.Errorf("revoke: %q, %v", out, err)
	}
	for form, want := range map[string]string{"table": "abcd0  agent   lab      revoked         20  ", "csv": "abcd0,agent,lab,revoked,20,", "json": `"state":"revoked"`} {
		if out, _, err = mete("token list -o " + form); err != nil || !strings.Contains(out, want) || strings.Contains(out, "secret") {
			t.Errorf("list -o %s: %v\n%s", form, err, out)
		}
	}
	for _, state := range []string{os.Getenv("METE_STATE"), filepath.Join(os.Getenv("METE_STATE"), "server")} {
		if out, _, err = mete("token list --state " + state); err != nil || !strings.Contains(out, "abcd1") {
			t.Errorf("list --state %s: %v\n%s", state, err, out)
		}
	}
	if out, errs, err = mete("token link"); err != nil || out != "http://127.0.0.1:9797/#code=once\n" || errs != "" {
		t.Errorf("link: %q, %q, %v", out, errs, err)
	}
	if _, _, err = mete("token revoke nosuch"); cli.Code(err) != cli.NotFound || fault.Hint(err) == "" {
		t.Errorf("revoke of none: %v", err)
	}
}

func TestErrors(t *testing.T) {
	t.Setenv("METE_STATE", t.TempDir())
	for _, c := range []struct {
		line, err, hint string
		code            int
	}{
		{"token create", "no server runs here", "run this on the server's machine", cli.Unavailable},
		{"token list", "no server runs here", "run this on the server's machine", cli.Unavailable},
		{"token link", "no server runs here", "run this on the server's machine", cli.Unavailable},
		{"token revoke x", "no server runs here", "run this on the server's machine", cli.Unavailable},
		{"token create --role king", `role "king"`, "it is one of agent", cli.Invalid},
		{"token create --uses -2", "uses -2", "-1 for any number", cli.Invalid},
		{"token create --role viewer --uses 2", "of a viewer's token", "", cli.Invalid},
		{"token create --expires soon", `--expires "soon"`, "write 30m", cli.Invalid},
		{"token create --expires 0s", `--expires "0s"`, "write 30m", cli.Invalid},
		{"token create -o csv", `-o "csv"`, "it is one of text, json", cli.Invalid},
		{"token list -o text", `-o "text"`, "it is one of table", cli.Invalid},
		{"token revoke", "an argument is missing: mete token revoke ID", "mete token revoke --help", cli.Invalid},
	} {
		_, _, err := mete(c.line)
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(fault.Hint(err), c.hint) || cli.Code(err) != c.code {
			t.Errorf("mete %s: %v; %s (%d), want %s; %s (%d)", c.line, err, fault.Hint(err), cli.Code(err), c.err, c.hint, c.code)
		}
	}
}

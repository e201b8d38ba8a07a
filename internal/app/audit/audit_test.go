package audit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/app/audit"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/ui/cli"
)

// An auditLog answers each query with the same entries, and keeps the query.
type auditLog struct{ asked registry.AuditQuery }

func (l *auditLog) Audits(_ context.Context, q registry.AuditQuery) ([]registry.Audit, error) {
	l.asked = q
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	all := []registry.Audit{{At: at, Actor: "local", Action: "node.revoke", Object: "web\x1b[2J", Detail: "with its clones"}, {At: at, Actor: "N1", Action: "node.renew", Object: "N1"}}
	if q.About == "none" {
		all = nil
	}
	return all[:min(q.Limit, len(all))], nil
}

// serve runs a server for the state directory METE_STATE.
func serve(t *testing.T) *auditLog {
	t.Helper()
	all := t.TempDir()
	t.Setenv("METE_STATE", all)
	dir := filepath.Join(all, "server")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l := &auditLog{}
	testkit.ServeUnix(t, filepath.Join(dir, v1.AdminSocket), api.Admin(api.Administration{Audits: l}, time.Now, slog.New(slog.DiscardHandler)))
	return l
}

func mete(line string) (stdout, stderr string, err error) {
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(audit.Command())
	cli.Complete(root)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(slices.Insert(strings.Fields(line), 0, "audit"))
	err = root.ExecuteContext(context.Background())
	return out.String(), errs.String(), err
}

func TestForms(t *testing.T) {
	serve(t)
	for form, want := range map[string][]string{
		"table": {"TIME", "ACTOR", "local  node.revoke  ", "with its clones", "N1     node.renew   N1"},
		"csv":   {"at,actor,action,object,detail\n2026-03-01T12:00:00Z,local,node.revoke,", "\n2026-03-01T12:00:00Z,N1,node.renew,N1,\n"},
		"json":  {"{\"audit\":[\n", `{"at":"2026-03-01T12:00:00Z","actor":"local","action":"node.revoke","object":"`},
	} {
		out, errs, err := mete("-o " + form)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s lacks %q:\n%s", form, w, out)
			}
		}
		if err != nil || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%s: %q, %v\n%q", form, errs, err, out)
		}
	}
	if out, errs, err := mete("--limit 1 -o csv"); err != nil || strings.Count(out, "\n") != 2 || errs != "there may be older entries; --limit shows more than 1, up to 10000\n" {
		t.Errorf("limited: %q, %q, %v", out, errs, err)
	}
	if out, errs, err := mete("--about none"); err != nil || errs != "" || out != "the audit log has no such entries\n" {
		t.Errorf("none: %q, %q, %v", out, errs, err)
	}
}

// The flags select entries.
func TestFlags(t *testing.T) {
	l := serve(t)
	now := time.Now()
	if _, _, err := mete("--from 2h --until -1h --action token --about N1 --limit 50"); err != nil {
		t.Fatal(err)
	}
	q := l.asked
	since := func(at time.Time, ago time.Duration) bool { return now.Add(-ago).Sub(at).Abs() < time.Minute }
	if !since(q.From, 2*time.Hour) || !since(q.To, time.Hour) || q.Action != "token" || q.About != "N1" || q.Limit != 50 {
		t.Errorf("asked for %+v", q)
	}
	for line, want := range map[string]string{
		"-o xml": "it is one of table, csv, json", "--from x": "write a time as", "--since 1h --until 2h": "from has to be before to",
		"--limit -1": "from 0 to 10000", "--limit 10001": "from 0 to 10000",
	} {
		if _, _, err := mete(line); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(fault.Hint(err), want) {
			t.Errorf("%s: %v; %s", line, err, fault.Hint(err))
		}
	}
	t.Setenv("METE_STATE", t.TempDir())
	if _, _, err := mete(""); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

package silence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"mete.dev/mete/internal/app/silence"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/ui/cli"
)

// A shelf keeps silences in memory.
type shelf struct{ list []query.Silence }

func (s *shelf) Silence(_ context.Context, made query.Silence) (query.Silence, error) {
	made.ID = fmt.Sprint("s", len(s.list))
	s.list = append(s.list, made)
	return made, nil
}

func (s *shelf) EndSilence(_ context.Context, id string) (query.Silence, error) {
	for i := range s.list {
		if s.list[i].ID == id {
			s.list[i].Ends = time.Now()
			return s.list[i], nil
		}
	}
	return query.Silence{}, fmt.Errorf("silence %q: %w", id, fault.ErrNotFound)
}

func (s *shelf) AllSilences() []query.Silence { return s.list }

// serve runs a server for the state directory METE_STATE.
func serve(t *testing.T) *shelf {
	t.Helper()
	all := t.TempDir()
	t.Setenv("METE_STATE", all)
	t.Setenv("SUDO_USER", "ann")
	dir := filepath.Join(all, "server")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &shelf{}
	testkit.ServeUnix(t, filepath.Join(dir, v1.AdminSocket), api.Admin(api.Administration{Silences: s}, time.Now, slog.New(slog.DiscardHandler)))
	return s
}

func mete(args ...string) (string, error) {
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(silence.Command())
	cli.Complete(root)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"silence"}, args...))
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

func TestLifeOfASilence(t *testing.T) {
	s := serve(t)
	out, err := mete("create", "alertname=Down", "node=~rack1-.*", "--for", "1h", "--comment", "new switch")
	if err != nil || !strings.Contains(out, `alertname="Down", node=~"rack1-.*"`) || !strings.Contains(out, "s0") {
		t.Fatalf("create: %q, %v", out, err)
	}
	made := s.list[0]
	if left := time.Until(made.Ends); left < 59*time.Minute || left > time.Hour || made.By != "ann" || made.Comment != "new switch" || made.State(time.Now()) != "active" {
		t.Errorf("asked for %+v", made)
	}
	if out, err = mete("create", "cluster=lab", "--by", "bob", "-o", "json"); err != nil || !strings.Contains(out, `"created_by":"bob"`) || !strings.Contains(out, `"state":"active"`) {
		t.Errorf("create as JSON: %q, %v", out, err)
	}
	if out, err = mete("end", "s0"); err != nil || out != "ended s0\n" {
		t.Errorf("end: %q, %v", out, err)
	}
	if out, err = mete("end", "s9"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("end of none: %q, %v", out, err)
	}
	if out, err = mete("list"); err != nil || strings.Index(out, "s1") > strings.Index(out, "s0") || !strings.Contains(out, "expired") {
		t.Errorf("list: %q, %v", out, err)
	}
	out, err = mete("list", "-o", "json")
	var list v1.List[v1.Silence]
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list.Items) != 2 || list.Items[1].ID != "s0" {
		t.Errorf("list as JSON: %q, %v", out, err)
	}
	if out, err = mete("list", "-o", "csv"); err != nil || !strings.HasPrefix(out, "id,state,matchers,starts_at,ends_at,created_by,comment\n") {
		t.Errorf("list as CSV: %q, %v", out, err)
	}
}

func TestInvalid(t *testing.T) {
	s := serve(t)
	for _, args := range [][]string{
		{"create", "Down"}, {"create", "node=~("}, {"create", "node=~.*"}, {"create", "a=b", "--for", "x"}, {"create", "a=b", "--for", "400d"}, {"create", "a=b", "--for", "0s"},
		{"create", "a=b", "--comment", strings.Repeat("x", 501)}, {"create", "a=b", "-o", "yaml"}, {"list", "-o", "yaml"},
	} {
		if out, err := mete(args...); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" || len(s.list) > 0 {
			t.Errorf("%v: %q, %v, %q", args, out, err, fault.Hint(err))
		}
	}
}

package top_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/testkit/toptest"
)

// run executes the command with a fake meter.
func run(ctx context.Context, m *toptest.Meter, args ...string) (string, error) {
	cmd := top.Command(func(_ context.Context, o top.Options) (top.Meter, error) {
		if o.Reader == "bpf" {
			return nil, fault.ErrUnsupported
		}
		return m, nil
	})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestBatchText(t *testing.T) {
	m := &toptest.Meter{}
	out, err := run(t.Context(), m, "-b", "-n", "2", "--flat", "--sort", "mem", "--filter", "slurm")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out, "TOTAL = the machine"); got != 2 {
		t.Errorf("-n 2 prints %d tables, want 2:\n%s", got, out)
	}
	if strings.Contains(out, "\x1b") || !strings.Contains(out, "▼MEMORY") || strings.Contains(out, "sshd") {
		t.Errorf("text is not plain, sorted by memory and filtered:\n%s", out)
	}
	if m.Closed != 1 {
		t.Errorf("meter closed %d times, want 1", m.Closed)
	}
}

func TestBatchJSON(t *testing.T) {
	out, err := run(t.Context(), &toptest.Meter{}, "-o", "json", "-n", "2")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("-n 2 prints %d lines, want a document on each of 2", len(lines))
	}
	for i, l := range lines {
		var got live.Machine
		if err := json.Unmarshal([]byte(l), &got); err != nil {
			t.Fatal(err)
		}
		want := toptest.Machine(i)
		if !got.Time.Equal(want.Time) || len(got.Rows) != len(want.Rows) {
			t.Errorf("document %d is of %v with %d workloads, want %v with %d", i, got.Time, len(got.Rows), want.Time, len(want.Rows))
		}
		seen := map[string]bool{"": true}
		for _, r := range got.Rows {
			if !seen[string(r.Parent)] {
				t.Errorf("%s comes before its parent", r.Name)
			}
			seen[string(r.ID)] = true
		}
		if got.Rows[len(got.Rows)-1].NetworkRx != nil {
			t.Errorf("an absent value is not null")
		}
	}
}

func TestErrors(t *testing.T) {
	for _, args := range [][]string{{"-d", "x"}, {"-d", "1ms"}, {"-d", "2h"}, {"-n", "-1"}, {"-o", "xml"}, {"--sort", "x"}, {"--reader", "y"}} {
		_, err := run(t.Context(), &toptest.Meter{}, args...)
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%v: %v, want invalid with a hint", args, err)
		}
	}
	if _, err := run(t.Context(), &toptest.Meter{}, "--reader", "bpf"); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("--reader bpf: %v, want the error of opening", err)
	}
	bad := errors.New("bad tick")
	m := &toptest.Meter{Err: func(step int) error {
		if step == 1 {
			return bad
		}
		return nil
	}}
	out, err := run(t.Context(), m, "-b")
	if !errors.Is(err, bad) || strings.Count(out, "TOTAL") != 1 || m.Closed != 1 {
		t.Errorf("bad second tick: %v after %d tables, closed %d times, want the error after 1, closed 1", err, strings.Count(out, "TOTAL"), m.Closed)
	}
}

func TestSignalEndsBatchWell(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := &toptest.Meter{Err: func(step int) error {
		if step == 2 {
			cancel()
			return ctx.Err()
		}
		return nil
	}}
	if out, err := run(ctx, m, "-b"); err != nil || strings.Count(out, "TOTAL") != 2 {
		t.Errorf("interrupted after 2 ticks: %v, %d tables, want no error and 2", err, strings.Count(out, "TOTAL"))
	}
}

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
)

// newTestMetrics returns the metrics of a machine with a service and a container in its latest
// window.
func newTestMetrics(c Config) *machineMetrics {
	s := c.newMachineMetrics("HOST")
	w := &usage.Window{End: 1e10}
	for _, path := range []string{"/system.slice/secret.service", "/docker/" + strings.Repeat("5e", 32)} {
		n, _ := workload.Recognize(path)
		r := usage.NewRow(&usage.Identity{Workload: n.Workload("NODE", "boot", path)})
		r.Usage.Put(usage.CPU, 1e9, usage.Measured)
		r.Usage.Put(usage.EnergyPackage, 1e6, usage.Apportioned)
		w.Rows = append(w.Rows, r)
	}
	s.addWindow(w, nil, nil)
	return s
}

// TestWhoSeesWorkloads checks that no request sees workloads, not even one of this machine, unless
// configured otherwise; a foreign web page with its own host name sees none on the loopback.
func TestWhoSeesWorkloads(t *testing.T) {
	for _, given := range []bool{false, true} {
		text := newTestMetrics(Config{StatusWorkloads: given, Compat: kepler}).text()
		if got := strings.Contains(text, "secret.service") && strings.Contains(text, "kepler_container_cpu_joules_total{"); got != given {
			t.Errorf("given %v: workloads shown: %v", given, got)
		}
		if !given && (strings.Contains(text, "secret") || strings.Contains(text, "5e5e")) {
			t.Errorf("a name is shown:\n%s", text)
		}
		if !strings.Contains(text, "mete_node_cpu_seconds_total") || !strings.Contains(text, "kepler_node_cpu_usage_ratio") {
			t.Error("the machine is not shown")
		}
	}
	if text := newTestMetrics(Config{StatusWorkloads: true}).text(); strings.Contains(text, "kepler") || !strings.Contains(text, "secret.service") {
		t.Errorf("without --compat:\n%s", text)
	}
	if text := new(Config).newMachineMetrics("HOST").text(); text != "" {
		t.Errorf("before the first window: %q", text)
	}
}

func TestShowFlags(t *testing.T) {
	var log strings.Builder
	to := slog.New(slog.NewTextHandler(&log, nil))
	for _, c := range []Config{{Status: "127.0.0.1:1", Compat: "scaphandre"}, {Compat: kepler}, {StatusWorkloads: true}} {
		if err := c.validateMetrics(to); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%+v: %v (hint %q), want invalid", c, err, fault.Hint(err))
		}
	}
	for _, c := range []Config{{}, {Status: "127.0.0.1:1", Compat: kepler, StatusWorkloads: true}, {Status: "0.0.0.0:1", StatusWorkloads: true}, {Status: "[::1]:1"}} {
		if err := c.validateMetrics(to); err != nil || log.Len() > 0 {
			t.Errorf("%+v: %v, log %q", c, err, &log)
		}
	}
	c := Config{Status: "127.0.0.1:9798", Compat: kepler}
	if err := c.validateMetrics(to); err != nil || !strings.Contains(log.String(), "--status-workloads") {
		t.Errorf("an open address: %v, log %q, want a message about omitted metrics", err, &log)
	}
}

// TestAlone checks that an agent without a server serves the use of this machine.
func TestAlone(t *testing.T) {
	var lc net.ListenConfig
	// Only this process uses this address, so the port stays free.
	ln, err := lc.Listen(t.Context(), "tcp", testkit.Loopback()+":0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Server, cfg.Status, cfg.Compat, cfg.Machine.Reader = "", addr, kepler, "files"
	cfg.Agent.Handover.Dir, cfg.Agent.Handover.VSock = "", false
	cfg.Machine.Energy.VSock, cfg.Machine.Energy.Shares, cfg.Machine.Energy.NVML = false, "", "off"
	cfg.Machine.Tick, cfg.Machine.Window = 200*time.Millisecond, 400*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, io.Discard, slog.New(slog.DiscardHandler)) }()
	text := ""
	testkit.Eventually(t, "workloads are shown", func() bool {
		select {
		case err := <-done:
			t.Fatalf("agent ended: %v", err)
		default:
		}
		r, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return false // not listening yet
		}
		b, err := io.ReadAll(r.Body)
		if err := errors.Join(err, r.Body.Close()); err != nil {
			t.Fatal(err)
		}
		text = string(b)
		return strings.Contains(text, "mete_workload_cpu_seconds_total{")
	})
	for _, want := range []string{"mete_conservation_violations_total 0\n", `mete_node_energy_joules_total{node=`, `kind="idle",name="idle"`, "kepler_node_cpu_usage_ratio{", "mete_workload_memory_byte_seconds_total{"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not show %q", want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

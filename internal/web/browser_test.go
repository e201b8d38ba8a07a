package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A realUp is a mete up of this tree with a state directory of its own.
type realUp struct {
	t       *testing.T
	dir     string
	env     []string
	address string
	stop    func() // ends it, and waits for it
}

// startUp starts a real mete up, which ends with the test.
func startUp(t *testing.T) *realUp {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "mete.dev/mete/cmd/mete", "mete.dev/mete/cmd/mete-server").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	m := &realUp{t: t, dir: dir, env: append(os.Environ(), "METE_STATE="+filepath.Join(dir, "state"), "METE_SOCKET="+filepath.Join(dir, "sock"))}
	says := filepath.Join(dir, "says")
	out, err := os.Create(says)
	if err != nil {
		t.Fatal(err)
	}
	m.stop = m.start(out, "up", "--listen", "127.0.0.1:0")
	if err := out.Close(); err != nil { // the process has its own
		t.Fatal(err)
	}
	testkit.Eventually(t, "mete up prints its address", func() bool {
		b, err := os.ReadFile(says)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "mete up: ")
		line, _, whole := strings.Cut(rest, "\n")
		m.address = line
		return whole
	})
	testkit.Eventually(t, "mete up answers", func() bool {
		r, err := http.Get(m.address + "/healthz")
		if err != nil {
			return false
		}
		return r.Body.Close() == nil && r.StatusCode == http.StatusOK
	})
	return m
}

func (m *realUp) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.dir, "mete"), args...)
	cmd.Env, cmd.Dir = m.env, m.dir
	return cmd
}

// start starts a command, which ends with the test or when the returned function is called.
func (m *realUp) start(out io.Writer, args ...string) (stop func()) {
	m.t.Helper()
	cmd := m.command(args...)
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		_ = cmd.Wait()
	})
	m.t.Cleanup(stop)
	return stop
}

// order runs a command to its end, and returns its output.
func (m *realUp) order(args ...string) string {
	m.t.Helper()
	cmd := m.command(args...)
	cmd.Stderr = m.t.Output()
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// link returns a link that a browser opens once.
func (m *realUp) link() string { return m.order("token", "link") }

// startJob starts a job that uses CPU time at intervals, and waits until it has rates.
func (m *realUp) startJob() {
	m.t.Helper()
	viewer := m.order("token", "create", "--role", "viewer")
	m.start(nil, "run", "--name", "page-test", "--", "sh", "-c", "while :; do i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; sleep 0.2; done")
	// Rates need three windows.
	testkit.Eventually(m.t, "the job is in the ledger for three windows", func() bool {
		q, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, m.address+"/api/v1/query?query="+"count(rate(mete_workload_cpu_seconds_total%5B1m%5D)%20*%20on(cluster,node,workload)%20mete_workload_info%7Bname=%22page-test%22%7D)", nil)
		if err != nil {
			m.t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+viewer)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		var v struct {
			Data struct{ Result []any }
		}
		return json.NewDecoder(r.Body).Decode(&v) == nil && len(v.Data.Result) > 0
	})
}

// A screen is a size and a color scheme in which to open pages.
type screen struct {
	name          string
	width, height int64
	dark, phone   bool
}

var screens = []screen{{"light", 1440, 900, false, false}, {"dark", 1440, 900, true, false}, {"phone", 390, 844, false, true}}

// needPagesStage keeps tests of every page on every screen, which take minutes, out of the default
// gate. Each page on each screen is a subtest: select some with -run.
func needPagesStage(t *testing.T) {
	t.Helper()
	testkit.Stage(t, "pages", "a browser opens every page for minutes")
	hosttest.Need(t, "chromium")
}

// A visit is a page, and a text that must be on it.
type visit struct{ name, path, want string }

func visits(host string) []visit {
	return []visit{
		{"overview", "/", "Balance"},
		{"live", "/live", "Total = the machine"},
		{"jobs", "/jobs", "page-test"},
		{"job", "/job?job=page-test", "All figures"},
		{"nodes", "/nodes", host},
		{"node", "/node/" + host, "Jobs on this node"},
		{"flow", "/flow", "All flows"},
		{"query", "/query?expr=sum+by+(part)+(mete_node_cpu_cores)", "workloads"},
		{"query-table", "/query?expr=mete_node_cpus&mode=table", "mete_node_cpus"},
		{"query-wrong", "/query?expr=sum(mete_node_cpus", "line 1, character"},
		{"alerts", "/alerts", "rules"},
		{"health", "/health", "Rows ingested"},
		{"missing-job", "/job?job=no-such-job", `No data for "no-such-job"`},
		{"missing-node", "/node/no-such-node", "No node is named"},
	}
}

// browser starts Chromium; an error on its console fails the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	hosttest.LockShared(t, "interfaces") // adding or removing an interface aborts the loads of a browser
	home := t.TempDir()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.IgnoreCertErrors, chromedp.UserDataDir(home), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.Env("HOME="+home), chromedp.WSURLReadTimeout(time.Hour))
	if path, err := exec.LookPath("chromium"); err == nil {
		opts = append(opts, chromedp.ExecPath(path))
	}
	actx, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(actx)
	t.Cleanup(cancel)
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// complaints collects the errors on the console.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// own returns the errors of the page itself. It omits loads aborted by adding or removing
// an interface of this machine, which the page retries.
func (c *complaints) own() []string {
	return slices.DeleteFunc(c.take(), func(text string) bool { return strings.Contains(text, "ERR_NETWORK_CHANGED") })
}

func (c *complaints) listen(ev any) {
	var text string
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		text = ev.ExceptionDetails.Text
		if e := ev.ExceptionDetails.Exception; e != nil {
			text += " " + e.Description
		}
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			text = string(ev.Type)
			for _, a := range ev.Args {
				text += " " + string(a.Value) + " " + a.Description
			}
		}
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Level == log.EntryLevelWarning {
			text = ev.Entry.Text + " " + ev.Entry.URL
		}
	}
	if text == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, text)
}

// Every page opens on a real mete up, in light, dark and on a phone, without errors on the
// console and without serious findings of axe-core. METE_SCREENSHOTS names a directory for
// screenshots.
func TestPagesInChromium(t *testing.T) {
	needPagesStage(t)
	axe, err := os.ReadFile("testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	m := startUp(t)
	m.startJob()
	ctx := browser(t)
	console := &complaints{}
	if err := chromedp.Listen(ctx, console.listen); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(bounded(t, ctx), chromedp.Navigate(m.link()), chromedp.WaitVisible(chromedp.CSS("#main"))); err != nil {
		t.Fatal(err)
	}
	for _, s := range screens {
		for _, v := range visits(host) {
			t.Run(v.name+"-"+s.name, func(t *testing.T) { look(t, ctx, console, m.address, v, s, string(axe)) })
		}
	}
}

// On a fleet with tokens: a user without a token signs in, every page shows its content,
// and names with markup stay text.
func TestFleetInChromium(t *testing.T) {
	needPagesStage(t)
	axe, err := os.ReadFile("testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.Open(t, fleet.Config{Nodes: 24, Each: 9})
	ctx := browser(t)
	console := &complaints{}
	if err := chromedp.Listen(ctx, console.listen); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1440, 900)); err != nil {
		t.Fatal(err)
	}
	err = chromedp.Do(bounded(t, ctx), chromedp.Navigate(f.URL+"/jobs?range=15m"), chromedp.WaitVisible(chromedp.CSS("#token")))
	if err != nil {
		t.Fatal(err)
	}
	picture(t, ctx, "sign-in")
	err = chromedp.Do(bounded(t, ctx), chromedp.SendKeys(chromedp.CSS("#token"), "mete_wrong\r"), chromedp.WaitVisible(chromedp.CSS("[role=alert]")),
		chromedp.Poll[chromedp.Void](`document.documentElement.scrollHeight <= innerHeight && !/permission denied|invalid:/.test(document.querySelector("[role=alert]").innerText)`, chromedp.WithPollingTimeout(0)),
		chromedp.Sleep(time.Second), chromedp.SendKeys(chromedp.CSS("#token"), f.Viewer+"\r"), chromedp.WaitVisible(chromedp.CSS("#main")))
	if err != nil {
		picture(t, ctx, "sign-in-failed")
		t.Fatal(err)
	}
	for _, s := range screens {
		for _, v := range []visit{
			{"fleet-overview", "/?range=15m", "Balance"}, {"fleet-jobs", "/jobs?range=15m&cols=kind~namespace~user~cluster~nodes~trend~cpu_seconds~memory~disk_written_bytes~network_rx_bytes~energy_joules", "postgres-main"},
			{"fleet-job", "/job?job=postgres-main&range=15m&parts=workload", "All figures"}, {"fleet-nodes", "/nodes", "rack1-n01"}, {"fleet-node", "/node/rack1-n01?range=15m", "Jobs on this node"},
			{"fleet-flow", "/flow?range=15m", "CPU packages"}, {"fleet-evil", "/job?range=15m&job=" + url.QueryEscape(fleet.HostileNames[0]), fleet.HostileNames[0]}, {"fleet-health", "/health?range=15m", "Nodes not reporting"},
		} {
			t.Run(v.name+"-"+s.name, func(t *testing.T) {
				look(t, ctx, console, f.URL, v, s, string(axe))
				if s.name == "light" && (v.name == "fleet-job" || v.name == "fleet-node") { // names are long
					over, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("#main .table")].filter((t) => t.scrollWidth > t.clientWidth + 1).map((t) => t.ariaLabel + " " + t.scrollWidth + " > " + t.clientWidth).join()`))
					if err != nil || over != "" {
						t.Errorf("%s: tables wider than the page: %s, %v", v.name, over, err)
					}
				}
				marks, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.title === "pwned" || document.querySelector('img[src="x"]') !== null || document.querySelector("#app script") !== null`))
				if err != nil || marks {
					t.Errorf("a name became an element: %v, %v", marks, err)
				}
			})
		}
	}
}

// bounded bounds waits by the deadline of the test binary, and leaves time to report what is shown. Where
// a stage is chosen, a wait is bounded too, so that one that is in vain does not take the time of all others.
func bounded(t *testing.T, ctx context.Context) context.Context {
	var end time.Time
	if deadline, ok := t.Deadline(); ok {
		end = deadline.Add(-20 * time.Second)
	}
	if soon := time.Now().Add(5 * time.Minute); os.Getenv("METE_STAGE") != "" && (end.IsZero() || soon.Before(end)) {
		end = soon
	}
	if end.IsZero() {
		return ctx
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	t.Cleanup(cancel)
	return ctx
}

// settle returns how long the last drawing may take: longer for screenshots.
func settle() time.Duration {
	if os.Getenv("METE_SCREENSHOTS") != "" {
		return 700 * time.Millisecond
	}
	return 150 * time.Millisecond
}

func look(t *testing.T, ctx context.Context, console *complaints, address string, v visit, s screen, axe string) {
	t.Helper()
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	console.take()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
	ready := `!document.querySelector(".skeleton") && document.querySelector("#main").childElementCount > 0 && document.body.innerText.includes(` + quote(v.want) + `)`
	err := chromedp.Do(bounded(t, ctx),
		chromedp.EmulateViewport(s.width, s.height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p.Mobile = s.phone
		}),
		chromedp.Navigate(address+v.path),
		chromedp.WaitVisible(chromedp.CSS("#main")),
		chromedp.Poll[chromedp.Void](ready, chromedp.WithPollingInterval(100*time.Millisecond), chromedp.WithPollingTimeout(0)),
		chromedp.Sleep(settle()),
	)
	if err != nil {
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
		t.Errorf("%s: %v; the page shows\n%s", v.path, err, text)
	}
	picture(t, ctx, v.name+"-"+s.name)
	// A wrong query gets status 400, which the browser logs on its console.
	for _, c := range console.own() {
		if !(v.name == "query-wrong" && strings.Contains(c, "400")) {
			t.Errorf("%s: console: %s", v.path, c)
		}
	}
	findings(t, ctx, axe, v.path)
	wide, err := chromedp.Run(ctx, chromedp.Evaluate[string](wider))
	if err != nil || wide != "" {
		t.Errorf("%s: wider than the screen: %s, %v", v.path, wide, err)
	}
	cut, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll(".table.short")].filter((t) => t.scrollHeight > t.clientHeight + 1).map((t) => t.ariaLabel).join()`))
	if err != nil || cut != "" {
		t.Errorf("%s: not all of the few rows are shown: %s, %v", v.path, cut, err)
	}
}

// findings reports the serious findings of axe-core about what is shown.
func findings(t *testing.T, ctx context.Context, axe, what string) {
	t.Helper()
	type finding struct{ ID, Impact, Help, Nodes string }
	check := axe + `; axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.filter((v) => v.impact === "serious" || v.impact === "critical").map((v) => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 160) + " " + (n.any[0] ? n.any[0].message : "")).join("\n    ")})))`
	found, err := chromedp.Run(ctx, chromedp.Evaluate[[]finding](check, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Errorf("%s: axe: %v", what, err)
	}
	for _, f := range found {
		t.Errorf("%s: %s, %s: %s\n    %s", what, f.Impact, f.ID, f.Help, f.Nodes)
	}
}

// wider names the elements beyond the right edge of the screen if the page scrolls
// sideways.
const wider = `document.documentElement.scrollWidth <= document.documentElement.clientWidth ? "" :
	[...document.querySelectorAll("#app *")].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".table, .legend, .sankey, .side"))
		.slice(0, 8).map((e) => e.tagName + "." + e.className + " " + Math.round(e.getBoundingClientRect().right) + " " + e.innerText?.slice(0, 40)).join("; ")`

// picture writes a screenshot to the directory of METE_SCREENSHOTS.
func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("METE_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Error(err)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprint("page: ", err)) // it is plain text
	}
	return string(b)
}

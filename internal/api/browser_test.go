package api_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/apispec"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The page of the description shows each question, opens what is in an answer, and
// asks; the console complains of nothing, and axe-core finds nothing serious.
func TestPageInChromium(t *testing.T) {
	testkit.Stage(t, "pages", "a browser looks at the description")
	hosttest.Need(t, "chromium")
	hosttest.LockShared(t, "interfaces") // one that comes or goes breaks off what a browser is loading
	axe, err := os.ReadFile("../web/testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	h := handler(example(), all)
	described := len(apispec.Read(t, h).Paths)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	home := t.TempDir()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.UserDataDir(home), chromedp.Env("HOME="+home), chromedp.WSURLReadTimeout(time.Hour))
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
	said := make(chan string, 100)
	listen := func(ev any) {
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			said <- ev.ExceptionDetails.Text
		case *log.EventEntryAdded:
			if ev.Entry.Level == log.EntryLevelError && !strings.HasSuffix(ev.Entry.URL, "/icon.svg") { // the dashboard's
				said <- ev.Entry.Text + " " + ev.Entry.URL
			}
		}
	}
	if err := chromedp.Listen(ctx, listen); err != nil {
		t.Fatal(err)
	}
	visible := func(css string) chromedp.Action[chromedp.Void] { return chromedp.WaitVisible(chromedp.CSS(css)) }
	click := func(css string) chromedp.Action[chromedp.Void] { return chromedp.Click(chromedp.CSS(css)) }
	if err := chromedp.Do(ctx, chromedp.Navigate(s.URL+"/docs"), visible("#usage button"),
		chromedp.SendKeys(chromedp.CSS("#usage input[name=by]"), "kind"), click("#usage button"), visible("#usage pre[tabindex]"),
		click("#nodes form + div + details > summary"), visible("#nodes ul.fields > li summary"), click("#nodes ul.fields > li summary"), visible("#nodes ul.fields ul.fields")); err != nil {
		t.Fatal(err)
	}
	type shown struct {
		Questions             int
		Answer, Fields, Found string
	}
	got, err := chromedp.Run(ctx, chromedp.Evaluate[shown](string(axe)+`; axe.run(document, {resultTypes: ["violations"]}).then((r) => ({
		Questions: document.querySelectorAll("section").length, Answer: document.querySelector("#usage").innerText, Fields: document.querySelector("#nodes").innerText,
		Found: r.violations.filter((v) => v.impact === "serious" || v.impact === "critical").map((v) => v.id + ": " + v.help + " " + v.nodes[0].html).join("\n")}))`, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	questions, answer, fields, found := got.Questions, got.Answer, got.Fields, got.Found
	if questions != described || !strings.Contains(answer, "200 OK") || !strings.Contains(answer, "by=kind'") || !strings.Contains(answer, `"cpu_seconds": 79`) {
		t.Errorf("%d questions of %d, the answer: %s", questions, described, answer)
	}
	if !strings.Contains(fields, "booked_through") || found != "" {
		t.Errorf("fields %s\naxe-core: %s", fields, found)
	}
	select {
	case s := <-said:
		t.Errorf("the console complains: %s", s)
	default:
	}
}

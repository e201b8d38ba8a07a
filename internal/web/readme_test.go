package web_test

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit/fleet"
)

// The pictures of the README show a simulated fleet, and a real machine. The test takes those of
// the fleet into the directory METE_PICTURES; with METE_PICTURES_OF, a link of mete token link, it
// takes those of that machine and of its job METE_PICTURES_JOB instead.
func TestReadmeInChromium(t *testing.T) {
	needPagesStage(t)
	dir := os.Getenv("METE_PICTURES")
	if dir == "" {
		t.Skip("takes pictures if METE_PICTURES names a directory")
	}
	if link := os.Getenv("METE_PICTURES_OF"); link != "" {
		at, err := url.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		u := &user{t, browser(t)}
		u.does(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(link), chromedp.WaitVisible(chromedp.CSS("#main")))
		job := "/job?range=15m&job=" + url.QueryEscape(os.Getenv("METE_PICTURES_JOB"))
		u.pictures(dir, at.Scheme+"://"+at.Host, []shot{
			{visit{"overview", "/?range=15m", "Balance"}, screens[0]},
			{visit{"job", job, "All figures"}, screens[0]},
		})
		return
	}
	f := fleet.Open(t, fleet.Config{Nodes: 24, Each: 9, Tame: true})
	u := signIn(t, browser(t), f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.pictures(dir, f.URL, []shot{
		{visit{"flow", "/flow?range=15m", "CPU packages"}, screens[1]},
		{visit{"job", "/job?job=postgres-main&range=15m", "All figures"}, screens[2]},
	})
}

// A shot is a picture of a page on a screen.
type shot struct {
	visit
	screen
}

// pictures takes pictures of the server at base into dir.
func (u *user) pictures(dir, base string, list []shot) {
	u.t.Helper()
	for _, v := range list {
		scheme := "light"
		if v.dark {
			scheme = "dark"
		}
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}}
		if _, err := chromedp.Call(u.ctx, emulation.SetEmulatedMedia, media); err != nil {
			u.t.Fatal(err)
		}
		u.does(chromedp.EmulateViewport(v.width, v.height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p.Mobile = v.phone
		}))
		u.opens(base + v.path)
		u.sees(v.want, `document.body.innerText.includes(`+quote(v.want)+`)`)
		u.does(chromedp.Sleep(settle()))
		png, err := chromedp.Run(u.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			u.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, v.visit.name+"-"+v.screen.name+".png"), png, 0o644); err != nil {
			u.t.Fatal(err)
		}
	}
}

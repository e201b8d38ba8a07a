package web_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit/fleet"
)

// The pictures of the README show a simulated fleet. The test retakes them into the
// directory METE_PICTURES.
func TestReadmeInChromium(t *testing.T) {
	needPagesStage(t)
	dir := os.Getenv("METE_PICTURES")
	if dir == "" {
		t.Skip("takes pictures if METE_PICTURES names a directory")
	}
	f := fleet.Open(t, fleet.Config{Nodes: 24, Each: 9, Tame: true})
	u := signIn(t, browser(t), f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	for _, v := range []struct {
		visit
		screen
	}{
		{visit{"overview", "/?range=15m", "Parts and whole"}, screens[0]},
		{visit{"node", "/node/rack2-n03?range=15m", "Who used it"}, screens[1]},
		{visit{"flow", "/flow?range=15m", "CPU packages"}, screens[1]},
		{visit{"job", "/job?job=postgres-main&range=15m", "All figures"}, screens[2]},
	} {
		scheme := "light"
		if v.dark {
			scheme = "dark"
		}
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}}
		if _, err := chromedp.Call(u.ctx, emulation.SetEmulatedMedia, media); err != nil {
			t.Fatal(err)
		}
		u.does(chromedp.EmulateViewport(v.width, v.height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p.Mobile = v.phone
		}))
		u.opens(f.URL + v.path)
		u.sees(v.want, `document.body.innerText.includes(`+quote(v.want)+`)`)
		u.does(chromedp.Sleep(settle()))
		png, err := chromedp.Run(u.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, v.visit.name+"-"+v.screen.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

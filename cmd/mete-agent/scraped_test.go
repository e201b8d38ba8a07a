package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/prometheus"
)

// Intervals of the agents of TestStockScraped and of scrapes: there are several scrapes per window,
// so that at some instants both know the same latest window.
const (
	scrapedWindow = 3 * time.Second
	scrapedEvery  = 500 * time.Millisecond
)

// TestStockScraped checks that a Prometheus that scrapes agents gives the same answers as the
// server that these agents send to. Their samples have different times: each scrape shows the last
// closed window, and the server's samples are at the ends of windows and of minutes. The answers
// are equal if
//
//   - each scraped sample equals the server's value of the latest window then, to the last bit;
//   - instant queries, when both know the same latest window of each agent, give the same series
//     and labels, and values equal except for rounding in sums; for idle workloads that holds at
//     any instant;
//   - range queries, such as rates, give the same series and labels, and values between the
//     minimum and maximum possible use between samples.
//
// Labels that only one has are ignored: job and instance, of the scrape; path and energy of an info
// metric, which only an agent knows; job, user, project, namespace, pod and container of it, which
// only a server knows. Some series exist on one side only: those that an agent shows of ended
// workloads for two minutes, of workloads that lived for less than a window, and of those without
// use so far; the server's sum of workloads that lived for less than a window; and zero rates of
// idle workloads, of which the server has one sample per minute.
func TestStockScraped(t *testing.T) {
	testkit.Stage(t, "peers", "a Prometheus scrapes for a while")
	hosttest.Need(t, "prometheus", "root", "cgroup1", "netns")
	t.Parallel()
	s := newSite(t)
	s.serve()
	flags := []string{"-status-workloads", "-tick", "500ms", "-window", scrapedWindow.String()}
	zones, _ := plantZones(t)
	here, there := freePort(t), "127.0.0.1:9798"
	s.measure(append(flags, "-status", here, "-powercap", zones)...)
	away := newElsewhere(t, "elsewhere")
	edge := s.run("token", "create", "--role", "agent", "--cluster", "edge") // in another cluster it is another machine
	c := s.agent(append(flags, "-server", "https://"+away.reach(strings.TrimPrefix(s.url, "https://")), "-status", there, "-reader", "files",
		"-state", filepath.Join(s.dir, "elsewhere"), "-socket", "")...)
	c.Env = append(c.Env, "METE_TOKEN="+edge)
	s.start("agent elsewhere", away.command(c)).waitOutput("msg=measuring")
	scraper := prometheus.Start(t, fmt.Sprintf(`
global: {scrape_interval: %[1]s, scrape_timeout: %[1]s}
scrape_configs:
  - {job_name: agents, static_configs: [{targets: ["%[2]s"], labels: {cluster: default}}, {targets: ["%[3]s"], labels: {cluster: edge}}]}
`, scrapedEvery, here, away.show(there)))

	begun := time.Now()
	s.load(begun)
	time.Sleep(time.Until(begun.Add(105 * time.Second)))
	b := &both{t: t, mete: prometheus.Client{URL: s.url, Token: s.viewer}, stock: scraper.Client()}
	loaded := time.Now()
	if err := os.Remove(s.work()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * scrapedWindow) // the open window, two more, and the delivery of the last one
	b.learn()
	b.samples()
	b.atRest(time.Now().Add(-scrapedWindow))
	b.moments(loaded)
	b.spans(loaded)
	b.counted()
}

// work returns a file that exists while jobs must work.
func (s *site) work() string { return filepath.Join(s.dir, "work") }

// load starts jobs with steady and with pulsed CPU load, one that starts late and one that ends
// early, one that holds memory, and some that end at once.
func (s *site) load(begun time.Time) {
	s.t.Helper()
	work := s.work()
	if err := os.WriteFile(work, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	// While the file exists, a job does this; then it creates its own file and sleeps.
	until := func(does string) string {
		return "while [ -e " + work + " ]; do " + does + "; done; : >" + work + ".$$; exec sleep 300"
	}
	const some = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"
	start := func(name, script string) {
		job := s.start("job "+name, s.jobCommand(name, "exec >"+os.DevNull+" 2>&1; "+script))
		s.t.Cleanup(func() {
			_ = job.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			<-job.ended
		})
	}
	start("steady", until(some+"; sleep 0.03"))
	start("pulse", until("k=0; while [ $k -lt 50 ]; do "+some+"; sleep 0.01; k=$((k+1)); done; sleep 4"))
	start("hold", "x=$(head -c 30000000 /dev/zero | tr '\\0' x); "+until("sleep 1"))
	start("gone", "for k in 1 2 3 4 5 6 7 8; do "+some+"; sleep 2; done")
	for i := range 3 {
		time.Sleep(700 * time.Millisecond)
		s.job(fmt.Sprint("brief", i), some)
	}
	time.Sleep(time.Until(begun.Add(40 * time.Second)))
	start("late", until(some+"; sleep 0.05"))
}

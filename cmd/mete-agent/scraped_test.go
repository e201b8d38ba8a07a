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

// What the agents of TestStockScraped do, and how often they are scraped: several
// times in a window, so that there are moments at which both know the same window
// last.
const (
	scrapedWindow = 3 * time.Second
	scrapedEvery  = 500 * time.Millisecond
)

// TestStockScraped: a Prometheus that scrapes agents answers as the server does that
// the same agents send to. Its samples are of other times: each scrape shows the
// window that was closed last, and the server's samples are at the ends of windows
// and of minutes. So the same answer is
//
//   - for each sample that was scraped: to the last bit the value that the server has
//     of the window that was the latest then;
//   - for questions about a moment, at moments at which both know the same window of
//     each agent last: the same series and labels, and values equal but for rounding
//     in sums; and so at any moment of what is at rest;
//   - for questions about a span, as rates: the same series and labels, and values
//     between the least and the most that may have been used between the samples that
//     either can have at its ends.
//
// Labels that are of one alone are left out: job and instance, of the scrape; path and
// energy of an info, which only an agent knows; job, user, project, namespace, pod and
// container of it, which only a server does. Series of one alone are those that an
// agent shows of what ended, for two minutes, with what lived for less than a
// window, and of what has not used anything yet; the server's that sums what lived
// for less than a window; and rates of zero of what stands still, of which the server
// has a sample a minute.
func TestStockScraped(t *testing.T) {
	testkit.Stage(t, "peers", "a Prometheus scrapes for a while")
	hosttest.Need(t, "prometheus", "root", "cgroup1", "netns")
	t.Parallel()
	s := newSite(t)
	s.serve()
	flags := []string{"-tick", "500ms", "-window", scrapedWindow.String()}
	zones, _ := plantZones(t)
	here, there := freePort(t), "127.0.0.1:9798"
	s.measure(append(flags, "-status", here, "-powercap", zones)...)
	away := newElsewhere(t, "elsewhere")
	edge := s.run("token", "create", "--role", "agent", "--cluster", "edge") // of another cluster, it is another machine
	c := s.agent(append(flags, "-server", "https://"+away.reach(strings.TrimPrefix(s.url, "https://")), "-status", there, "-reader", "files",
		"-state", filepath.Join(s.dir, "elsewhere"), "-socket", "")...)
	c.Env = append(c.Env, "METE_TOKEN="+edge)
	s.start("agent elsewhere", away.command(c)).says("msg=measuring")
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
	time.Sleep(4 * scrapedWindow) // the window that goes on, two more, and the way of the last one
	b.learn()
	b.samples()
	b.atRest(time.Now().Add(-scrapedWindow))
	b.moments(loaded)
	b.spans(loaded)
	b.counted()
}

// work is a file that is there while jobs shall work.
func (s *site) work() string { return filepath.Join(s.dir, "work") }

// load starts jobs that compute steadily, now and then, from later on, and for a
// while, one that holds memory, and some that end at once.
func (s *site) load(begun time.Time) {
	s.t.Helper()
	work := s.work()
	if err := os.WriteFile(work, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	// What a job does while there is that file; then it says so, and sleeps.
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

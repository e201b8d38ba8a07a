package meterreader

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// freePort returns an unused TCP port of the loopback interface.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// daemon runs a program until stop is called or the test ends.
func daemon(t *testing.T, name string, args ...string) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // fails because the program is killed
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("%s:\n%s", name, out.String())
		}
	}
	t.Cleanup(stop)
	return stop
}

// A meter reads a stock Prometheus that scrapes an exporter.
func TestStockPrometheus(t *testing.T) {
	testkit.Stage(t, "peers", "starts a stock Prometheus")
	hosttest.Need(t, "prometheus")
	var joules atomic.Int64
	joules.Store(1000)
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "outlet_watts{outlet=\"1\"} 120.5\noutlet_watts{outlet=\"2\"} 80\noutlet_joules_total %d\noutlet_none NaN\n", joules.Load())
	}))
	defer exporter.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: strip\n    static_configs: [{targets: ['" + strings.TrimPrefix(exporter.URL, "http://") + "']}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + freePort(t)
	stop := daemon(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+addr)
	as := func(query, unit string) []string {
		return []string{"type: prometheus", "url: http://" + addr, "query: '" + query + "'", "unit: " + unit}
	}
	testkit.Eventually(t, "the first scrape", func() bool {
		v, err := read(t, as("sum(outlet_watts)", "W")...)
		if err == nil && v != 200500000 {
			t.Fatalf("%d uW", v)
		}
		return err == nil
	})
	checkRead(t, 120500000, as(`outlet_watts{outlet="1"}`, "W")...)
	checkRead(t, 7000000, as("scalar(vector(7))", "W")...)
	checkRead(t, 1000000000, as("outlet_joules_total", "J")...)
	checkRead(t, "2 series instead of one", as("outlet_watts", "W")...)
	checkRead(t, "0 series instead of one", as("nothing", "W")...)
	checkRead(t, "result is a matrix", as("outlet_watts[1m]", "W")...)
	checkRead(t, "400", as("sum(", "W")...)
	checkRead(t, "is out of range", as("outlet_none", "W")...)
	joules.Store(5000)
	testkit.Eventually(t, "the next scrape", func() bool {
		v, err := read(t, as("outlet_joules_total", "J")...)
		return err == nil && v == 5000e6
	})
	stop()
	checkRead(t, "refused", as("sum(outlet_watts)", "W")...)
}

// A meter receives what others publish at a stock broker, in any version of MQTT, and
// resumes after a restart of the broker.
func TestStockMQTT(t *testing.T) {
	testkit.Stage(t, "peers", "starts a stock MQTT broker")
	hosttest.Need(t, "mosquitto")
	dir := t.TempDir()
	passwords, config, port := filepath.Join(dir, "passwords"), filepath.Join(dir, "mosquitto.conf"), freePort(t)
	if out, err := exec.Command("mosquitto_passwd", "-b", "-c", passwords, "mete", "pass").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := "listener " + port + " 127.0.0.1\nallow_anonymous false\npassword_file " + passwords + "\nuser root\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := daemon(t, "/usr/sbin/mosquitto", "-c", config)
	publish := func(version, topic, message string, more ...string) error {
		args := append([]string{"-h", "127.0.0.1", "-p", port, "-u", "mete", "-P", "pass", "-V", version, "-t", topic, "-m", message}, more...)
		if out, err := exec.Command("mosquitto_pub", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	testkit.Eventually(t, "the broker answers", func() bool {
		return publish("mqttv5", "tele/plug/SENSOR", `{"ENERGY":{"Power":1}}`, "-r") == nil
	})

	url := "tcp://127.0.0.1:" + port
	plain := listen(t, url, "password: pass", "topic: strip/energy", "unit: kWh")
	inside := listen(t, url, "password: pass", "topic: tele/plug/SENSOR", "path: ENERGY.Power", "unit: W")
	denied := listen(t, url, "password: wrong", "topic: strip/energy", "unit: W")
	hear := func(got *recorded, want int64, version, topic, message string) {
		t.Helper()
		// Publish repeatedly, because the meter may not have subscribed yet.
		got.until(t, version+" "+topic, func() bool {
			if err := publish(version, topic, message); err != nil {
				return false
			}
			return got.last() == want
		})
	}
	hear(plain, 4500000000000, "mqttv31", "strip/energy", "1.25")
	hear(plain, 5400000000000, "mqttv311", "strip/energy", "1.5")
	hear(inside, 61000000, "mqttv5", "tele/plug/SENSOR", `{"Time":"2026-03-01T00:00:00","ENERGY":{"Total":3.1,"Power":61}}`)
	if inside.all()[0] == 1000000 {
		t.Error("recorded a retained message")
	}
	hear(inside, 62000000, "mqttv31", "tele/plug/SENSOR", `{"ENERGY":{"Power":"62"}}`)
	inside.until(t, "nonsense", func() bool {
		return publish("mqttv5", "tele/plug/SENSOR", `{"ENERGY":{}}`) == nil && inside.failed("there is no ENERGY.Power")
	})
	denied.until(t, "a wrong password", func() bool { return len(denied.errs) > 0 })
	if heard := denied.all(); len(heard) > 0 {
		t.Errorf("received with a wrong password: %v", heard)
	}
	stop()
	plain.until(t, "the broker's end", func() bool { return len(plain.errs) > 0 })
	daemon(t, "/usr/sbin/mosquitto", "-c", config)
	hear(plain, 7200000000000, "mqttv311", "strip/energy", "2")
}

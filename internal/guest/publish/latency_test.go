package publish_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/attribute"
	energymeters "mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"

	"mete.dev/mete/internal/attribute/energy"
)

// domains is the number of virtual machines in latency tests.
const domains = 20

// budget limits the time from reading the host's meters until a guest can read the share, for 99 of
// 100 shares.
const budget = time.Second

func boottime(t testing.TB) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// A simHost holds the accounts of a machine with virtual machines that each use some CPU time.
type simHost struct {
	t     testing.TB
	acc   *attribute.Accounts
	snap  usage.Snapshot
	count int64
	slow  int64 // extra ns of a tick by the host's clock
}

func newSimHost(t testing.TB, guests int) *simHost {
	m := &simHost{t: t, acc: attribute.New("node")}
	m.acc.SetMeters(energy.New(energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Power: 100e6}, {Load: power.PPM, Power: 400e6}}, ErrorPPM: 100_000}}))
	m.snap = usage.Snapshot{Boot: "boot", Node: usage.Node{CPUs: 64, MemTotal: 1 << 38, MemFree: 1 << 37}}
	m.add(&usage.Group{Slot: usage.Root, Parent: usage.NoSlot, MemoryParent: usage.NoSlot, Workload: workload.Workload{ID: "system", Kind: workload.System}})
	for i := range guests {
		id := workload.ID(fmt.Sprintf("vm-%02d", i))
		m.add(&usage.Group{Slot: usage.Slot(i + 1), Life: workload.Life{ID: uint64(i + 2)}, Workload: workload.Workload{ID: id, Kind: workload.Path, Name: string(id)},
			Guest: &usage.Guest{UUID: uuid(i), Name: string(id), CID: uint32(i) + 100, VCPUs: 2}})
	}
	return m
}

func (m *simHost) add(g *usage.Group) {
	g.New = true
	m.snap.Groups = append(m.snap.Groups, g)
}

// tick reads the machine.
func (m *simHost) tick() []attribute.Guest {
	m.count++
	m.snap.At = boottime(m.t) + m.count*m.slow
	m.snap.Mono = m.snap.At
	sum := int64(0)
	for i, g := range m.snap.Groups[1:] {
		g.New = m.count == 1
		g.Put(usage.CPU, m.count*int64(i+1)*1e7)
		sum += g.Value[usage.CPU]
	}
	m.snap.Groups[0].New = m.count == 1
	m.snap.Groups[0].Put(usage.CPU, sum)
	if b := m.acc.Tick(&m.snap); b.Violations > 0 {
		m.t.Errorf("%d violations", b.Violations)
	}
	return m.acc.Guests()
}

// times collects the delays of shares on one path, except a reader's first.
type times struct {
	mu    sync.Mutex
	first int
	took  []time.Duration
}

// begin records a reader's first share.
func (s *times) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first++
}

// have returns the number of shares, including first ones.
func (s *times) have() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first + len(s.took)
}

func (s *times) add(t testing.TB, at int64) {
	d := time.Duration(boottime(t) - at)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, d)
}

func (s *times) quantile(ppm int) time.Duration {
	return s.took[min(len(s.took)-1, len(s.took)*ppm/1_000_000)]
}

// ms formats a duration.
func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Nanoseconds())/1e6) }

// TestAccuracyHandover measures for half a minute the delay from the host's meters to its guests.
func TestAccuracyHandover(t *testing.T) {
	testkit.Stage(t, "accuracy", "measures how long shares take")
	latency(t, 31, time.Second)
}

// TestHandover runs ticks without pause, and measures nothing.
func TestHandover(t *testing.T) { latency(t, 10, 0) }

// latency lets a host publish shares for its domains in each tick, while readers wait for them in
// the file, on the connection, and in the meter of a guest that uses files. A share that the next
// one overtakes is not delivered, so each tick waits for all readers. If ticks have a length,
// meters are read too and delays are checked against budget.
func latency(t *testing.T, count int, tick time.Duration) {
	dir := t.TempDir()
	h, log := start(t, publish.Config{Dir: dir})
	l := listenLocal(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, l) }()
	m := newSimHost(t, domains)
	m.tick()
	h.Publish(m.tick())
	var files, streams, meters times
	var readers sync.WaitGroup
	defer func() {
		stop()
		readers.Wait()
	}()
	for i := range domains {
		folder := filepath.Join(dir, fmt.Sprintf("vm-%02d", i))
		testkit.Eventually(t, "there is "+folder, func() bool { return exists(folder, energyshare.File) })
		conn := l.dial(t, uint32(i)+100)
		readers.Go(func() { readFile(ctx, t, filepath.Join(folder, energyshare.File), &files) })
		readers.Go(func() { readStream(ctx, t, conn, &streams) })
		if i%4 == 0 && tick > 0 {
			none := t.TempDir() // without other meters
			readers.Go(func() { readMeter(ctx, t, none, folder, &meters) })
		}
	}
	if tick > 0 {
		testkit.Eventually(t, "each has a first share", func() bool { return meters.have() == domains/4 })
	}
	ticks := 0
	arrive := func() {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d shares after the first are with all", ticks), func() bool { return min(files.have(), streams.have()) >= domains*(ticks+1) })
	}
	arrive()
	begin := time.Now()
	for ticks < count {
		time.Sleep(time.Until(begin.Add(time.Duration(ticks+1) * tick)))
		arrive()
		h.Publish(m.tick())
		ticks++
	}
	arrive()
	least := domains / 4 * (count - 2)
	if tick > 0 {
		testkit.Eventually(t, "the meters have the last", func() bool { return meters.have() >= domains/4+least })
	}
	stop()
	readers.Wait()
	if err := <-served; err != nil {
		t.Error(err)
	}
	w := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d domains, a tick of %v\tshares\tp50 ms\tp99 ms\tmost ms\t\n", domains, tick)
	for _, r := range []struct {
		name string
		*times
		least, most int
	}{
		{"readable in the file", &files, domains * ticks, domains * ticks},
		{"read from the connection", &streams, domains * ticks, domains * ticks},
		{"in the meter of a guest, by file", &meters, least, domains / 4 * ticks},
	} {
		if r.times == &meters && tick == 0 {
			continue
		}
		slices.Sort(r.took)
		if len(r.took) < r.least || len(r.took) > r.most {
			t.Errorf("%s: %d shares in %d ticks, want %d to %d", r.name, len(r.took), ticks, r.least, r.most)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t\n", r.name, len(r.took), ms(r.quantile(500_000)), ms(r.quantile(990_000)), ms(r.quantile(1_000_000)))
		if p := r.quantile(990_000); tick > 0 && p > budget {
			t.Errorf("%s: 99 of 100 within %v, want %v", r.name, p, budget)
		}
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
	if log.count("level=WARN") > 0 {
		t.Errorf("log:\n%s", log.text.String())
	}
}

// readFile polls a file for each share, once a millisecond.
func readFile(ctx context.Context, t *testing.T, name string, took *times) {
	last := int64(-1)
	for ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			return
		}
		m, err := energyshare.Decode(b)
		if err != nil {
			t.Errorf("partial share: %v", err)
			return
		}
		if m.N != last {
			if last >= 0 {
				took.add(t, m.At)
			} else {
				took.begin()
			}
			last = m.N
		}
	}
}

// readStream reads each share from a connection.
func readStream(ctx context.Context, t *testing.T, c net.Conn, took *times) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	lines := bufio.NewReader(c)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // the end
		}
		m, err := energyshare.Decode(line)
		if err != nil {
			t.Error(err)
			return
		}
		if first {
			took.begin()
		} else {
			took.add(t, m.At)
		}
	}
}

// readMeter polls a guest's meter for each share.
func readMeter(ctx context.Context, t *testing.T, none, dir string, took *times) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = h.Close() }()
	s, err := energymeters.Open(h, energymeters.Config{Powercap: none, Shares: dir})
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = s.Close() }()
	running := make(chan struct{})
	go func() {
		defer close(running)
		_ = s.Run(ctx)
	}()
	defer func() { <-running }()
	last := int64(-1)
	var rs []power.Reading
	for ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		if rs, err = s.Read(rs[:0]); err != nil {
			t.Error(err)
			return
		}
		if r := rs[len(rs)-1]; r.Share != nil && r.Share.N != last {
			if last >= 0 {
				took.add(t, r.Share.At)
			} else {
				took.begin()
			}
			last = r.Share.N
		}
	}
}

// A local listener accepts connections on a unix socket, with the CID announced by dial.
type local struct {
	*net.UnixListener
	next chan uint32
}

func listenLocal(t *testing.T) *local {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return &local{l, make(chan uint32, 1)}
}

func (l *local) Accept() (net.Conn, uint32, error) {
	c, err := l.UnixListener.Accept()
	if err != nil {
		return nil, 0, err
	}
	return c, <-l.next, nil
}

func (l *local) dial(t *testing.T, cid uint32) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.next <- cid
	return c
}

// BenchmarkPublish measures the cost of a tick for each virtual machine, with files.
func BenchmarkPublish(b *testing.B) {
	r, err := publish.New(publish.Config{Dir: b.TempDir()}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	m := newSimHost(b, domains)
	m.tick()
	for b.Loop() {
		r.Publish(m.tick())
		r.Write()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/domains, "us/guest")
}

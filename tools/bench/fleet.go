package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// A fleet is simulated machines that send to a server like agents: enrolled, each on a
// connection of its own, with the agents' own code.
type fleet struct {
	origins []*origin
	windows []usage.Window // to choose from; the time is set when one is sent
	names   []batch.Name
	samples int       // in one of the windows, on average
	since   time.Time // end of the first window
	dir     string
	retries atomic.Int64
}

// An origin is a simulated machine.
type origin struct {
	fleet *fleet
	node  string // id
	name  string
	way   *sender.HTTP
	base  *url.URL // of the server
	// client has the certificate of the machine.
	client *http.Client
	boot   string
	up     time.Time // boot time
	live   stream
}

// A stream is a stream of batches.
type stream struct {
	id     batch.Stream
	number uint64
	last   batch.Hash
}

// window is the length of a window.
const window = 10 * time.Second

// openFleet enrolls n machines with the given number of workloads each, and one more for
// the measurement of visibility. Each machine sends the names of its workloads with a
// window that ended at since.
func openFleet(ctx context.Context, t *target, dir string, n, workloads int, since time.Time) (*fleet, error) {
	f := &fleet{since: since, dir: dir}
	f.make(workloads)
	return f, f.enroll(ctx, t, n+1, func(i int, o *origin) *batch.Batch {
		return &batch.Batch{Names: f.names, Windows: []usage.Window{f.window(i, o, since.Add(-window), window)}}
	})
}

// enroll enrolls n machines. Each sends a first batch.
func (f *fleet) enroll(ctx context.Context, t *target, n int, first func(i int, o *origin) *batch.Batch) error {
	base, err := url.Parse(t.url)
	if err != nil {
		return err
	}
	f.origins = make([]*origin, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range f.origins {
		g.Go(func() error {
			o := &origin{fleet: f, name: originName(i), boot: fmt.Sprintf("boot-%06d", i), up: time.Now().Add(-72 * time.Hour)}
			id, err := enroll.Open(enroll.Config{
				Dir: filepath.Join(f.dir, "identity", o.boot), Server: t.url, Token: func() (token.Token, error) { return t.agents, nil },
				Facts: enroll.Facts{Machine: fmt.Sprintf("machine-%06d", i), Boot: o.boot, Name: o.name},
			}, slog.New(slog.DiscardHandler))
			if err == nil {
				err = id.Enroll(ctx)
			}
			if err != nil {
				return err
			}
			o.base, o.client = base, id.Client()
			o.node, o.way = id.Node(), sender.NewHTTP(base, o.client, "bench")
			o.live = newStream()
			b, err := o.live.encode(first(i, o))
			if err == nil {
				err = o.send(ctx, b)
			}
			f.origins[i] = o
			return err
		})
	}
	return g.Wait()
}

// originName returns the host name of the i-th machine.
func originName(i int) string { return fmt.Sprintf("host-%06d", i) }

func newStream() (s stream) {
	for i := range s.id {
		s.id[i] = byte(rand.Uint32())
	}
	return s
}

// encode assigns a batch its number in the stream and encodes it.
func (s *stream) encode(b *batch.Batch) ([]byte, error) {
	s.number++
	b.Stream, b.Number, b.Previous = s.id, s.number, s.last
	sent, err := wire.Encode(nil, b)
	s.last = batch.HashOf(sent)
	return sent, err
}

// clock returns the machine's clocks.
func (o *origin) clock() batch.Clock {
	now := time.Now()
	return batch.Clock{Boot: o.boot, Boottime: int64(now.Sub(o.up)), Wall: now.UnixNano()}
}

// send offers a batch until it is accepted, with an agent's delays in between.
func (o *origin) send(ctx context.Context, sent []byte) error {
	for try := 0; ; try++ {
		r, err := o.way.Offer(ctx, o.clock(), sent)
		wait, _ := fault.RetryAfter(err)
		switch {
		case err == nil && r.Verdict == batch.Accepted:
			return nil
		case err == nil:
			return fmt.Errorf("%s: %s, server expects %d", o.node, r.Verdict, r.Next)
		case try == 100 || ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		}
		o.fleet.retries.Add(1)
		c := sender.Default()
		bound := min(c.MinBackoff<<min(try+1, 16), c.MaxBackoff)
		sleepUntil(ctx, time.Now().Add(wait+c.MinBackoff+rand.N(bound-c.MinBackoff+1)))
	}
}

// window returns the i-th window, of the given length, from a wall time on.
func (f *fleet) window(i int, o *origin, from time.Time, length time.Duration) usage.Window {
	w := f.windows[i%len(f.windows)]
	w.Boot, w.Start = o.boot, int64(from.Sub(o.up))
	w.End, w.Offset, w.Scope = w.Start+int64(length), o.up.UnixNano(), usage.Machine
	return w
}

// A service is the use of one kind of workload: see fleet.make.
type service struct {
	short                  workload.ShortID
	present                usage.Set
	cores, user, disk, net float64
	anon, file             int64 // bytes
	pids                   int64
}

// make makes realistic windows: some workloads are busy, most do little, and memory changes
// slowly. A third has network traffic, a quarter pressure.
func (f *fleet) make(n int) {
	r := rand.New(rand.NewPCG(1, 7))
	basic := usage.SetOf(usage.CPU, usage.CPUUser, usage.CPUSystem, usage.Memory, usage.MemoryPeak, usage.MemoryAnon,
		usage.MemoryFile, usage.MemoryWorking, usage.DiskRead, usage.DiskWritten, usage.PIDs, usage.PIDsPeak)
	var services []*service
	for i := range n + 2 {
		s := &service{present: basic, user: 0.5 + 0.4*r.Float64(), pids: 1 + r.Int64N(30), cores: 0.001 * r.ExpFloat64()}
		s.anon, s.file = 2<<20+int64(r.ExpFloat64()*160e6), 1<<20+int64(r.ExpFloat64()*80e6)
		kind := workload.Container
		switch {
		case i >= n:
			kind = []workload.Kind{workload.System, workload.Idle}[i-n]
			s.present, s.cores = usage.SetOf(usage.CPU, usage.Memory, usage.DiskRead, usage.DiskWritten), 0.5+3*float64(i-n)
		case i%10 == 0:
			s.cores, s.disk, s.net = 0.2+r.Float64(), r.ExpFloat64()*500, r.ExpFloat64()*2000
		case i%10 < 3:
			s.cores, s.disk, s.net = 0.05*r.Float64(), r.ExpFloat64(), r.ExpFloat64()*10
		}
		if i < n && i%3 == 0 {
			s.present |= usage.SetOf(usage.DiskReads, usage.DiskWrites, usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets)
		}
		if i < n && i%4 == 0 {
			s.present |= usage.SetOf(usage.PressureCPU, usage.PressureMemory, usage.PressureIO)
		}
		key := fmt.Sprintf("%064x", r.Uint64())
		name := batch.Name{ID: workload.NewID("bench", kind, key), Kind: kind, Key: key, Name: key[52:], Path: "/kubepods.slice/" + key}
		if kind == workload.Container {
			name.Labels = map[string]string{"io.kubernetes.pod.namespace": fmt.Sprintf("ns-%d", i%5), "app": fmt.Sprintf("app-%d", i%7)}
		} else {
			name.Name = kind.String()
		}
		s.short, _ = workload.ShortIDOf(name.ID)
		services, f.names = append(services, s), append(f.names, name)
	}
	slices.SortFunc(services, func(a, b *service) int { return int(min(max(int64(a.short>>1)-int64(b.short>>1), -1), 1)) })
	// More different windows than a batch has, so that it does not compress better than a
	// real one.
	for range 400 {
		w := usage.Window{CPUs: 8}
		w.Total.Covered = window
		for i, s := range services {
			row := usage.Row{ShortID: s.short, Usage: s.use(r)}
			if (i+len(f.windows))%30 == 0 {
				row.Has = row.Usage.Present & usage.SetOf(usage.CPU, usage.Memory)
				row.Total = row.Usage.Amount
			}
			for j, res := range usage.Wholes {
				w.Balance.Whole[j] += row.Usage.Amount[res]
				w.Balance.Workloads[j] += row.Usage.Amount[res]
			}
			f.samples += row.Usage.Present.Len()
			w.Rows = append(w.Rows, row)
		}
		for _, res := range []usage.Resource{usage.DiskRead, usage.DiskWritten, usage.NetworkRx, usage.NetworkTx} {
			w.Total.Put(res, r.Int64N(1<<30), usage.Measured)
		}
		f.windows = append(f.windows, w)
	}
	f.samples /= len(f.windows)
}

// use returns what a service uses in a window.
func (s *service) use(r *rand.Rand) (u usage.Usage) {
	u.Covered = window
	noise := func(mean float64) int64 { return max(0, int64(mean*(1+r.NormFloat64()/5))) }
	if r.Float64() < 0.2 || s.cores > 0.01 {
		s.anon = max(1<<20, s.anon+4096*int64(r.NormFloat64()*float64(s.anon)/2e6))
	}
	var a [usage.Limit]int64
	a[usage.CPU] = noise(s.cores * 1e10)
	a[usage.CPUUser] = int64(s.user * float64(a[usage.CPU]))
	a[usage.CPUSystem] = a[usage.CPU] - a[usage.CPUUser]
	a[usage.MemoryAnon], a[usage.MemoryFile] = s.anon*10, s.file*10
	a[usage.Memory] = a[usage.MemoryAnon] + a[usage.MemoryFile]
	a[usage.MemoryWorking] = a[usage.Memory] - a[usage.MemoryFile]/3
	a[usage.MemoryPeak] = s.anon + s.file
	a[usage.DiskReads], a[usage.DiskWrites] = noise(s.disk), noise(s.disk*3)
	a[usage.DiskRead], a[usage.DiskWritten] = a[usage.DiskReads]*16384, a[usage.DiskWrites]*8192
	a[usage.NetworkRxPackets], a[usage.NetworkTxPackets] = noise(s.net*10), noise(s.net*8)
	a[usage.NetworkRx], a[usage.NetworkTx] = noise(float64(a[usage.NetworkRxPackets])*400), noise(float64(a[usage.NetworkTxPackets])*900)
	a[usage.PIDs], a[usage.PIDsPeak] = s.pids*10, s.pids
	a[usage.PressureCPU] = int64(s.cores * 1e8 * r.Float64())
	s.present.Each(func(res usage.Resource) { u.Put(res, a[res], usage.Measured) })
	return u
}

// A stopwatch collects durations.
type stopwatch struct {
	mu    sync.Mutex
	times []time.Duration
}

func (s *stopwatch) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, d)
}

// quantile returns the given quantile in ms.
func (s *stopwatch) quantile(share float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.times) == 0 {
		return 0
	}
	slices.Sort(s.times)
	return s.times[int(share*float64(len(s.times)-1))].Seconds() * 1e3
}

package wire_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A machine makes windows as a machine would: some workloads are busy, most do
// little, and memory moves slowly.
type machine struct {
	rand     *rand.Rand
	boot     string
	at       int64
	services []*service
	rows     int // that were made, for the totals
}

const page = 4096

// A service is a workload of a machine.
type service struct {
	workload workload.Workload
	present  usage.Set
	quality  usage.Quality // of its network
	cpu      float64       // cores
	user     float64       // share of it
	disk     float64       // pages a second
	net      float64       // packets a second
	pids     int64
	anon     int64 // pages
	file     int64
	kernel   int64
	inactive int64 // of file
	age      int64 // windows that it has lived, when it is first seen
	total    [usage.Limit]int64
}

func newMachine(seed uint64, n int) *machine {
	m := &machine{rand: rand.New(rand.NewPCG(seed, 7)), boot: "7f4e4a9e-6d2f-4a86-9f5c-3a4f61b8c1d2", at: 86_400e9, rows: 15}
	basic := usage.SetOf(usage.CPU, usage.CPUUser, usage.CPUSystem, usage.Memory, usage.MemoryPeak, usage.MemoryAnon,
		usage.MemoryFile, usage.MemoryWorking, usage.DiskRead, usage.DiskWritten, usage.PIDs, usage.PIDsPeak)
	for i := range n {
		s := &service{present: basic, quality: usage.Measured, user: 0.5 + 0.4*m.rand.Float64(), pids: 1 + m.rand.Int64N(30)}
		key := fmt.Sprintf("%064x", m.rand.Uint64())
		s.workload = workload.Workload{ID: workload.NewID("01JD0000000000000000000000", workload.Container, key),
			Kind: workload.Container, Key: key, Name: key[52:], Path: "/kubepods.slice/" + key}
		switch i % 4 {
		case 0:
			s.present |= usage.SetOf(usage.DiskReads, usage.DiskWrites, usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets)
		case 1:
			s.present |= usage.SetOf(usage.DiskReads, usage.DiskWrites, usage.CPUThrottled, usage.OOMKills)
			s.quality = usage.Apportioned
		case 2:
			s.present |= usage.SetOf(usage.PressureCPU, usage.PressureMemory, usage.PressureIO)
		}
		s.anon, s.file, s.kernel = 500+int64(m.rand.ExpFloat64()*40_000), 200+int64(m.rand.ExpFloat64()*20_000), 50+m.rand.Int64N(2000)
		s.inactive = s.file / 3
		switch k := i % 10; {
		case k < 1:
			s.cpu, s.disk, s.net = 0.2+m.rand.Float64(), m.rand.ExpFloat64()*500, m.rand.ExpFloat64()*2000
		case k < 3:
			s.cpu, s.disk, s.net = 0.05*m.rand.Float64(), m.rand.ExpFloat64(), m.rand.ExpFloat64()*10
		default:
			s.cpu = 0.001 * m.rand.ExpFloat64()
		}
		s.age = 1 + m.rand.Int64N(50_000)
		m.services = append(m.services, s)
	}
	for _, kind := range []workload.Kind{workload.System, workload.Idle} {
		m.services = append(m.services, &service{present: basic & usage.SetOf(usage.CPU, usage.Memory, usage.DiskRead, usage.DiskWritten),
			cpu: float64(kind), user: 0.3, anon: 1_000_000, kernel: 1,
			workload: workload.Workload{ID: workload.NewID("01JD0000000000000000000000", kind, ""), Kind: kind, Name: kind.String()}})
	}
	return m
}

// level books ten seconds of a level, a tick at a time: most never moves.
func (m *machine) level(pages *int64, ticks []int64, still float64) (sum, peak int64) {
	for _, t := range ticks {
		if m.rand.Float64() > still {
			*pages = max(1, *pages+int64(m.rand.NormFloat64()*float64(*pages)/500))
		}
		sum += *pages * page * t / 1e9
		peak = max(peak, *pages*page)
	}
	return sum, peak
}

// window makes the next window.
func (m *machine) window() *usage.Window {
	ticks := make([]int64, 10)
	w := &usage.Window{Boot: m.boot, Start: m.at, Offset: 1_760_000_000_123_456_789, CPUs: 32}
	for i := range ticks {
		ticks[i] = 1e9 + m.rand.Int64N(200_000) - 100_000
		m.at += ticks[i]
	}
	w.End = m.at
	for i, s := range m.services {
		row := usage.NewRow(&usage.Identity{Workload: s.workload})
		row.Usage = m.use(s, ticks, w.Length())
		row.Usage.Present.Each(func(r usage.Resource) { s.total[r] += row.Usage.Amount[r] * max(1, s.age) })
		s.age = 1
		row.Has, row.Total = usage.Metered, s.total
		b, u := &w.Balance, &row.Usage
		for j, r := range usage.Wholes {
			b.Whole[j] += u.Amount[r]
			switch {
			case s.workload.Kind == workload.System:
				b.System[j] += u.Amount[r]
			case s.workload.Kind == workload.Idle:
				b.Idle[j] += u.Amount[r]
			default:
				b.Workloads[j] += u.Amount[r]
			}
			if i == 0 && r == usage.CPU {
				b.Whole[j], b.Skew[j] = b.Whole[j]-1234, 1234
			}
		}
		w.Rows = append(w.Rows, row)
	}
	w.Total.Covered = w.Length()
	for _, r := range []usage.Resource{usage.DiskRead, usage.DiskWritten, usage.NetworkRx, usage.NetworkTx, usage.NetworkRxPackets, usage.NetworkTxPackets} {
		for i := range w.Rows {
			w.Total.Put(r, w.Rows[i].Usage.Amount[r], usage.Measured)
		}
	}
	return w
}

// use is what a service uses in ten seconds.
func (m *machine) use(s *service, ticks []int64, length time.Duration) (u usage.Usage) {
	u.Covered = length
	still := 0.995
	if s.cpu > 0.01 {
		still = 0.6
	}
	var a [usage.Limit]int64
	noise := func(mean float64) int64 { return max(0, int64(mean*(1+m.rand.NormFloat64()/5))) }
	a[usage.CPU] = noise(s.cpu * 1e10)
	a[usage.CPUUser] = min(a[usage.CPU], noise(s.user*float64(a[usage.CPU])))
	a[usage.CPUSystem] = a[usage.CPU] - a[usage.CPUUser]
	var anonPeak, filePeak int64
	a[usage.MemoryAnon], anonPeak = m.level(&s.anon, ticks, still)
	a[usage.MemoryFile], filePeak = m.level(&s.file, ticks, still)
	kernel, kernelPeak := m.level(&s.kernel, ticks, still)
	inactive, _ := m.level(&s.inactive, ticks, still)
	a[usage.Memory] = a[usage.MemoryAnon] + a[usage.MemoryFile] + kernel
	a[usage.MemoryWorking] = max(0, a[usage.Memory]-inactive)
	a[usage.MemoryPeak] = anonPeak + filePeak + kernelPeak
	a[usage.DiskReads] = noise(s.disk)
	a[usage.DiskWrites] = noise(s.disk * 3)
	a[usage.DiskRead] = a[usage.DiskReads] * 4 * page
	a[usage.DiskWritten] = a[usage.DiskWrites] * 2 * page
	a[usage.NetworkRxPackets] = noise(s.net * 10)
	a[usage.NetworkTxPackets] = noise(s.net * 8)
	a[usage.NetworkRx] = noise(float64(a[usage.NetworkRxPackets]) * 400)
	a[usage.NetworkTx] = noise(float64(a[usage.NetworkTxPackets]) * 900)
	a[usage.PIDs], a[usage.PIDsPeak] = s.pids*10, s.pids
	if m.rand.Float64() > still {
		a[usage.PIDsPeak]++
	}
	a[usage.PressureCPU] = int64(s.cpu * 1e8 * m.rand.Float64())
	s.present.Each(func(r usage.Resource) {
		q := usage.Measured
		if r == usage.NetworkRx || r == usage.NetworkTx {
			q = s.quality
		}
		u.Put(r, a[r], q)
	})
	return u
}

// asRead returns what a reader has of a row that is sent.
func asRead(r usage.Row) usage.Row {
	read := usage.Row{ShortID: r.ShortID, Usage: r.Usage, Has: r.Has, Ended: r.Ended}
	for res := range r.Has.All() {
		read.Total[res] = r.Total[res]
	}
	return read
}

// batch makes a batch of the given number of windows, with totals on one row in
// thirty and a name for one row in a hundred.
func (m *machine) batch(windows int) (b *batch.Batch, samples int) {
	b = &batch.Batch{Number: 1234, Stream: batch.Stream{1: 7}, Previous: batch.HashOf([]byte("before"))}
	for i := range b.Stream {
		b.Stream[i] = byte(m.rand.Uint32())
	}
	for range windows {
		w := m.window()
		sent := wire.Prepare(w.Clone())
		for i := range sent.Rows {
			if m.rows++; m.rows%30 != 0 {
				sent.Rows[i].Has = 0
			}
			sent.Rows[i] = asRead(sent.Rows[i])
		}
		b.Windows = append(b.Windows, sent)
		for i := range w.Rows {
			if windows == 1 && i%100 == 50 {
				b.Names = append(b.Names, wire.NameOf(&w.Rows[i]))
			}
		}
		for _, r := range sent.Rows {
			samples += r.Usage.Present.Len()
		}
	}
	return b, samples
}

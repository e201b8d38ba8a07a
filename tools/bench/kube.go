package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/netfault"
	"mete.dev/mete/internal/testkit/testbed"
)

// The budgets of naming pods.
const (
	budgetKubeMemory = 1500 << 20 // of the server, bytes, with 5000 nodes and 50,000 pods
	budgetJoin       = 5_000      // ms from a pod's first window to its name

	maxCatchUp = 3 * time.Minute // for the pods of the outage
)

// A kubeReport is the cost of naming the pods of a cluster.
type kubeReport struct {
	Nodes     int     `json:"nodes"`
	Pods      int     `json:"pods"`
	Synced    float64 `json:"synced_seconds"` // from the start of the server until all pods are in its ledger
	Enrolled  float64 `json:"enrolled_seconds"`
	Placed    float64 `json:"placed_seconds"` // from then until all workloads have names
	Churn     float64 `json:"pod_changes_per_second"`
	Rows      float64 `json:"rows_per_second"`
	Cores     float64 `json:"server_cores"`
	Joins     int     `json:"joins"`
	JoinP50   float64 `json:"join_p50_ms"`
	JoinP99   float64 `json:"join_p99_ms"`
	JoinMax   float64 `json:"join_max_ms"`
	Outage    float64 `json:"outage_seconds"`
	Lists     int     `json:"pod_lists"` // times that the server read all pods: once, and again as its watch had expired
	CaughtUp  float64 `json:"caught_up_seconds"`
	AnswerP99 float64 `json:"answer_p99_ms"`
	// Directed is how long all machines needed to know the addresses of all nodes, Joined the same after one more node, with the bytes
	// of that for each machine. Directives is bytes for each machine and hour while pods come and go.
	Directed    float64 `json:"directed_seconds"`
	Joined      float64 `json:"directed_after_new_node_seconds"`
	JoinedBytes float64 `json:"directive_bytes_per_new_node"`
	Directives  float64 `json:"directive_bytes_per_node_hour"`

	RSS     int64 `json:"server_rss_bytes"`
	PeakRSS int64 `json:"server_peak_rss_bytes"`
	Ledger  int64 `json:"ledger_bytes"`

	OverBudget []string `json:"over_budget"`
}

type kubeFlags struct {
	nodes, pods    int
	rate           int
	length, outage time.Duration
	every          time.Duration
	bin            string
}

func measureKube(args []string) (over bool, err error) {
	fs := flag.NewFlagSet("kube", flag.ExitOnError)
	var c kubeFlags
	fs.IntVar(&c.nodes, "nodes", 5000, "machines to simulate")
	fs.IntVar(&c.pods, "pods", 50_000, "pods to create in a real API server")
	fs.IntVar(&c.rate, "rate", 50, "pods per second that are created or deleted while the server is measured")
	fs.DurationVar(&c.length, "for", 2*time.Minute, "how long to measure, before and after the outage each")
	fs.DurationVar(&c.outage, "outage", 100*time.Second, "how long the API server is out of reach, in which it is restarted, so that its watches expire")
	fs.DurationVar(&c.every, "window", 30*time.Second, "length of each machine's windows")
	fs.StringVar(&c.bin, "bin", "", "measure this program instead of building ./cmd/mete-server")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	if c.nodes < 1 || c.pods < c.nodes || c.rate < 2 {
		return false, errors.New("-nodes is at least 1, -pods at least as many, -rate at least 2")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := c.run(ctx)
	if err != nil {
		return false, err
	}
	if r.Lists < 2 {
		return false, errors.New("no watch expired, as it should have")
	}
	if r.PeakRSS > budgetKubeMemory {
		r.OverBudget = append(r.OverBudget, fmt.Sprintf("%d MiB at most, budget %d", r.PeakRSS>>20, budgetKubeMemory>>20))
	}
	if r.JoinP99 > budgetJoin {
		r.OverBudget = append(r.OverBudget, fmt.Sprintf("99 of 100 pods are named within %.0f ms, budget %d", r.JoinP99, budgetJoin))
	}
	if *output == "json" {
		return len(r.OverBudget) > 0, json.NewEncoder(os.Stdout).Encode(r)
	}
	r.show()
	return len(r.OverBudget) > 0, nil
}

func (r *kubeReport) show() {
	fmt.Printf("%d nodes, %d pods: listed and booked in %.1f s; machines enrolled in %.0f s, all of their workloads named %.1f s later\n",
		r.Nodes, r.Pods, r.Synced, r.Enrolled, r.Placed)
	fmt.Printf("%.0f pod changes/s, %.0f rows/s: server %.2f cores, RSS %d MiB, peak %d MiB, ledger %d MiB; windows answered within %.0f ms (p99)\n",
		r.Churn, r.Rows, r.Cores, r.RSS>>20, r.PeakRSS>>20, r.Ledger>>20, r.AnswerP99)
	fmt.Printf("from a pod's first window to its name, %d pods: p50 %.0f ms, p99 %.0f ms, max %.0f ms\n", r.Joins, r.JoinP50, r.JoinP99, r.JoinMax)
	fmt.Printf("directives: all machines have them %.1f s after they began to follow, and %.1f s after a new node, %.1f kB each; %.1f kB for each node and hour else\n",
		r.Directed, r.Joined, r.JoinedBytes/1e3, r.Directives/1e3)
	fmt.Printf("API server away for %.0f s and restarted: all pods were read %d times; the pods of that time have names %.1f s after\n", r.Outage, r.Lists, r.CaughtUp)
	for _, o := range r.OverBudget {
		fmt.Println("OVER BUDGET:", o)
	}
}

func (c *kubeFlags) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// A kubeRun is a measurement that runs.
type kubeRun struct {
	*kubeFlags
	api    *kubernetes.Clientset
	fleet  *fleet
	target *target
	ledger *sql.DB
	owners []metav1.OwnerReference
	serial atomic.Int64 // of pods
	asks   sync.RWMutex // held for the requests to the API server of changes, and while it is restarted
	server *testbed.Cluster

	machines []machinePods
	directed directed
	rows     atomic.Int64
	answers  stopwatch

	mu     sync.Mutex
	phases []*phase
}

// machinePods are the pods of a simulated machine.
type machinePods struct {
	mu   sync.Mutex
	pods []*kubePod
}

// A kubePod is a pod that the API server has, with one container.
type kubePod struct {
	namespace, name, uid, container string
	sent                            bool // its names
}

const kubeNamespaces, kubeOwners = 20, 500

func (c *kubeFlags) run(ctx context.Context) (_ *kubeReport, err error) {
	dir, err := os.MkdirTemp("", "mete-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if c.bin == "" {
		if c.bin, err = build(dir, "mete-server"); err != nil {
			return nil, err
		}
	}
	place, err := sub(dir, "cluster")
	if err != nil {
		return nil, err
	}
	cluster, err := testbed.Open(testbed.API, place, testbed.Options{}, c.logf)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	k := &kubeRun{kubeFlags: c, server: cluster, machines: make([]machinePods, c.nodes), directed: directed{holds: map[int]int{}}}
	if err := k.createPods(ctx, cluster.Kubeconfig); err != nil {
		return nil, err
	}
	proxy, file, err := proxied(cluster.Kubeconfig, filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()

	r := &kubeReport{Nodes: c.nodes, Pods: c.pods, Churn: float64(c.rate), Outage: c.outage.Seconds(), OverBudget: []string{}}
	start := time.Now()
	d, err := openDatabase(dir, "sqlite")
	if err != nil {
		return nil, err
	}
	if k.target, err = openTarget(ctx, c.bin, dir, d, "--kube-cluster", "bench", "--kubeconfig", file); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.target.close()) }()
	ctx, cancel := k.target.whileRunning(ctx)
	defer cancel()
	defer func() { err = errors.Join(err, context.Cause(ctx)) }()
	if k.ledger, err = sql.Open("sqlite", "file:"+(&url.URL{Path: d.dsn}).EscapedPath()+"?mode=ro&_pragma=busy_timeout(10000)"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.ledger.Close()) }()
	c.logf("waiting until all pods are in the ledger")
	if err := k.waitForCount(ctx, c.pods, "SELECT count(*) FROM pod WHERE ended_ns = 0"); err != nil {
		return nil, err
	}
	r.Synced = time.Since(start).Seconds()

	c.logf("enrolling %d machines", c.nodes)
	start = time.Now()
	k.fleet = &fleet{dir: dir}
	k.fleet.make(50)
	err = k.fleet.enroll(ctx, k.target, c.nodes, func(i int, o *origin) *batch.Batch { b, _ := k.window(i, 0, o, time.Now()); return b })
	if err != nil {
		return nil, err
	}
	r.Enrolled = time.Since(start).Seconds()
	start = time.Now()
	if err := k.waitForCount(ctx, 0, "SELECT count(*) FROM workload WHERE kind IN ('pod', 'container') AND namespace = ''"); err != nil {
		return nil, err
	}
	r.Placed = time.Since(start).Seconds()
	if err := k.churn(ctx, proxy, r); err != nil {
		return nil, err
	}
	if info, err := os.Stat(d.dsn); err == nil {
		r.Ledger = info.Size()
	}
	r.RSS, r.PeakRSS, err = memoryOf(k.target.cmd.Process.Pid)
	return r, err
}

// proxied writes a copy of a kubeconfig whose requests go through a proxy.
func proxied(from, to string) (*netfault.Proxy, string, error) {
	conf, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return nil, "", err
	}
	var proxy *netfault.Proxy
	for _, cluster := range conf.Clusters {
		u, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, "", err
		}
		if proxy, err = netfault.OpenLimited(u.Host, 1, 24*time.Hour); err != nil {
			return nil, "", err
		}
		cluster.TLSServerName, cluster.Server = u.Hostname(), "https://"+proxy.Addr()
	}
	return proxy, to, clientcmd.WriteToFile(*conf, to)
}

// waitForCount waits until a query to the ledger has a count.
func (k *kubeRun) waitForCount(ctx context.Context, want int, query string) error {
	for began := time.Now(); ; sleepUntil(ctx, time.Now().Add(200*time.Millisecond)) {
		var n int
		if err := k.ledger.QueryRowContext(ctx, query).Scan(&n); err != nil || n == want {
			return err
		} else if time.Since(began) > 10*time.Minute {
			return fmt.Errorf("%d after 10 min, want %d: %s", n, want, query)
		}
	}
}

// window returns the batch of the i-th machine with its n-th window, and the containers that it names first.
func (k *kubeRun) window(i, n int, o *origin, end time.Time) (b *batch.Batch, named []string) {
	w := usage.Window{CPUs: 8, Boot: o.boot, Start: int64(end.Add(-k.every).Sub(o.up))}
	w.End, w.Offset, w.Scope, w.Total.Covered = w.Start+int64(k.every), o.up.UnixNano(), usage.Machine, k.every
	b = &batch.Batch{}
	add := func(id workload.ID, u usage.Usage) {
		short, _ := workload.ShortIDOf(id)
		u.Covered = k.every
		for j, res := range usage.Wholes {
			w.Balance.Whole[j] += u.Amount[res]
			w.Balance.Workloads[j] += u.Amount[res]
		}
		w.Rows = append(w.Rows, usage.Row{ShortID: short, Usage: u})
	}
	used := k.fleet.windows[(i+n)%len(k.fleet.windows)].Rows
	rest := k.fleet.names[len(k.fleet.names)-2:] // system and idle
	if n == 0 {
		b.Names = append(b.Names, rest...)
	}
	for j := range rest {
		short, _ := workload.ShortIDOf(rest[j].ID)
		at := slices.IndexFunc(used, func(r usage.Row) bool { return r.ShortID == short })
		add(rest[j].ID, used[at].Usage)
	}
	var still usage.Usage // of what only waits
	still.Put(usage.CPU, 0, usage.Measured)
	still.Put(usage.Memory, 300_000*int64(k.every/time.Second), usage.Measured)
	m := &k.machines[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	for j, p := range m.pods {
		pod := workload.NewID(o.boot, workload.Pod, p.uid)
		sandbox := p.container[32:] + p.container[:32]
		main, pause := workload.NewID(o.boot, workload.Container, p.container), workload.NewID(o.boot, workload.Container, sandbox)
		add(pod, still)
		add(main, used[(7*j+i)%len(used)].Usage)
		add(pause, still)
		if p.sent {
			continue
		}
		p.sent = true
		path := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(p.uid, "-", "_") + ".slice"
		b.Names = append(b.Names, batch.Name{ID: pod, Kind: workload.Pod, Key: p.uid, Name: p.uid, Path: path})
		for id, key := range map[workload.ID]string{main: p.container, pause: sandbox} {
			b.Names = append(b.Names, batch.Name{ID: id, Kind: workload.Container, Key: key, Name: key[:12], Path: path + "/cri-containerd-" + key + ".scope", Parent: pod})
		}
		named = append(named, p.container)
	}
	slices.SortFunc(w.Rows, func(a, b usage.Row) int { return cmp.Compare(a.ShortID, b.ShortID) })
	b.Windows = []usage.Window{w}
	return b, named
}

// A phase is a part of the measurement: how long pods waited for their names in it.
type phase struct {
	joins   stopwatch
	waiting map[string]time.Time // when the first window of a container was answered, by its id
}

// enter begins a phase and returns it.
func (k *kubeRun) enter() *phase {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &phase{waiting: map[string]time.Time{}}
	k.phases = append(k.phases, p)
	return p
}

// open returns how many containers of a phase have no names.
func (k *kubeRun) open(p *phase) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(p.waiting)
}

// isUnseen reports whether a container of the outage still has no name. If its pod came and went while the API server
// was out of reach, no list of pods would ever show it.
func (k *kubeRun) isUnseen(container string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.phases[1:min(3, len(k.phases))] { // the outage, and the list after it
		if _, ok := p.waiting[container]; ok {
			return true
		}
	}
	return false
}

// churn measures the server while pods come and go and the API server is away for a while.
func (k *kubeRun) churn(ctx context.Context, proxy *netfault.Proxy, r *kubeReport) error {
	k.enter()
	g, ctx := errgroup.WithContext(ctx)
	work, stop := context.WithCancel(ctx)
	start := time.Now()
	for i := range k.fleet.origins {
		g.Go(func() error { return k.measure(ctx, work, i) })
		g.Go(func() error { return k.follow(work, i) })
	}
	g.Go(func() error { return k.change(ctx, work) })
	g.Go(func() error { return k.observe(ctx, work) })
	g.Go(func() (err error) {
		defer stop()
		calm := k.phases[0]
		if err := k.awaitDirected(ctx, k.nodes); err != nil {
			return err
		}
		r.Directed = time.Since(start).Seconds()
		k.logf("all machines know the addresses of all nodes")
		told, joined := k.directed.bytes.Load(), time.Now()
		if err := errors.Join(k.createNodes(ctx, k.nodes, k.nodes+1), k.awaitDirected(ctx, k.nodes+1)); err != nil {
			return err
		}
		r.Joined, r.JoinedBytes = time.Since(joined).Seconds(), float64(k.directed.bytes.Load()-told)/float64(k.nodes)
		told = k.directed.bytes.Load()
		k.logf("%d pod changes a second, for %v", k.rate, k.length)
		server, _ := k.target.cpu()
		rows, start := k.rows.Load(), time.Now()
		sleepUntil(ctx, start.Add(k.length))
		after, _ := k.target.cpu()
		took := time.Since(start)
		r.Cores, r.Rows = (after-server).Seconds()/took.Seconds(), float64(k.rows.Load()-rows)/took.Seconds()
		r.Directives = float64(k.directed.bytes.Load()-told) / float64(k.nodes) / took.Hours()

		k.logf("the API server is out of reach, for %v", k.outage)
		away, back := k.enter(), time.Now().Add(k.outage)
		proxy.Set(netfault.Conditions{Down: true})
		sleepUntil(ctx, back.Add(-k.outage/2))
		if err := k.restartAPI(ctx); err != nil {
			return err
		}
		sleepUntil(ctx, back)
		proxy.Set(netfault.Conditions{})
		back = time.Now()
		returning := k.enter() // pods that start while the server lists the pods again
		var again *phase
		for k.open(away)+k.open(returning) > 0 && ctx.Err() == nil {
			if again == nil && k.open(away) == 0 {
				again = k.enter()
			}
			if sleepUntil(ctx, time.Now().Add(100*time.Millisecond)); time.Since(back) > maxCatchUp {
				r.OverBudget = append(r.OverBudget, fmt.Sprintf("%d pods of the outage have no names after %v", k.open(away), maxCatchUp))
				break
			}
		}
		if again == nil {
			again = k.enter()
		}
		r.CaughtUp = time.Since(back).Seconds()
		k.logf("%d pod changes a second, for %v", k.rate, k.length)
		sleepUntil(ctx, time.Now().Add(k.length))
		if r.Lists, err = k.lists(ctx); err != nil {
			return err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		joins := stopwatch{times: slices.Concat(calm.joins.times, again.joins.times)}
		r.Joins, r.JoinP50, r.JoinP99, r.JoinMax = len(joins.times), joins.quantile(.5), joins.quantile(.99), joins.quantile(1)
		r.AnswerP99 = k.answers.quantile(.99)
		return ctx.Err()
	})
	return g.Wait()
}

// measure sends the windows of the i-th machine as they are due, until work ends.
func (k *kubeRun) measure(ctx, work context.Context, i int) error {
	o := k.fleet.origins[i]
	end := time.Now().Add(k.every * time.Duration(i) / time.Duration(len(k.fleet.origins)))
	for n := 1; ; n++ {
		if sleepUntil(work, end); work.Err() != nil {
			return nil
		}
		b, named := k.window(i, n, o, end)
		sent, err := o.live.encode(b)
		if err == nil {
			err = o.send(ctx, sent)
		}
		if err != nil {
			return err
		}
		now := time.Now()
		k.answers.add(now.Sub(end))
		k.rows.Add(int64(len(b.Windows[0].Rows)))
		k.mu.Lock()
		for _, id := range named {
			k.phases[len(k.phases)-1].waiting[id] = now
		}
		k.mu.Unlock()
		end = end.Add(k.every)
	}
}

// change creates and deletes pods in turn, until work ends.
func (k *kubeRun) change(ctx, work context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	start := time.Now()
	for n := 0; work.Err() == nil && ctx.Err() == nil; n++ {
		sleepUntil(work, start.Add(time.Duration(n)*time.Second/time.Duration(k.rate)))
		i := mathrand.IntN(len(k.machines))
		g.Go(func() error {
			if n%2 == 0 {
				p, err := k.createPod(ctx, i)
				if err != nil {
					return err
				}
				sleepUntil(ctx, time.Now().Add(time.Second)) // about how long a container takes to start
				return k.startPod(ctx, p)
			}
			m := &k.machines[i]
			m.mu.Lock()
			var p *kubePod
			if len(m.pods) > 0 && m.pods[0].sent && !k.isUnseen(m.pods[0].container) {
				p, m.pods = m.pods[0], m.pods[1:]
			}
			m.mu.Unlock()
			if p == nil {
				return nil
			}
			return k.deletePod(ctx, p)
		})
	}
	return g.Wait()
}

// observe asks the ledger for containers that got names, until work ends.
func (k *kubeRun) observe(ctx, work context.Context) error {
	for ; work.Err() == nil; sleepUntil(work, time.Now().Add(100*time.Millisecond)) {
		k.mu.Lock()
		phases := slices.Clone(k.phases)
		var ids []string
		for _, p := range phases {
			ids = slices.AppendSeq(ids, maps.Keys(p.waiting))
		}
		k.mu.Unlock()
		for some := range slices.Chunk(ids, 500) {
			named, err := k.named(ctx, some)
			if err != nil {
				return err
			}
			now := time.Now()
			k.mu.Lock()
			for _, id := range named {
				for _, p := range phases {
					if since, ok := p.waiting[id]; ok {
						p.joins.add(now.Sub(since))
						delete(p.waiting, id)
					}
				}
			}
			k.mu.Unlock()
		}
	}
	return nil
}

// named returns those of some containers that have names in the ledger.
func (k *kubeRun) named(ctx context.Context, ids []string) (named []string, err error) {
	rows, err := k.ledger.QueryContext(ctx, "SELECT DISTINCT key FROM workload WHERE kind IN ('pod', 'container') AND namespace <> '' AND key IN ('"+strings.Join(ids, "', '")+"')")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		named = append(named, id)
	}
	return named, rows.Err()
}

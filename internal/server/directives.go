package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/x/httpx"
)

const (
	// classesLife is how long classes of prefixes hold without a server.
	classesLife = 7 * 24 * time.Hour
	// topologyInterval is how often changes are read from the ledger, which another server with it may have written.
	topologyInterval = 5 * time.Second
	// maxWait limits how long an agent's request waits, and maxWaiting how many of a node do.
	maxWait    = 10 * time.Minute
	maxWaiting = 4
	// requestBurst is how many requests a node may send at once, and requestRate how many in a second on average, so at most
	// 100 in any minute: an agent makes at most 30 for the list in a minute, and few for sections.
	requestBurst = 50
	requestRate  = 50.0 / 60
	// spread is how much later than a change each waiting request makes the last one to be answered, so that not all
	// agents of a large cluster ask for a section in the same moment.
	spread = 2 * time.Millisecond
)

// sectionNames are the sections that this server has.
var sectionNames = []string{directive.NetworkClasses, directive.NetworkNode}

// topologies are read from the ledger.
type topologies interface {
	TopologyEpochs(ctx context.Context) (map[string]int64, error)
	Topology(ctx context.Context, cluster string) (t pod.Topology, epoch int64, err error)
	Node(ctx context.Context, id string) (registry.Node, error)
}

// A directiveSource has the sections that hold for each agent, and tells agents when they change.
type directiveSource struct {
	ledger     topologies
	log        *slog.Logger
	logLimiter httpx.LogLimiter
	limiter    *httpx.RateLimiter // of requests, by node

	mu       sync.Mutex
	clusters map[string]*sections
	changed  chan struct{} // closed when clusters changes
	ready    bool          // the topologies were read
	ended    chan struct{} // closed when no request waits any more
	waiting  map[string]int
	waits    int                  // the sum of waiting
	rejected map[string]rejection // by node
	bytes    int64                // of contents, as they were sent
	answers  int64                // to requests for the list
}

// A rejection is the sections that a node said it does not follow.
type rejection struct {
	names []string
	at    time.Time
}

// rejectedFor is how long a rejection counts: a node repeats it in each request.
const rejectedFor = 2 * maxWait

// sections are those of a cluster at an epoch. Contents are made when the first node needs them.
type sections struct {
	epoch   int64
	network *directive.Network
	tooMany bool // prefixes for an agent: the sections of zones are missing
	zones   map[string]*content
	nodes   map[string]*content
}

// content is what a section consists of.
type content struct {
	*httpx.Content
	hash string
}

func newDirectives(l topologies, log *slog.Logger) *directiveSource {
	return &directiveSource{ledger: l, log: log, clusters: map[string]*sections{}, changed: make(chan struct{}), ended: make(chan struct{}), waiting: map[string]int{}, rejected: map[string]rejection{}, limiter: httpx.NewRateLimiter(requestRate, requestBurst)}
}

func newContent(c directive.Classes) *content {
	plain := c.Encode()
	return &content{httpx.NewContent(plain), directive.HashOf(plain)}
}

// run reads the topologies of clusters from the ledger until ctx ends.
func (d *directiveSource) run(ctx context.Context) error {
	tick := time.NewTicker(topologyInterval)
	defer tick.Stop()
	failing := false
	for {
		err := d.read(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			d.log.Warn("cannot read where the addresses of clusters are; directives of agents stay as they are", "err", err)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			close(d.ended)
			return nil
		}
	}
}

// wake makes waiting requests look again. The caller holds mu.
func (d *directiveSource) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// read reads the topologies that changed.
func (d *directiveSource) read(ctx context.Context) error {
	epochs, err := d.ledger.TopologyEpochs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for cluster, epoch := range epochs {
		d.mu.Lock()
		old := d.clusters[cluster]
		d.mu.Unlock()
		if old != nil && old.epoch == epoch {
			continue
		}
		t, epoch, err := d.ledger.Topology(ctx, cluster)
		if errors.Is(err, fault.ErrNotFound) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		now := &sections{epoch: epoch, network: directive.NewNetwork(t), zones: map[string]*content{}, nodes: map[string]*content{}}
		d.check(cluster, now)
		d.mu.Lock()
		d.clusters[cluster] = now
		d.wake()
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = true
	return errors.Join(errs...)
}

// check logs problems with the addresses of a cluster's nodes.
func (d *directiveSource) check(cluster string, s *sections) {
	if n := s.network.Len(); n > directive.MaxPrefixes {
		s.tooMany = true
		if d.logLimiter.Allow("size of "+cluster, time.Now()) {
			d.log.Error("the nodes of a cluster have more prefixes than agents take: their classes of network traffic stay as they are until they expire", "cluster", cluster, "prefixes", n, "most", directive.MaxPrefixes, "life", classesLife)
		}
	}
	if n, first := s.network.Overlaps(); n > 0 && d.logLimiter.Allow("overlaps of "+cluster, time.Now()) {
		d.log.Warn("addresses of nodes of a cluster overlap: the longest prefix counts, and one of several nodes only if all are in one zone", "cluster", cluster, "prefixes", n, "first", first)
	}
}

// contents returns the contents of the sections of a node, in the order of sectionNames, nil for one that is missing. It is empty
// if the cluster does not have the node: its name in the ledger may be another one for a while, so the sections that it has hold until
// they expire. The caller holds mu.
func (s *sections) contents(name string) []*content {
	zone, ok := s.network.Zone(name)
	if !ok {
		return nil
	}
	if s.zones[zone] == nil && !s.tooMany {
		s.zones[zone] = newContent(s.network.ZoneClasses(zone))
	}
	if s.nodes[name] == nil {
		s.nodes[name] = newContent(s.network.NodeClasses(name))
	}
	return []*content{s.zones[zone], s.nodes[name]}
}

// list returns what holds for a node, and the contents. The caller holds mu.
func (d *directiveSource) list(n registry.Node) (l directive.List, contents []*content) {
	l.Sections = []directive.Section{}
	s := d.clusters[n.Cluster]
	if s == nil {
		return l, nil
	}
	contents = s.contents(n.Name)
	for i, c := range contents {
		if c == nil {
			continue
		}
		l.Sections = append(l.Sections, directive.Section{Name: sectionNames[i], Hash: c.hash, Epoch: s.epoch, Life: int64(classesLife / time.Second)})
	}
	return l, contents
}

// tagOf returns the entity tag of a list.
func tagOf(l directive.List) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return strconv.Quote(directive.HashOf(b)[:32])
}

// errBusy is the error for a node that has too many requests waiting, or sent too many.
var errBusy = httpx.WithStatus(errors.New("this node asks for directives too often"), httpx.ErrTooMany)

// busyWait is how long a node is to wait that has too many requests waiting.
const busyWait = 10 * time.Second

// await returns what holds for a node, at once if it has another tag than tag, else when it changes or wait is over.
func (d *directiveSource) await(ctx context.Context, node, tag string, wait time.Duration, rejected []string) (l directive.List, now string, err error) {
	if err := d.admit(node); err != nil {
		return l, "", err
	}
	n, err := d.ledger.Node(ctx, node)
	if err != nil {
		return l, "", err
	}
	d.noteRejected(node, rejected)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ready {
		return l, "", &fault.RetryError{Err: fmt.Errorf("the addresses of clusters were not read yet: %w", fault.ErrUnavailable), After: topologyInterval}
	}
	d.answers++
	if d.waiting[node] >= maxWaiting {
		return l, "", &fault.RetryError{Err: errBusy, After: busyWait}
	}
	d.waiting[node]++
	d.waits++
	defer func() {
		d.waits--
		if d.waiting[node]--; d.waiting[node] == 0 {
			delete(d.waiting, node)
		}
	}()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		l, _ = d.list(n)
		if now = tagOf(l); now != tag {
			return l, now, nil
		}
		changed, later := d.changed, rand.N(time.Duration(d.waits)*spread)
		d.mu.Unlock()
		select {
		case <-changed:
			d.sleep(ctx, over.C, later)
			d.mu.Lock()
		case <-over.C:
			d.mu.Lock()
			return l, now, nil
		case <-d.ended:
			d.mu.Lock()
			return l, now, nil
		case <-ctx.Done():
			d.mu.Lock()
			return l, "", ctx.Err()
		}
	}
}

// sleep waits for a time, until ctx or d ends, or until the timer of over fires.
func (d *directiveSource) sleep(ctx context.Context, over <-chan time.Time, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-over:
	case <-d.ended:
	case <-ctx.Done():
	}
}

// admit counts a request of a node. The error wraps errBusy if the node sent too many.
func (d *directiveSource) admit(node string) error {
	if wait := d.limiter.Take(node, time.Now()); wait > 0 {
		return &fault.RetryError{Err: errBusy, After: wait}
	}
	return nil
}

// noteRejected notes which sections a node does not follow.
func (d *directiveSource) noteRejected(node string, names []string) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(sectionNames, name) })
	slices.Sort(names)
	names = slices.Compact(names)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(names) == 0 {
		delete(d.rejected, node)
		return
	}
	if now := time.Now(); !slices.Equal(d.rejected[node].names, names) && d.logLimiter.Allow(node, now) {
		d.log.Warn("a node does not follow directives; its log says why", "node", node, "sections", strings.Join(names, ","))
	}
	d.rejected[node] = rejection{names, time.Now()}
}

// section returns a content that holds for a node, by its hash.
func (d *directiveSource) section(ctx context.Context, node, hash string) (*content, error) {
	if err := d.admit(node); err != nil {
		return nil, err
	}
	n, err := d.ledger.Node(ctx, node)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, contents := d.list(n)
	for _, c := range contents {
		if c != nil && c.hash == hash {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no section with this hash holds for this node: %w", fault.ErrNotFound)
}

// handler serves GET /v1/directives and GET /v1/directives/HASH to the nodes that identify returns.
func (d *directiveSource) handler(identify func(*http.Request) (node, cluster string, err error)) http.Handler {
	serve := func(answer func(w http.ResponseWriter, r *http.Request, node string) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			err := httpx.CheckMethod(w, r, http.MethodGet)
			if err == nil {
				var node string
				if node, _, err = identify(r); err != nil {
					err = httpx.Unidentified(err)
				} else {
					err = answer(w, r, node)
				}
			}
			if err != nil && r.Context().Err() == nil {
				httpx.Fail(w, err)
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/directives", serve(d.serveList))
	mux.Handle("/v1/directives/{hash}", serve(d.serveSection))
	return mux
}

func (d *directiveSource) serveList(w http.ResponseWriter, r *http.Request, node string) error {
	wait, err := parseWait(r)
	if err != nil {
		return err
	}
	control, end := http.NewResponseController(w), time.Now().Add(wait+time.Minute)
	_, _ = control.SetReadDeadline(end), control.SetWriteDeadline(end) // only the writers of tests have no deadlines
	var rejected []string
	for name := range strings.SplitSeq(r.Header.Get(directives.HeaderRejected), ",") {
		rejected = append(rejected, strings.TrimSpace(name))
	}
	tag := strings.TrimPrefix(r.Header.Get("If-None-Match"), "W/") // a proxy may have added that
	l, now, err := d.await(r.Context(), node, tag, wait, rejected)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", now)
	if now == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	httpx.WriteJSON(w, http.StatusOK, l)
	return nil
}

// parseWait returns how long a request may wait.
func parseWait(r *http.Request) (time.Duration, error) {
	q := r.URL.Query()
	text := q.Get("wait")
	if len(q) > 1 || len(q) == 1 && len(q["wait"]) != 1 {
		return 0, fmt.Errorf("the only parameter is wait, once: %w", fault.ErrInvalid)
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || time.Duration(n)*time.Second > maxWait {
		return 0, fmt.Errorf("wait=%.20q is not a number of seconds up to %d: %w", text, int(maxWait/time.Second), fault.ErrInvalid)
	}
	return time.Duration(n) * time.Second, nil
}

func (d *directiveSource) serveSection(w http.ResponseWriter, r *http.Request, node string) error {
	if len(r.URL.Query()) > 0 {
		return fmt.Errorf("there are no parameters: %w", fault.ErrInvalid)
	}
	c, err := d.section(r.Context(), node, r.PathValue("hash"))
	if err != nil {
		return err
	}
	body := c.Encode(w.Header(), r)
	d.mu.Lock()
	d.bytes += int64(len(body))
	d.mu.Unlock()
	httpx.Write(w, http.StatusOK, "application/json", body)
	return nil
}

// directiveStats counts requests of agents.
type directiveStats struct {
	Waiting  int              // requests
	Answers  int64            // requests for the list, waiting ones among them
	Bytes    int64            // of contents
	Rejected map[string]int64 // nodes that do not follow a section
}

func (d *directiveSource) stats() directiveStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := directiveStats{Waiting: d.waits, Answers: d.answers, Bytes: d.bytes, Rejected: map[string]int64{}}
	for _, name := range sectionNames {
		s.Rejected[name] = 0
	}
	for node, r := range d.rejected {
		if time.Since(r.at) > rejectedFor {
			delete(d.rejected, node)
			continue
		}
		for _, name := range r.names {
			s.Rejected[name]++
		}
	}
	return s
}

// Directives implements directives.Server.
func (t Transport) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (l directive.List, newTag string, changed bool, err error) {
	if err := t.server.Authority.CheckAllowed(ctx, t.node); err != nil {
		return l, "", false, err
	}
	l, newTag, err = t.server.directives.await(ctx, t.node, tag, wait, rejected)
	return l, newTag, newTag != tag, err
}

// Section implements directives.Server.
func (t Transport) Section(ctx context.Context, hash string) ([]byte, error) {
	if err := t.server.Authority.CheckAllowed(ctx, t.node); err != nil {
		return nil, err
	}
	c, err := t.server.directives.section(ctx, t.node, hash)
	if err != nil {
		return nil, err
	}
	return c.Plain, nil
}

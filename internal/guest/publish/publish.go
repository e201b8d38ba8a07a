// Package publish gives virtual machines their share of this machine's energy, tick by tick: in
// files, and over sockets on which they acknowledge what they booked.
//
// [Publisher.Publish] is called after each tick and does not block: [Publisher.Run] and [Publisher.Serve] write
// files and serve connections.
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/sleep"
)

// A Config configures the handover. The zero value disables it.
type Config struct {
	// Dir is the directory that holds one folder for each virtual machine; "" disables files. It
	// must exist, except DefaultDir, which is used if it exists.
	Dir string
	// VSock enables AF_VSOCK, once a virtual machine has a CID.
	VSock bool
	// Sockets are unix sockets, each for the connections of one virtual machine, as some
	// hypervisors provide them.
	Sockets []Socket
}

// A Socket accepts connections of one virtual machine.
type Socket struct {
	Guest string // its UUID, in lower case with dashes
	Path  string
}

// DefaultDir is the directory that Scaphandre uses for folders of virtual machines.
const DefaultDir = "/var/lib/libvirt/scaphandre"

// Default enables files in DefaultDir, if it exists, and AF_VSOCK.
func Default() Config { return Config{Dir: DefaultDir, VSock: true} }

func (c Config) Validate() error {
	for _, s := range c.Sockets {
		if !energyshare.IsUUID(s.Guest) || s.Path == "" {
			return fault.WithHint(fmt.Errorf("virtual machine %q with socket %q: %w", s.Guest, s.Path, fault.ErrInvalid),
				"give UUID=PATH, the UUID in lower case with dashes, as `virsh domuuid` writes it")
		}
	}
	return nil
}

// A Publisher serves the virtual machines of this machine. One goroutine calls Publish; other methods
// are safe for concurrent use.
type Publisher struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	round  uint64
	guests map[workload.ID]*guest
	cids   map[uint32]*guest // nil if two guests share a CID
	serial int64             // of the newest guest
	files  files

	wake     chan struct{} // some shares are not in files yet
	hasCID   chan struct{} // closed once a virtual machine has a CID
	firstCID sync.Once
	open     func(port uint32) (Listener, error) // listens at a port of AF_VSOCK
}

// A guest is a virtual machine that receives shares.
type guest struct {
	serial      int64 // order of first appearance
	round       uint64
	latest      attribute.Guest
	line        []byte // the latest share, encoded; immutable
	ring        ring
	streams     map[*stream]struct{}
	connectedAt time.Time // latest connection

	published, unknown int64
	equal, differing   int64
	acked              energyshare.Ack // latest
}

// New returns a publisher without shares.
func New(cfg Config, log *slog.Logger) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, log: log, guests: map[workload.ID]*guest{}, cids: map[uint32]*guest{},
		files: files{dir: cfg.Dir, keepFor: keepFolderFor, folders: map[workload.ID]*folder{}, log: log},
		wake:  make(chan struct{}, 1), hasCID: make(chan struct{}), open: openVSock}, nil
}

// Publish takes the shares of all virtual machines after a tick, from attribute.Accounts.Guests. A
// virtual machine that is missing has ended.
func (r *Publisher) Publish(given []attribute.Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	changed := false
	for i := range given {
		v := &given[i]
		if v.Share.Epoch == "" {
			continue // nothing is booked yet
		}
		g := r.guests[v.Workload]
		if g == nil {
			r.serial++
			g = &guest{serial: r.serial, streams: map[*stream]struct{}{}}
			r.guests[v.Workload] = g
		}
		g.round = r.round
		if v.Share.Epoch == g.latest.Share.Epoch && v.Share.N == g.latest.Share.N {
			continue
		}
		changed = true
		g.latest = *v
		g.published++
		g.ring.put(&v.Share)
		m := energyshare.Message{Share: v.Share, Name: v.Guest.Name, VCPUs: v.Guest.VCPUs}
		g.line = energyshare.Append(make([]byte, 0, 320), &m)
		for s := range g.streams {
			notify(s.wake)
		}
	}
	for id, g := range r.guests {
		if g.round != r.round {
			changed = true
			delete(r.guests, id)
			for s := range g.streams {
				s.stop("this virtual machine no longer exists here")
			}
		}
	}
	r.mapCIDs()
	if changed {
		notify(r.wake)
	}
}

// mapCIDs updates the map of CIDs. A CID of two virtual machines maps to nil.
func (r *Publisher) mapCIDs() {
	clear(r.cids)
	for _, g := range r.guests {
		cid := g.latest.Guest.CID
		if cid == 0 {
			continue
		}
		if _, twice := r.cids[cid]; twice {
			g = nil
		}
		r.cids[cid] = g
	}
	if len(r.cids) > 0 {
		r.firstCID.Do(func() { close(r.hasCID) })
	}
}

// notify wakes a receiver without blocking.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes files and listens until ctx ends. It logs and retries failures.
func (r *Publisher) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if r.cfg.Dir != "" {
		g.Go(func() error { return r.writeFiles(ctx) })
	}
	if r.cfg.VSock {
		for _, port := range []uint32{energyshare.Port, energyshare.OpenPort} {
			g.Go(func() error { return r.listen(ctx, port) })
		}
	}
	for _, s := range r.cfg.Sockets {
		g.Go(func() error { return r.serveSocket(ctx, s) })
	}
	return g.Wait()
}

// writeFiles writes new shares to files.
func (r *Publisher) writeFiles(ctx context.Context) error {
	defer r.files.close()
	var list []entry
	t := time.NewTicker(retryEvery) // for removals
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-t.C:
		}
		list = r.entries(list[:0])
		r.files.update(time.Now(), list)
	}
}

// entries lists the content of files in order of first appearance.
func (r *Publisher) entries(list []entry) []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, g := range r.guests {
		list = append(list, entry{serial: g.serial, id: id, name: g.latest.Guest.Name, uuid: g.latest.Guest.UUID, gid: g.latest.Guest.GID, energy: g.latest.Share.Energy(), line: g.line})
	}
	slices.SortFunc(list, func(a, b entry) int { return int(a.serial - b.serial) })
	return list
}

// retryEvery is the interval between retries.
const retryEvery = 10 * time.Second

// openVSock listens at a port of AF_VSOCK.
func openVSock(port uint32) (Listener, error) {
	l, err := vsock.Listen(port)
	if err != nil {
		return nil, err // avoid an interface holding a nil pointer
	}
	return l, nil
}

// listen serves virtual machines at a port of AF_VSOCK once one has a CID.
func (r *Publisher) listen(ctx context.Context, port uint32) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.hasCID:
	}
	for o := (outage{}); ; {
		l, err := r.open(port)
		if errors.Is(err, fault.ErrUnsupported) {
			r.log.Info("virtual machines cannot be served by vsock", "err", err)
			return nil
		}
		if err == nil {
			o = outage{}
			r.log.Info("virtual machines are served by vsock", "port", port)
			err = r.Serve(ctx, l)
		}
		o.report(r.log, "virtual machines are not served by vsock; retrying", "", err, "port", port)
		if sleep.For(ctx, retryEvery) != nil {
			return nil
		}
	}
}

// A Status is the state of the handover to one virtual machine.
type Status struct {
	Guest     string `json:"guest"` // UUID
	Name      string `json:"name"`
	Published int64  `json:"published"` // shares
	Streams   int    `json:"streams"`   // open connections
	// Equal, Differing and Unknown count acknowledgments: with the energy that was given, with
	// another, and of shares that are no longer kept here.
	Equal     int64 `json:"equal"`
	Differing int64 `json:"differing"`
	Unknown   int64 `json:"unknown"`
}

// Status returns the state of each virtual machine, by UUID.
func (r *Publisher) Status() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Status
	for _, g := range slices.SortedFunc(maps.Values(r.guests), func(a, b *guest) int {
		if c := strings.Compare(a.latest.Guest.UUID, b.latest.Guest.UUID); c != 0 {
			return c
		}
		return int(a.serial - b.serial)
	}) {
		list = append(list, Status{g.latest.Guest.UUID, g.latest.Guest.Name, g.published, len(g.streams), g.equal, g.differing, g.unknown})
	}
	return list
}

// An outage tracks a failure for logging.
type outage struct{ text string }

// report logs when the failure begins and when it ends.
func (o *outage) report(log *slog.Logger, begins, ends string, err error, attrs ...any) {
	switch {
	case err != nil && o.text == "":
		o.text = err.Error()
		log.Warn(begins, fault.Attrs(err, attrs...)...)
	case err == nil && o.text != "":
		o.text = ""
		if ends != "" {
			log.Info(ends, attrs...)
		}
	}
}

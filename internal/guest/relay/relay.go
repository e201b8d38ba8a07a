// Package relay gives virtual machines their share of this machine's energy,
// tick by tick: in files, and by sockets on which it hears what they booked.
//
// [Relay.Publish] is called after each tick and never waits: files are written
// and connections served by [Relay.Run] and [Relay.Serve].
package relay

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
	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/sleep"
)

// A Config says how to hand over. Its zero value hands nothing over.
type Config struct {
	// Dir is the directory that holds one folder for each virtual machine; "" is
	// none. It has to be there, but for DefaultDir, which is written to if it is.
	Dir string
	// VSock says to listen by AF_VSOCK, from when a virtual machine has a CID.
	VSock bool
	// Sockets are unix sockets at which the connections of one virtual machine
	// each arrive, as some hypervisors hand them over.
	Sockets []Socket
}

// A Socket is where connections of a virtual machine arrive.
type Socket struct {
	Guest string // its UUID, in lower case with dashes
	Path  string
}

// DefaultDir is where libvirt's users of Scaphandre have folders for virtual
// machines.
const DefaultDir = "/var/lib/libvirt/scaphandre"

// Default is files in DefaultDir, where that is there, and AF_VSOCK.
func Default() Config { return Config{Dir: DefaultDir, VSock: true} }

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	for _, s := range c.Sockets {
		if !share.IsUUID(s.Guest) || s.Path == "" {
			return fault.WithHint(fmt.Errorf("virtual machine %q with the socket %q: %w", s.Guest, s.Path, fault.ErrInvalid),
				"give UUID=PATH, the UUID in lower case with dashes, as `virsh domuuid` writes it")
		}
	}
	return nil
}

// A Relay is this machine as its virtual machines see it. Publish is called by
// one goroutine, all else by any.
type Relay struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	round  uint64
	guests map[workload.ID]*guest
	cids   map[uint32]*guest // nil where two have the same
	serial int64             // of the guest that was seen last
	files  files

	wake   chan struct{} // there are shares that are not in files yet
	hasCID chan struct{} // there is a virtual machine with a CID
}

// A guest is a virtual machine that is given shares.
type guest struct {
	serial      int64 // in order of first sight
	round       uint64
	latest      attribute.Guest
	line        []byte // the latest share as it is sent; never written to again
	ring        ring
	streams     map[*stream]struct{}
	connectedAt time.Time // when it connected last

	published, unknown int64
	equal, differing   int64
	acked              share.Ack // latest
}

// New returns a host that has published nothing yet.
func New(cfg Config, log *slog.Logger) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Relay{cfg: cfg, log: log, guests: map[workload.ID]*guest{}, cids: map[uint32]*guest{},
		files: files{dir: cfg.Dir, keepFor: keepFolderFor, folders: map[workload.ID]*folder{}, log: log},
		wake:  make(chan struct{}, 1), hasCID: make(chan struct{}, 1)}, nil
}

// Publish takes what each virtual machine was given up to a tick, as
// attribute.Accounts.Guests has it. One that is not among them any more has ended.
func (r *Relay) Publish(given []attribute.Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	changed := false
	for i := range given {
		v := &given[i]
		if v.Share.Epoch == "" {
			continue // nothing was booked yet
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
		m := share.Message{Share: v.Share, Name: v.Guest.Name, VCPUs: v.Guest.VCPUs}
		g.line = share.Append(make([]byte, 0, 320), &m)
		for s := range g.streams {
			notify(s.wake)
		}
	}
	for id, g := range r.guests {
		if g.round != r.round {
			changed = true
			delete(r.guests, id)
			for s := range g.streams {
				s.stop("this virtual machine is not known any more")
			}
		}
	}
	r.mapCIDs()
	if changed {
		notify(r.wake)
	}
}

// mapCIDs finds who has which CID. A CID that two seem to have is nobody's.
func (r *Relay) mapCIDs() {
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
		notify(r.hasCID)
	}
}

// notify says that there is something to do, to whom has not heard it yet.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes files and listens, until ctx ends. What cannot be had for now is
// logged and tried again.
func (r *Relay) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if r.cfg.Dir != "" {
		g.Go(func() error { return r.writeFiles(ctx) })
	}
	if r.cfg.VSock {
		g.Go(func() error { return r.listen(ctx) })
	}
	for _, s := range r.cfg.Sockets {
		g.Go(func() error { return r.serveSocket(ctx, s) })
	}
	return g.Wait()
}

// writeFiles puts shares into files, as they come.
func (r *Relay) writeFiles(ctx context.Context) error {
	defer r.files.close()
	var list []entry
	t := time.NewTicker(retryEvery) // for what is to be removed
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

// entries lists what is to be in files, who was there first first.
func (r *Relay) entries(list []entry) []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, g := range r.guests {
		list = append(list, entry{serial: g.serial, id: id, name: g.latest.Guest.Name, uuid: g.latest.Guest.UUID, energy: g.latest.Share.Energy(), line: g.line})
	}
	slices.SortFunc(list, func(a, b entry) int { return int(a.serial - b.serial) })
	return list
}

// retryEvery is how long to wait before what did not work is tried anew.
const retryEvery = 10 * time.Second

// listen serves virtual machines by AF_VSOCK from when one has a CID.
func (r *Relay) listen(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.hasCID:
	}
	for o := (outage{}); ; {
		l, err := vsock.Listen(share.Port)
		if errors.Is(err, fault.ErrUnsupported) {
			r.log.Info("virtual machines cannot be served by vsock", "err", err)
			return nil
		}
		if err == nil {
			o = outage{}
			r.log.Info("virtual machines are served by vsock", "port", share.Port)
			err = r.Serve(ctx, l)
		}
		o.report(r.log, "virtual machines are not served by vsock; it is tried again", "", err, "port", share.Port)
		if sleep.For(ctx, retryEvery) != nil {
			return nil
		}
	}
}

// A Status is how handing over to one virtual machine goes.
type Status struct {
	Guest     string `json:"guest"` // UUID
	Name      string `json:"name"`
	Published int64  `json:"published"` // shares
	Streams   int    `json:"streams"`   // connections at present
	// Equal, Differing and Unknown count what the virtual machine said to have
	// booked: the same as it was given, something else, and up to shares that are
	// not known here any more.
	Equal     int64 `json:"equal"`
	Differing int64 `json:"differing"`
	Unknown   int64 `json:"unknown"`
}

// Status returns how it goes for each virtual machine, by UUID.
func (r *Relay) Status() []Status {
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

// An outage is what does not work for now.
type outage struct{ text string }

// report logs when it begins, and when it ends.
func (o *outage) report(log *slog.Logger, begins, ends string, err error, attrs ...any) {
	switch {
	case err != nil && o.text == "":
		o.text = err.Error()
		log.Warn(begins, append(attrs, "err", err, "hint", fault.Hint(err))...)
	case err == nil && o.text != "":
		o.text = ""
		if ends != "" {
			log.Info(ends, attrs...)
		}
	}
}

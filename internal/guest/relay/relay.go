// Package relay gives virtual machines their share of this machine's energy,
// tick by tick: in files, and by sockets on which it hears what they booked.
//
// [Host.Publish] is called after each tick and never waits: files are written
// and connections served by [Host.Run] and [Host.Serve].
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

// A Host is this machine as its virtual machines see it. Publish is called by
// one goroutine, all else by any.
type Host struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	round  uint64
	guests map[workload.ID]*guest
	cids   map[uint32]*guest // nil where two have the same
	serial int64             // of the guest that was seen last
	files  files

	wake chan struct{} // there are shares that are not in files yet
	cid  chan struct{} // there is a virtual machine with a CID
}

// A guest is a virtual machine that is given shares.
type guest struct {
	serial int64 // in order of first sight
	round  uint64
	given  attribute.Guest
	line   []byte // the latest share as it is sent; never written to again
	ring   ring
	conns  map[*stream]struct{}
	last   time.Time // when it connected last

	published, unknown int64
	equal, differing   int64
	acked              share.Ack // latest
}

// New returns a host that has published nothing yet.
func New(cfg Config, log *slog.Logger) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Host{cfg: cfg, log: log, guests: map[workload.ID]*guest{}, cids: map[uint32]*guest{},
		files: files{dir: cfg.Dir, wait: leftFor, folders: map[workload.ID]*folder{}, log: log},
		wake:  make(chan struct{}, 1), cid: make(chan struct{}, 1)}, nil
}

// Publish takes what each virtual machine was given up to a tick, as
// attribute.Books.Guests has it. One that is not among them any more has ended.
func (h *Host) Publish(given []attribute.Guest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.round++
	changed := false
	for i := range given {
		v := &given[i]
		if v.Share.Epoch == "" {
			continue // nothing was booked yet
		}
		g := h.guests[v.Workload]
		if g == nil {
			h.serial++
			g = &guest{serial: h.serial, conns: map[*stream]struct{}{}}
			h.guests[v.Workload] = g
		}
		g.round = h.round
		if v.Share.Epoch == g.given.Share.Epoch && v.Share.N == g.given.Share.N {
			continue
		}
		changed = true
		g.given = *v
		g.published++
		g.ring.put(&v.Share)
		m := share.Message{Share: v.Share, Name: v.Guest.Name, VCPUs: v.Guest.VCPUs}
		g.line = share.Append(make([]byte, 0, 320), &m)
		for s := range g.conns {
			notify(s.wake)
		}
	}
	for id, g := range h.guests {
		if g.round != h.round {
			changed = true
			delete(h.guests, id)
			for s := range g.conns {
				s.end("this virtual machine is not known any more")
			}
		}
	}
	h.address()
	if changed {
		notify(h.wake)
	}
}

// address finds who has which CID. A CID that two seem to have is nobody's.
func (h *Host) address() {
	clear(h.cids)
	for _, g := range h.guests {
		cid := g.given.Guest.CID
		if cid == 0 {
			continue
		}
		if _, twice := h.cids[cid]; twice {
			g = nil
		}
		h.cids[cid] = g
	}
	if len(h.cids) > 0 {
		notify(h.cid)
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
func (h *Host) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if h.cfg.Dir != "" {
		g.Go(func() error { return h.write(ctx) })
	}
	if h.cfg.VSock {
		g.Go(func() error { return h.listen(ctx) })
	}
	for _, s := range h.cfg.Sockets {
		g.Go(func() error { return h.serveSocket(ctx, s) })
	}
	return g.Wait()
}

// write puts shares into files, as they come.
func (h *Host) write(ctx context.Context) error {
	defer h.files.close()
	var list []entry
	t := time.NewTicker(again) // for what is to be removed
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		case <-t.C:
		}
		list = h.entries(list[:0])
		h.files.put(time.Now(), list)
	}
}

// entries lists what is to be in files, who was there first first.
func (h *Host) entries(list []entry) []entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, g := range h.guests {
		list = append(list, entry{serial: g.serial, id: id, name: g.given.Guest.Name, uuid: g.given.Guest.UUID, energy: g.given.Share.Energy(), line: g.line})
	}
	slices.SortFunc(list, func(a, b entry) int { return int(a.serial - b.serial) })
	return list
}

// again is how long to wait before what did not work is tried anew.
const again = 10 * time.Second

// listen serves virtual machines by AF_VSOCK from when one has a CID.
func (h *Host) listen(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.cid:
	}
	for t := (trouble{}); ; {
		l, err := vsock.Listen(share.Port)
		if errors.Is(err, fault.ErrUnsupported) {
			h.log.Info("virtual machines cannot be served by vsock", "err", err)
			return nil
		}
		if err == nil {
			t = trouble{}
			h.log.Info("virtual machines are served by vsock", "port", share.Port)
			err = h.Serve(ctx, l)
		}
		t.tell(h.log, "virtual machines are not served by vsock; it is tried again", "", err, "port", share.Port)
		if sleep.For(ctx, again) != nil {
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
func (h *Host) Status() []Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []Status
	for _, g := range slices.SortedFunc(maps.Values(h.guests), func(a, b *guest) int {
		if c := strings.Compare(a.given.Guest.UUID, b.given.Guest.UUID); c != 0 {
			return c
		}
		return int(a.serial - b.serial)
	}) {
		list = append(list, Status{g.given.Guest.UUID, g.given.Guest.Name, g.published, len(g.conns), g.equal, g.differing, g.unknown})
	}
	return list
}

// A trouble is what does not work for now.
type trouble struct{ text string }

// tell logs when it begins, and when it ends.
func (t *trouble) tell(log *slog.Logger, begins, ends string, err error, attrs ...any) {
	switch {
	case err != nil && t.text == "":
		t.text = err.Error()
		log.Warn(begins, append(attrs, "err", err, "hint", fault.Hint(err))...)
	case err == nil && t.text != "":
		t.text = ""
		if ends != "" {
			log.Info(ends, attrs...)
		}
	}
}

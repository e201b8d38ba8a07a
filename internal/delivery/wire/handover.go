package wire

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/proto"
)

// parseUUID reads a UUID in lower case with dashes. google/uuid takes other forms
// too, and the agent, which links this package, links few modules and not that one.
func parseUUID(s string) (raw [16]byte, ok bool) {
	if len(s) != 36 || s != strings.ToLower(s) || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return raw, false
	}
	b, err := hex.DecodeString(s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:])
	return [16]byte(append(b, make([]byte, 16)...)), err == nil && len(b) == 16
}

func formatUUID(raw [16]byte) string {
	s := hex.EncodeToString(raw[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// handoversOf returns the handovers of a window in the form in which they are sent. It
// omits handovers and shares that every server would refuse: they must not stop the
// window.
func handoversOf(w *usage.Window) []usage.Handover {
	if len(w.Handovers) == 0 {
		return nil
	}
	names := make(map[workload.ID]string, len(w.Rows))
	for i := range w.Rows {
		if r := w.Rows[i].Workload; r != nil { // nil in a window that was prepared before
			names[r.ID] = r.Name
		}
	}
	var list []usage.Handover
	for i := range w.Handovers {
		h := &w.Handovers[i]
		_, id := h.Workload.Bytes()
		if _, ok := parseUUID(h.Guest); !ok || h.Workload != "" && !id {
			continue
		}
		out := usage.Handover{Guest: h.Guest, Workload: h.Workload, Name: h.Name, Booked: h.Booked}
		if h.Workload == "" || names[h.Workload] == h.Name {
			out.Name = ""
		}
		if isValidShare(&h.Opened) {
			out.Opened = normalizeShare(&h.Opened)
		}
		shares := h.Shares
		if h.Workload == "" {
			shares = shares[max(0, len(shares)-1):]
		}
		for j := range shares {
			if isValidShare(&shares[j]) {
				out.Shares = append(out.Shares, normalizeShare(&shares[j]))
			}
		}
		list = append(list, out)
	}
	return list
}

// maxEpoch is how many bytes the name of an epoch has at most.
const maxEpoch = 64

// isValidShare says whether a share can be: it is of an epoch, and amounts are not
// negative, and add up.
func isValidShare(s *power.Share) bool {
	return s.Epoch != "" && len(s.Epoch) <= maxEpoch && s.N >= 0 && s.Active >= 0 && s.Idle >= 0 && s.Energy() >= 0
}

// normalizeShare returns the part of a share that is sent.
func normalizeShare(s *power.Share) power.Share {
	return power.Share{Epoch: cleanText(s.Epoch), N: s.N, Active: s.Active, Idle: s.Idle}
}

// A sharePredictor predicts the next share of one guest from its previous shares: each
// grows by as much as the previous share grew.
type sharePredictor struct {
	last, before power.Share // without an epoch there is none
}

// next returns the prediction of the next share of an epoch; its field Epoch has no meaning.
func (f *sharePredictor) next(epoch string) power.Share {
	switch {
	case f.last.Epoch != epoch:
		return power.Share{}
	case f.before.Epoch != epoch:
		return f.last
	}
	a, b := &f.last, &f.before
	return power.Share{N: 2*a.N - b.N, Active: 2*a.Active - b.Active, Idle: 2*a.Idle - b.Idle}
}

func (f *sharePredictor) update(s *power.Share) {
	f.before, f.last = f.last, *s
}

// booked returns the amount of a handover that was booked according to its shares.
func booked(h *usage.Handover) int64 {
	if len(h.Shares) == 0 {
		return 0
	}
	s := &h.Shares[len(h.Shares)-1]
	if s.Epoch != h.Opened.Epoch {
		return s.Energy()
	}
	return s.Energy() - h.Opened.Energy()
}

// A handoverWriter puts handovers into columns.
type handoverWriter struct {
	m      proto.Handovers
	guests map[guest]uint32
	states []sharePredictor // of the guests
	epochs map[string]uint32
}

// A guest is one that handovers are of.
type guest struct {
	uuid     string
	workload workload.ID
	name     string
}

func handoversMessage(windows []usage.Window) (*proto.Handovers, error) {
	if !slices.ContainsFunc(windows, func(w usage.Window) bool { return len(w.Handovers) > 0 }) {
		return nil, nil
	}
	w := handoverWriter{guests: map[guest]uint32{}, epochs: map[string]uint32{}}
	for i := range windows {
		w.m.Counts = append(w.m.Counts, uint32(len(windows[i].Handovers)))
		for j := range windows[i].Handovers {
			if err := w.put(&windows[i].Handovers[j]); err != nil {
				return nil, fmt.Errorf("window %d: handover %d: %w", i, j, err)
			}
		}
	}
	w.m.Opened, w.m.Booked, w.m.Epoch = omitZeros(w.m.Opened), omitZeros(w.m.Booked), omitZeros(w.m.Epoch)
	return &w.m, nil
}

func (w *handoverWriter) put(h *usage.Handover) error {
	at, err := w.guestIndex(h)
	if err != nil {
		return err
	}
	f, opened := &w.states[at], normalizeShare(&h.Opened)
	w.m.Guest, w.m.Shares = append(w.m.Guest, at), append(w.m.Shares, uint32(len(h.Shares)))
	switch {
	case opened.Epoch == "":
		w.m.Opened = append(w.m.Opened, proto.Opened_OPENED_NONE)
	case opened == f.last:
		w.m.Opened = append(w.m.Opened, proto.Opened_OPENED_LAST)
	default:
		w.m.Opened = append(w.m.Opened, proto.Opened_OPENED_TOLD)
		if err := w.writeShare(f, opened); err != nil {
			return err
		}
	}
	for i := range h.Shares {
		if err := w.writeShare(f, normalizeShare(&h.Shares[i])); err != nil {
			return err
		}
	}
	w.m.Booked = append(w.m.Booked, h.Booked-booked(h))
	return nil
}

// guestIndex is the place of a handover's guest.
func (w *handoverWriter) guestIndex(h *usage.Handover) (uint32, error) {
	g := guest{h.Guest, h.Workload, cleanText(h.Name)}
	at, ok := w.guests[g]
	if ok {
		return at, nil
	}
	uuid, ok := parseUUID(g.uuid)
	if !ok {
		return 0, invalid("guest %q is not a UUID", g.uuid)
	}
	m := &proto.Guest{Uuid: uuid[:], Name: g.name}
	if g.workload != "" {
		id, ok := g.workload.Bytes()
		if !ok {
			return 0, invalid("workload %q is malformed", g.workload)
		}
		m.Workload = id[:]
	}
	at = uint32(len(w.m.Guests))
	w.guests[g] = at
	w.m.Guests, w.states = append(w.m.Guests, m), append(w.states, sharePredictor{})
	return at, nil
}

func (w *handoverWriter) writeShare(f *sharePredictor, s power.Share) error {
	if !isValidShare(&s) {
		return invalid("share %d: %d and %d uJ of epoch %q", s.N, s.Active, s.Idle, s.Epoch)
	}
	at, ok := w.epochs[s.Epoch]
	if !ok {
		at = uint32(len(w.m.Epochs))
		w.epochs[s.Epoch] = at
		w.m.Epochs = append(w.m.Epochs, s.Epoch)
	}
	p := f.next(s.Epoch)
	w.m.Epoch = append(w.m.Epoch, at)
	w.m.N, w.m.Active, w.m.Idle = append(w.m.N, s.N-p.N), append(w.m.Active, s.Active-p.Active), append(w.m.Idle, s.Idle-p.Idle)
	f.update(&s)
	return nil
}

// A handoverReader takes handovers out of columns.
type handoverReader struct {
	m      *proto.Handovers
	guests []guest
	states []sharePredictor
	at     int // the next share
	total  int
}

// handoversFrom reads the handovers of all windows.
func handoversFrom(windows []usage.Window, m *proto.Handovers, l Limits) error {
	if m == nil {
		return nil
	}
	total := uint64(0)
	for _, n := range m.Counts {
		total += uint64(n)
	}
	r := handoverReader{m: m, total: len(m.N)}
	switch {
	case total > uint64(l.Handovers):
		return invalid("%d, more than %d", total, l.Handovers)
	case r.total > l.Shares:
		return invalid("%d shares, more than %d", r.total, l.Shares)
	case len(m.Counts) != len(windows):
		return invalid("counts of %d windows for %d", len(m.Counts), len(windows))
	case len(m.Guest) != int(total), len(m.Shares) != int(total), !isComplete(m.Opened, int(total)), !isComplete(m.Booked, int(total)):
		return invalid("%d do not have all columns", total)
	case len(m.Active) != r.total || len(m.Idle) != r.total || !isComplete(m.Epoch, r.total):
		return invalid("%d shares do not have all columns", r.total)
	case slices.ContainsFunc(m.Epochs, func(s string) bool { return s == "" || len(s) > maxEpoch }):
		return invalid("the name of an epoch is not of 1 to %d bytes", maxEpoch)
	}
	if err := checkTexts(l, m.Epochs...); err != nil {
		return err
	}
	if err := r.readGuests(l); err != nil {
		return err
	}
	next := 0
	for i, count := range m.Counts {
		if count == 0 {
			continue
		}
		list := make([]usage.Handover, count)
		for j := range list {
			if err := r.read(&list[j], next); err != nil {
				return fmt.Errorf("window %d: %w", i, err)
			}
			next++
		}
		windows[i].Handovers = list
	}
	if r.at != r.total {
		return invalid("there are more shares than handovers have")
	}
	return nil
}

// readGuests reads the guests of the handovers.
func (r *handoverReader) readGuests(l Limits) error {
	r.guests, r.states = make([]guest, len(r.m.Guests)), make([]sharePredictor, len(r.m.Guests))
	for i, g := range r.m.Guests {
		if len(g.Uuid) != 16 || len(g.Workload) != 16 && len(g.Workload) != 0 {
			return invalid("guest %d: a UUID of %d and a workload of %d bytes, not 16", i, len(g.Uuid), len(g.Workload))
		}
		if err := checkTexts(l, g.Name); err != nil {
			return fmt.Errorf("guest %d: %w", i, err)
		}
		r.guests[i] = guest{uuid: formatUUID([16]byte(g.Uuid)), name: g.Name}
		if len(g.Workload) > 0 {
			r.guests[i].workload = workload.IDFromBytes([16]byte(g.Workload))
		}
	}
	return nil
}

// read reads the i-th handover.
func (r *handoverReader) read(h *usage.Handover, i int) error {
	place := r.m.Guest[i]
	if uint64(place) >= uint64(len(r.guests)) {
		return invalid("handover %d is of guest %d of %d", i, place, len(r.guests))
	}
	g, f := r.guests[place], &r.states[place]
	h.Guest, h.Workload, h.Name = g.uuid, g.workload, g.name
	var err error
	switch opened := elementAt(r.m.Opened, i); opened {
	case proto.Opened_OPENED_NONE:
	case proto.Opened_OPENED_LAST:
		if f.last.Epoch == "" {
			return invalid("handover %d continues from the last share of a guest without shares", i)
		}
		h.Opened = f.last
	case proto.Opened_OPENED_TOLD:
		if h.Opened, err = r.readShare(f); err != nil {
			return err
		}
	default:
		return invalid("handover %d: opened %d is unknown", i, opened)
	}
	if n := r.m.Shares[i]; n > 0 {
		if uint64(n) > uint64(r.total-r.at) {
			return invalid("handover %d has %d shares, more than are left", i, n)
		}
		h.Shares = make([]power.Share, n)
		for j := range h.Shares {
			if h.Shares[j], err = r.readShare(f); err != nil {
				return err
			}
		}
	}
	h.Booked = booked(h) + elementAt(r.m.Booked, i)
	return nil
}

// readShare reads the next share, one of the guest that f knows.
func (r *handoverReader) readShare(f *sharePredictor) (s power.Share, err error) {
	if r.at >= r.total {
		return s, invalid("shares are missing")
	}
	place := elementAt(r.m.Epoch, r.at)
	if uint64(place) >= uint64(len(r.m.Epochs)) {
		return s, invalid("share %d is of epoch %d of %d", r.at, place, len(r.m.Epochs))
	}
	epoch := r.m.Epochs[place]
	p := f.next(epoch)
	s = power.Share{Epoch: epoch, N: p.N + r.m.N[r.at], Active: p.Active + r.m.Active[r.at], Idle: p.Idle + r.m.Idle[r.at]}
	if !isValidShare(&s) {
		return s, invalid("share %d: number %d, %d and %d uJ", r.at, s.N, s.Active, s.Idle)
	}
	f.update(&s)
	r.at++
	return s, nil
}

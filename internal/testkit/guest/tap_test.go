package guest

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
)

// boottime returns CLOCK_BOOTTIME in ns, the clock of share timestamps.
func boottime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return ts.Nano()
}

// A record holds the shares of a guest as this machine sees them.
type record struct {
	mu     sync.Mutex
	shares map[int64]energyshare.Message // by n
}

// note stores a share.
func (r *record) note(m energyshare.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shares == nil {
		r.shares = map[int64]energyshare.Message{}
	}
	r.shares[m.N] = m
}

// get returns the n-th share.
func (r *record) get(n int64) (energyshare.Message, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.shares[n]
	return m, ok
}

// age returns the time between now and the meter readings of a share.
func (r *record) age(n, now int64) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.shares[n]
	return time.Duration(now - m.At), ok
}

// A tap is a connection of the guest to the host's agent that timestamps each answer on
// arrival.
type tap struct {
	net.Conn
	seen *record

	mu       sync.Mutex
	down, up []byte // incomplete lines
	ages     []time.Duration
	acks     []energyshare.Ack
}

// Read returns the data of the host's agent.
func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = each(append(t.down, b[:n]...), func(line []byte) {
		if m, err := energyshare.Decode(line); err == nil {
			t.seen.note(m)
		}
	})
	return n, err
}

// Write takes the data of the guest.
func (t *tap) Write(b []byte) (int, error) {
	now := boottime()
	t.mu.Lock()
	t.up = each(append(t.up, b...), func(line []byte) {
		a, err := energyshare.DecodeAck(line)
		if err != nil {
			return
		}
		t.acks = append(t.acks, a)
		if age, ok := t.seen.age(a.N, now); ok {
			t.ages = append(t.ages, age)
		}
	})
	t.mu.Unlock()
	return t.Conn.Write(b)
}

// each calls line for each line of b and returns the rest.
func each(b []byte, line func([]byte)) []byte {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return b
		}
		line(b[:i+1])
		b = b[i+1:]
	}
}

// acked returns the guest's answers on this connection so far, with the ages of the shares.
func (t *tap) acked() ([]energyshare.Ack, []time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.acks), slices.Clone(t.ages)
}

// quantile returns a quantile of sorted times.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// row formats a line of the table of delays.
func row(what string, all []time.Duration) string {
	ms := func(q float64) string { return fmt.Sprintf("%.0f", float64(quantile(all, q))/1e6) }
	return fmt.Sprintf("| %s | %d | %s | %s | %s |", what, len(all), ms(0.5), ms(0.99), ms(1))
}

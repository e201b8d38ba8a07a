package guest

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/share"
)

// boottime is CLOCK_BOOTTIME in ns, which shares are stamped in.
func boottime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // every Linux has it
	return ts.Nano()
}

// A record is the shares of a guest as this machine sees them go by.
type record struct {
	mu     sync.Mutex
	shares map[int64]share.Message // by n
}

// note keeps a share.
func (c *record) note(m share.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shares == nil {
		c.shares = map[int64]share.Message{}
	}
	c.shares[m.N] = m
}

// get returns the share of a number.
func (c *record) get(n int64) (share.Message, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.shares[n]
	return m, ok
}

// age returns how long before now the meters were read for a share.
func (c *record) age(n, now int64) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.shares[n]
	return time.Duration(now - m.At), ok
}

// A tap is a connection of the guest to the host's agent, on which each answer
// is stamped when it is here.
type tap struct {
	net.Conn
	seen *record

	mu       sync.Mutex
	down, up []byte // of a line that is not complete
	ages     []time.Duration
	acks     []share.Ack
}

// Read is what the host's agent says.
func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = each(append(t.down, b[:n]...), func(line []byte) {
		if m, err := share.Decode(line); err == nil {
			t.seen.note(m)
		}
	})
	return n, err
}

// Write is what the guest says.
func (t *tap) Write(b []byte) (int, error) {
	now := boottime()
	t.mu.Lock()
	t.up = each(append(t.up, b...), func(line []byte) {
		a, err := share.DecodeAck(line)
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

// each hands on each line of b and returns what is left.
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

// acked returns the guest's answers on this connection so far, each with how old
// the share was.
func (t *tap) acked() ([]share.Ack, []time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.acks), slices.Clone(t.ages)
}

// quantile is of times, in ascending order of q.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// row is a line of the table of how long shares take.
func row(what string, all []time.Duration) string {
	ms := func(q float64) string { return fmt.Sprintf("%.0f", float64(quantile(all, q))/1e6) }
	return fmt.Sprintf("| %s | %d | %s | %s | %s |", what, len(all), ms(0.5), ms(0.99), ms(1))
}

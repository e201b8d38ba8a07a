package receiver_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	_ "mete.dev/mete/internal/testkit/wirewarm"
)

// A crowd offers batches to a ledger that books one transaction at a time, each
// when the test lets it.
type crowd struct {
	t      *testing.T
	in     *receiver.Receiver
	ledger *ledger
	offers sync.WaitGroup
	nodes  byte
}

// newCrowd returns a crowd whose transactions have up to group rows. The ledger
// is already booking a first batch.
func newCrowd(t *testing.T, group int) *crowd {
	c := &crowd{t: t, ledger: newLedger()}
	c.ledger.hold = make(chan struct{})
	cfg := quick()
	cfg.QueueRows, cfg.GroupRows = 100_000, group
	c.in = start(t, cfg, c.ledger)
	c.light(1)
	until(t, "the first is being booked", func() bool { return c.calls() == 1 })
	return c
}

// light adds n waiting machines that each offer a live window, of 5 rows.
func (c *crowd) light(n int) {
	for range n {
		c.offer("live", 10*time.Second, 1)
	}
}

// heavy adds n waiting machines that each offer a day, of some 5760 rows.
func (c *crowd) heavy(n int) {
	for range n {
		c.offer("old", time.Minute, 1440)
	}
}

func (c *crowd) offer(kind string, length time.Duration, windows int) {
	c.nodes++
	m := newMachine("b", 25*time.Hour, c.nodes)
	// A window that crosses the edge of a minute has twice the rows: the first of
	// 10 s never does, one of a minute always.
	m.began = m.began.Truncate(time.Minute).Add(30 * time.Second)
	var ws []usage.Window
	for range windows {
		ws = append(ws, m.window(length))
	}
	node, sent, before := fmt.Sprint(kind, c.nodes), m.batch(c.t, ws...), c.in.Stats().Queue
	c.offers.Go(func() { offer(c.t, c.in, node, m.clock(), sent, batch.Accepted) })
	until(c.t, "it is queued", func() bool { return c.in.Stats().Queue > before })
}

func (c *crowd) calls() int {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	return c.ledger.begun
}

// booked lets the ledger book one transaction and returns how many batches of each
// kind it had. If more batches wait, the next transaction has then begun.
func (c *crowd) booked() (live, old int) {
	taken, calls := len(c.ledger.taken()), c.calls()
	c.ledger.hold <- struct{}{}
	until(c.t, "the next is being booked", func() bool { return c.calls() > calls || c.in.Stats().Queue == 0 })
	for _, e := range c.ledger.taken()[taken:] {
		if strings.HasPrefix(e.Node, "live") {
			live++
		} else {
			old++
		}
	}
	return live, old
}

// end lets the ledger book all remaining batches.
func (c *crowd) end() {
	close(c.ledger.hold)
	c.offers.Wait()
}

// TestLightPassesHeavy checks that live windows are booked before backlogs of other
// machines that arrived earlier.
func TestLightPassesHeavy(t *testing.T) { synctest.Test(t, testLightPassesHeavy) }

func testLightPassesHeavy(t *testing.T) {
	c := newCrowd(t, 100)
	c.heavy(6)
	c.light(15)
	c.booked()
	if live, old := c.booked(); live != 15 || old != 1 {
		t.Errorf("of 15 live windows and 6 backlogs that wait, the next transaction had %d and %d, want all and 1", live, old)
	}
	// The same holds after a transaction without live windows.
	c.light(10)
	for _, want := range []int{0, 10} {
		if live, old := c.booked(); live != want || old != 1 {
			t.Errorf("of 10 live windows that wait a transaction had %d, with %d backlogs, want %d and 1", live, old, want)
		}
	}
	c.end()
}

// However many live windows come, backlogs get on; and of live windows no
// transaction has more than its room.
func TestHeavyIsNotStarved(t *testing.T) { synctest.Test(t, testHeavyIsNotStarved) }

func testHeavyIsNotStarved(t *testing.T) {
	c := newCrowd(t, 100)
	c.heavy(4)
	c.light(60)
	c.booked()
	var got [][2]int
	for range 4 {
		live, old := c.booked()
		got = append(got, [2]int{live, old})
		c.light(20)
	}
	if slices.ContainsFunc(got, func(n [2]int) bool { return n != [2]int{20, 1} }) {
		t.Errorf("transactions of 100 rows had %v live windows of 5 rows and backlogs, want 20 and 1 each", got)
	}
	c.end()
}

// Where nothing is live, a transaction holds as many backlogs as there is room
// for.
func TestHeavyFillsGroup(t *testing.T) { synctest.Test(t, testHeavyFillsGroup) }

func testHeavyFillsGroup(t *testing.T) {
	c := newCrowd(t, 15_000)
	c.heavy(7)
	c.booked()
	for _, want := range []int{3, 3, 1} {
		if live, old := c.booked(); live != 0 || old != want {
			t.Errorf("a transaction had %d live windows and %d backlogs, want %d", live, old, want)
		}
	}
	c.end()
}

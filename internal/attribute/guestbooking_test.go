package attribute_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A hostWithGuest is a machine with a virtual machine on it, and the accounts of both.
type hostWithGuest struct {
	t *rapid.T

	host             *attribute.Accounts
	hostAt, rapl     int64 // of the host: its clock, and its meter in uJ
	hostCPU, guestUp int64
	boot             int
	hostVault        recordLog
	published        map[string]map[int64]int64 // by epoch and number, uJ; the latest where some came again
	sent             *power.Share               // what can be read

	guest      *attribute.Accounts
	guestAt    int64
	guestCPU   int64
	guestVault recordLog
	w          usage.Window
}

const uuid = "b5f2c9c0-3d6e-4a10-9d61-0f0f5a1b2c3d"

func (n *hostWithGuest) meters() *energy.Meters {
	return energy.New(energy.Config{Meters: allMeters[:1], Static: [power.DomainLimit]int64{power.Package: 30 * watt}})
}

func (n *hostWithGuest) hosts() *energy.Meters {
	return energy.New(energy.Config{Meters: []power.Meter{{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: second}},
		Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Power: 9 * watt}}, Source: "a curve"}})
}

// live advances the host for a while and publishes its share.
func (n *hostWithGuest) live(ns int64) {
	t := n.t
	n.goOn(ns, rapid.Int64Range(31, 90).Draw(t, "W"), rapid.Int64Range(0, 100).Draw(t, "percent"), rapid.Int64Range(0, 100).Draw(t, "of which the guest"))
}

// goOn advances the host with a power, a load and the guest's part of it.
func (n *hostWithGuest) goOn(ns, watts, load, part int64) {
	n.hostAt += ns
	n.rapl += ns / 1000 * watts
	used := ns / 100 * load
	n.hostCPU += used
	n.guestUp += used / 100 * part
	n.look()
}

// look is a tick of the host.
func (n *hostWithGuest) look() {
	s := two(n.hostAt, n.hostCPU, n.guestUp)
	s.Boot = fmt.Sprint("boot ", n.boot)
	s.Groups[1].Workload = workload.Workload{ID: "the guest", Kind: workload.VM, Name: "vm"}
	s.Groups[1].Guest = &usage.Guest{UUID: uuid, Name: "vm", VCPUs: 1}
	s.Before = []power.Reading{{At: n.hostAt, Value: n.rapl % allMeters[0].Wrap}}
	bal := n.host.Tick(s)
	if !bal.IsBalanced(usage.EnergyPackage) {
		n.t.Fatalf("host: the parts do not sum to the whole: %+v", bal)
	}
	for _, g := range n.host.Guests() {
		sh := g.Share
		if n.published[sh.Epoch] == nil {
			n.published[sh.Epoch] = map[int64]int64{}
		}
		if _, again := n.published[sh.Epoch][sh.N]; again {
			n.t.Fatalf("number %d of epoch %s is used again", sh.N, sh.Epoch)
		}
		n.published[sh.Epoch][sh.N], n.sent = sh.Energy(), &sh
	}
}

// begin starts the accounts of the host, new or restored.
func (n *hostWithGuest) begin() {
	n.host = attribute.New("host")
	if len(n.hostVault.records) > 0 {
		n.host = n.hostVault.restoreOf(n.t, "host")
	}
	n.host.SetMeters(n.meters())
}

func (v *recordLog) restoreOf(t *rapid.T, node string) *attribute.Accounts {
	acc, err := attribute.Restore(node, v.records)
	if err != nil {
		t.Fatal(err)
	}
	return acc
}

// read is a tick of the guest.
func (n *hostWithGuest) read(ns int64, r power.Reading) {
	n.guestAt += ns
	n.guestCPU += ns / 3
	s := two(n.guestAt, n.guestCPU, n.guestCPU/2)
	r.At = n.guestAt
	s.Before = []power.Reading{r}
	bal := n.guest.Tick(s)
	if !bal.IsBalanced(usage.EnergyRest) {
		n.t.Fatalf("guest: the parts do not sum to the whole: %+v", bal)
	}
}

func (n *hostWithGuest) sees() power.Reading {
	if n.sent == nil {
		return power.Reading{Err: "nothing is there"}
	}
	return power.Reading{Value: n.sent.Energy(), Share: n.sent}
}

// closes closes a window of the guest, and compares it with its handovers.
func (n *hostWithGuest) closes() {
	n.guest.CloseWindow(&n.w)
	if n.w.Balance.Violations > 0 {
		n.t.Fatalf("guest: %d violations", n.w.Balance.Violations)
	}
	sum := sumEnergies(n.t, &n.w)
	for _, h := range n.w.Handovers {
		last := h.Shares[len(h.Shares)-1]
		if h.Guest != uuid || h.Workload != "" {
			n.t.Fatalf("guest: handed over %+v", h)
		}
		if h.Opened.Epoch != last.Epoch {
			continue // it began or restarted in this window
		}
		now, _ := n.guest.Meters().BookedShare()
		if got := now.Energy() - h.Opened.Energy(); got != h.Booked || got != sum[usage.EnergyRest] || last.Energy() > now.Energy() {
			n.t.Fatalf("guest: booked from share to share are %d uJ, by the handover %d, by the rows %d", got, h.Booked, sum[usage.EnergyRest])
		}
	}
}

// TestGuestBooksWhatItsHostGave lets a host give its virtual machine energy at different times,
// late and with missing ticks, while either is restarted, killed or suspended, and while no share
// arrives. Once the guest has compensated what a model booked meanwhile, it has booked exactly what
// the host gave, share by share.
func TestGuestBooksWhatItsHostGave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &hostWithGuest{t: t, published: map[string]map[int64]int64{}, guest: attribute.New("guest"), guestAt: 5 * second, hostAt: 1000 * second}
		n.begin()
		n.guest.SetMeters(n.hosts())
		n.look()
		n.read(0, n.sees())
		var hw usage.Window
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 14).Draw(t, "what") {
			case 0: // the host's agent restarts after a pause
				n.host.CloseWindow(&hw)
				n.hostVault.save(n.host, rapid.Bool().Draw(t, "full"))
				n.begin()
				n.hostAt += rapid.Int64Range(0, 20).Draw(t, "away") * second
			case 1: // saved before
				n.host.CloseWindow(&hw)
				n.hostVault.save(n.host, rapid.Bool().Draw(t, "full"))
			case 2: // it is killed
				n.begin()
				n.hostAt += second
			case 3: // the host reboots, and with it the guest's share is gone
				n.boot++
				n.hostAt, n.rapl, n.hostCPU, n.guestUp = 50*second, 0, 0, 0
				n.begin()
				n.live(second)
			case 4: // the guest's agent restarts
				n.closes()
				n.guestVault.save(n.guest, rapid.Bool().Draw(t, "full"))
				n.guest = n.guestVault.restoreOf(t, "guest")
				n.guest.SetMeters(n.hosts())
			case 5: // saved before
				n.closes()
				n.guestVault.save(n.guest, rapid.Bool().Draw(t, "full"))
			case 6: // it is killed
				if len(n.guestVault.records) > 0 {
					n.guest = n.guestVault.restoreOf(t, "guest")
					n.guest.SetMeters(n.hosts())
				}
			case 7: // the guest is suspended without notice
				for range rapid.IntRange(1, 30).Draw(t, "paused") {
					n.live(second)
				}
				n.read(second/100, n.sees())
			case 8: // no share arrives
				for range rapid.IntRange(1, 10).Draw(t, "gone") {
					n.live(second)
					n.read(second, power.Reading{Err: "gone"})
				}
			case 9: // an old share repeats
				old := n.sees()
				for range rapid.IntRange(1, 10).Draw(t, "stale") {
					n.live(second)
					n.read(second, old)
				}
			case 10: // late
				old := n.sees()
				n.live(second)
				n.read(second, old)
				n.read(second/2, n.sees())
			case 11: // the guest misses ticks
				for range rapid.IntRange(1, 5).Draw(t, "left out") {
					n.live(second)
				}
				n.read(rapid.Int64Range(1, 9).Draw(t, "s")*second, n.sees())
			case 12:
				n.closes()
			default:
				n.live(rapid.Int64Range(1, 3000).Draw(t, "of those") * rapid.SampledFrom([]int64{1000, 1_000_000}).Draw(t, "ns"))
				n.read(rapid.Int64Range(1, 3000).Draw(t, "ms")*1_000_000, n.sees())
			}
		}
		for range 120 {
			n.goOn(second, 50, 60, 50)
			n.read(second, n.sees())
		}
		n.closes()
		for range 3 {
			n.live(second)
			n.read(second, n.sees())
			got, ok := n.guest.Meters().BookedShare()
			if want := n.published[got.Epoch][got.N]; !ok || got.Energy() != want || got.N != n.sent.N {
				t.Fatalf("booked %d uJ up to %+v, given were %d", got.Energy(), got, want)
			}
			n.closes()
			if h := n.w.Handovers[0]; h.Shares[len(h.Shares)-1] != got {
				t.Fatalf("handed over %+v, booked is %+v", h, got)
			}
		}
	})
}

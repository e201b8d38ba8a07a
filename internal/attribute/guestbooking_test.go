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

// A tenancy is a machine with a virtual machine on it, and the accounts of both.
type tenancy struct {
	t *rapid.T

	host             *attribute.Accounts
	hostAt, rapl     int64 // of the host: its clock, and its meter in uJ
	hostCPU, guestUp int64
	boot             int
	hostVault        vault
	published        map[string]map[int64]int64 // by epoch and number, uJ; the latest where some came again
	sent             *power.Share               // what can be read

	guest      *attribute.Accounts
	guestAt    int64
	guestCPU   int64
	guestVault vault
	w          usage.Window
}

const uuid = "b5f2c9c0-3d6e-4a10-9d61-0f0f5a1b2c3d"

func (n *tenancy) meters() *energy.Meters {
	return energy.New(energy.Config{Meters: fuses[:1], Static: [power.DomainLimit]int64{power.Package: 30 * watt}})
}

func (n *tenancy) hosts() *energy.Meters {
	return energy.New(energy.Config{Meters: []power.Meter{{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: second}},
		Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Power: 9 * watt}}, Source: "a curve"}})
}

// live lets the host go on for a while, and gives what it gives.
func (n *tenancy) live(ns int64) {
	t := n.t
	n.goOn(ns, rapid.Int64Range(31, 90).Draw(t, "W"), rapid.Int64Range(0, 100).Draw(t, "percent"), rapid.Int64Range(0, 100).Draw(t, "of which the guest"))
}

// goOn does so with a power, a load and a part of that.
func (n *tenancy) goOn(ns, watts, load, part int64) {
	n.hostAt += ns
	n.rapl += ns / 1000 * watts
	used := ns / 100 * load
	n.hostCPU += used
	n.guestUp += used / 100 * part
	n.look()
}

// look is a tick of the host.
func (n *tenancy) look() {
	s := two(n.hostAt, n.hostCPU, n.guestUp)
	s.Boot = fmt.Sprint("boot ", n.boot)
	s.Groups[1].Workload = workload.Workload{ID: "the guest", Kind: workload.VM, Name: "vm"}
	s.Groups[1].Guest = &usage.Guest{UUID: uuid, Name: "vm", VCPUs: 1}
	s.Before = []power.Reading{{At: n.hostAt, Value: n.rapl % fuses[0].Wrap}}
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

// begin starts the accounts of the host anew, or from where they were saved.
func (n *tenancy) begin() {
	n.host = attribute.New("host")
	if len(n.hostVault.records) > 0 {
		n.host = n.hostVault.restoreOf(n.t, "host")
	}
	n.host.SetMeters(n.meters())
}

func (v *vault) restoreOf(t *rapid.T, node string) *attribute.Accounts {
	acc, err := attribute.Restore(node, v.records)
	if err != nil {
		t.Fatal(err)
	}
	return acc
}

// read is a tick of the guest.
func (n *tenancy) read(ns int64, r power.Reading) {
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

func (n *tenancy) sees() power.Reading {
	if n.sent == nil {
		return power.Reading{Err: "nothing is there"}
	}
	return power.Reading{Value: n.sent.Energy(), Share: n.sent}
}

// closes closes a window of the guest, and holds it to what it hands over.
func (n *tenancy) closes() {
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
			continue // it began in this window, or anew
		}
		now, _ := n.guest.Meters().BookedShare()
		if got := now.Energy() - h.Opened.Energy(); got != h.Booked || got != sum[usage.EnergyRest] || last.Energy() > now.Energy() {
			n.t.Fatalf("guest: booked from share to share are %d uJ, by the handover %d, by the rows %d", got, h.Booked, sum[usage.EnergyRest])
		}
	}
}

// A machine gives its virtual machine energy, and that books it: at other times, late,
// with ticks left out, while either is restarted, killed or stands still, and while
// nothing comes through. As soon as the guest had time to work off what a model booked
// for it meanwhile, it has booked exactly what the host had given it, share by share.
func TestGuestBooksWhatItsHostGave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &tenancy{t: t, published: map[string]map[int64]int64{}, guest: attribute.New("guest"), guestAt: 5 * second, hostAt: 1000 * second}
		n.begin()
		n.guest.SetMeters(n.hosts())
		n.look()
		n.read(0, n.sees())
		var hw usage.Window
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 14).Draw(t, "what") {
			case 0: // the host is restarted, and was away
				n.host.CloseWindow(&hw)
				n.hostVault.save(n.host, rapid.Bool().Draw(t, "full"))
				n.begin()
				n.hostAt += rapid.Int64Range(0, 20).Draw(t, "away") * second
			case 1: // it was saved
				n.host.CloseWindow(&hw)
				n.hostVault.save(n.host, rapid.Bool().Draw(t, "full"))
			case 2: // it is killed
				n.begin()
				n.hostAt += second
			case 3: // the host goes down, and with it the guest's share
				n.boot++
				n.hostAt, n.rapl, n.hostCPU, n.guestUp = 50*second, 0, 0, 0
				n.begin()
				n.live(second)
			case 4: // the guest is restarted
				n.closes()
				n.guestVault.save(n.guest, rapid.Bool().Draw(t, "full"))
				n.guest = n.guestVault.restoreOf(t, "guest")
				n.guest.SetMeters(n.hosts())
			case 5: // it was saved
				n.closes()
				n.guestVault.save(n.guest, rapid.Bool().Draw(t, "full"))
			case 6: // it is killed
				if len(n.guestVault.records) > 0 {
					n.guest = n.guestVault.restoreOf(t, "guest")
					n.guest.SetMeters(n.hosts())
				}
			case 7: // the guest stands still, and knows nothing of it
				for range rapid.IntRange(1, 30).Draw(t, "paused") {
					n.live(second)
				}
				n.read(second/100, n.sees())
			case 8: // nothing comes through
				for range rapid.IntRange(1, 10).Draw(t, "gone") {
					n.live(second)
					n.read(second, power.Reading{Err: "gone"})
				}
			case 9: // what was sent stays
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
			case 11: // the guest leaves ticks out
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

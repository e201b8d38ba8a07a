package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// randomPieces returns pieces of one minute of some nodes, each an entry. A piece has rows of some
// workloads, with measured and modelled energy.
func randomPieces(r *rand.Rand, minute int64, nodes ...string) (es []*batch.Entry) {
	for _, node := range nodes {
		n := 1 + r.IntN(4)
		quality := []usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled}
		for number := range n {
			e := machineEntry(node, uint64(number+1), usage.Apportioned, minute)
			whole := &e.Nodes[0]
			whole.Covered, whole.Whole = time.Minute/time.Duration(n), usage.Shares{}
			var rows []batch.Minute
			for i, m := range e.Minutes {
				if r.IntN(4) == 0 {
					continue
				}
				u := usage.Usage{Covered: whole.Covered}
				u.Put(usage.CPU, r.Int64N(20e9), usage.Measured)
				for _, d := range usage.Energies {
					if r.IntN(3) == 0 {
						u.Put(d, r.Int64N(9e6), quality[r.IntN(3)])
						u.Put(usage.EnergyError, r.Int64N(1e6), usage.Apportioned)
					}
				}
				if sum, ok := energySum(&u); ok && (i == 2 || r.IntN(3) == 0) {
					u.Put(usage.EnergyIdle, sum/2, usage.Apportioned)
				}
				for w, res := range usage.Wholes {
					whole.Whole[w] += u.Amount[res]
				}
				m.Usage = u
				rows = append(rows, m)
			}
			e.Minutes = rows
			es = append(es, e)
		}
	}
	return es
}

func energySum(u *usage.Usage) (sum int64, ok bool) {
	for _, d := range usage.Energies {
		v, has := u.Get(d)
		sum, ok = sum+v, ok || has
	}
	return sum, ok
}

// rowsOf returns the energies of all rows of a minute and of its day.
func rowsOf(t *testing.T, l *ledger.Ledger, minute int64) map[string]string {
	t.Helper()
	got := map[string]string{}
	for span, to := range map[string]int64{"minute": minute + 1, "day": minute + day} {
		a, err := l.Usage(t.Context(), query.Query{From: time.Unix(60*minute, 0), To: time.Unix(60*to, 0), By: []query.Dimension{query.ByNode, query.ByKind}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range a.Groups {
			for _, r := range append(usage.Energies[:], usage.EnergyError, usage.EnergyIdle, usage.CPU) {
				if g.Usage.Present.Has(r) && g.Usage.Sum[r].String() != "0" {
					got[fmt.Sprint(span, " ", g.Keys, " ", r)] = fmt.Sprint(g.Usage.Sum[r], g.Usage.Quality.Get(r))
				}
			}
		}
	}
	return got
}

// TestLateRowsOfMeterMinute checks that rows which come after external meters settled their minute
// leave the ledger as if they had come before, whether the minute is folded or not.
func TestLateRowsOfMeterMinute(t *testing.T) {
	onBoth(t, func(t *testing.T, _ string) {
		another := ledgertest.SQLite
		if strings.HasSuffix(t.Name(), "PostgreSQL") {
			another = ledgertest.PostgreSQL
		}
		for seed := range uint64(12) {
			pieces := randomPieces(rand.New(rand.NewPCG(seed, 1)), dayMinute, "a", "b")
			r := rand.New(rand.NewPCG(seed, 2))
			meters := []external.MeterEnergy{{Meter: "pdu", Nodes: []string{"b", "a"}, Energy: r.Int64N(90e6), Error: 1e6}}
			if r.IntN(2) == 0 {
				meters = append(meters, external.MeterEnergy{Meter: "plug", Nodes: []string{"a"}, Energy: r.Int64N(40e6), Error: 2e5})
			}
			// run books the pieces, and settles the minute before the piece with this index.
			run := func(dsn string, settle int) map[string]string {
				l := ledgertest.Open(t, dsn)
				ledgertest.Node(t, l, "a")
				ledgertest.Node(t, l, "b")
				for _, m := range meters {
					register(t, l, dayMinute, m.Meter)
				}
				for i := 0; i <= len(pieces); i++ {
					if i == settle {
						gm := &external.GroupMinute{Minute: dayMinute, Meters: meters, NeededFrom: map[string]int64{}}
						for _, m := range meters {
							gm.NeededFrom[m.Meter] = 0
						}
						bookMinute(t, l, gm, true)
						if seed%2 == 0 {
							if err := l.Fold(t.Context(), ledgertest.Day.Add(72*time.Hour)); err != nil {
								t.Fatal(err)
							}
						}
					}
					if i < len(pieces) {
						bookAll(t, l, pieces[i])
					}
				}
				if err := l.Fold(t.Context(), ledgertest.Day.Add(73*time.Hour)); err != nil {
					t.Fatal(err)
				}
				checkLedger(t, l)
				return rowsOf(t, l, dayMinute)
			}
			want := run(another(t), len(pieces))
			late := r.IntN(len(pieces))
			if seed%4 == 3 {
				late = 0
			}
			if diff := cmp.Diff(want, run(another(t), late)); diff != "" {
				t.Fatalf("seed %d: settled before piece %d of %d (-in time +late):\n%s", seed, late, len(pieces), diff)
			}
		}
	})
}

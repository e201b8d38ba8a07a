package batch_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
)

// A sent is a batch as a server sees it.
type sent struct {
	number         uint64
	previous, hash batch.Hash
}

// chain returns batches 1 to n, of which each names the previous one.
func chain(content string, n int) (list []sent) {
	var last batch.Hash
	for i := range n {
		h := batch.HashOf(fmt.Append(last[:], content, i))
		list = append(list, sent{uint64(i + 1), last, h})
		last = h
	}
	return list
}

// TestJudge checks the verdict on each sort of offer. The server has taken batches 1 to 3 and
// remembers the last two.
func TestJudge(t *testing.T) {
	own, other := chain("own", 6), chain("other", 6)
	m := batch.Mark{Next: 4, Last: own[2].hash}
	known := map[uint64]*batch.Hash{2: &own[1].hash, 3: &own[2].hash}
	for name, c := range map[string]struct {
		m     batch.Mark
		offer sent
		want  batch.Verdict
	}{
		"first":                         {batch.Mark{Next: 1}, own[0], batch.Accepted},
		"first that names another":      {batch.Mark{Next: 1}, sent{1, own[4].hash, own[0].hash}, batch.Conflict},
		"second before the first":       {batch.Mark{Next: 1}, own[1], batch.OutOfOrder},
		"next":                          {m, own[3], batch.Accepted},
		"next, of any content":          {m, sent{4, own[2].hash, other[3].hash}, batch.Accepted},
		"next of another chain":         {m, other[3], batch.Conflict},
		"next without a previous":       {m, sent{4, batch.Hash{}, own[3].hash}, batch.Conflict},
		"next that names an earlier":    {m, sent{4, own[1].hash, own[3].hash}, batch.Conflict},
		"one too early":                 {m, own[4], batch.OutOfOrder},
		"two too early":                 {m, own[5], batch.OutOfOrder},
		"too early, of another chain":   {m, other[5], batch.OutOfOrder},
		"last again":                    {m, own[2], batch.Duplicate},
		"earlier again":                 {m, own[1], batch.Duplicate},
		"earlier than the memory":       {m, own[0], batch.Duplicate},
		"another than the last":         {m, other[2], batch.Conflict},
		"another than an earlier":       {m, other[1], batch.Conflict},
		"another, earlier than known":   {m, other[0], batch.Duplicate},
		"last content under another no": {m, sent{2, own[1].hash, own[2].hash}, batch.Conflict},
		"number 0":                      {m, sent{0, batch.Hash{}, own[0].hash}, batch.Duplicate},
	} {
		if got := c.m.Judge(c.offer.number, c.offer.previous, c.offer.hash, known[c.offer.number]); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestJudgeChain checks that, in whatever order two chains are offered and repeated, a server
// takes batches of one chain only, each once and in order.
func TestJudgeChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := [][]sent{chain("a", 5), chain("b", 5)}
		m := batch.Mark{Next: 1}
		var taken []batch.Hash
		for range 40 {
			c := chains[rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "chain")]
			offer := c[rapid.IntRange(0, len(c)-1).Draw(t, "number")]
			var known *batch.Hash
			if offer.number < m.Next && rapid.Bool().Draw(t, "remembered") {
				known = &taken[offer.number-1]
			}
			v := m.Judge(offer.number, offer.previous, offer.hash, known)
			ofChain := len(taken) == 0 || c[0].hash == taken[0]
			var want batch.Verdict
			switch {
			case offer.number > m.Next:
				want = batch.OutOfOrder
			case ofChain && offer.number == m.Next:
				want = batch.Accepted
			case ofChain || offer.number < m.Next && known == nil:
				want = batch.Duplicate
			default:
				want = batch.Conflict
			}
			if v != want {
				t.Fatalf("batch %d of the chain %t, after %d, known %t: %v, want %v", offer.number, ofChain, len(taken), known != nil, v, want)
			}
			if v == batch.Accepted {
				taken = append(taken, offer.hash)
				m = batch.Mark{Next: offer.number + 1, Last: offer.hash}
			}
		}
		for i, h := range taken {
			if h != chains[0][i].hash && taken[0] == chains[0][0].hash || h != chains[1][i].hash && taken[0] == chains[1][0].hash {
				t.Fatalf("batch %d is not of the chain of batch 1", i+1)
			}
		}
	})
}

// TestVerdictText checks the words of verdicts, which agents of other versions read.
func TestVerdictText(t *testing.T) {
	for v, want := range map[batch.Verdict]string{
		batch.Accepted: `"taken"`, batch.Duplicate: `"known"`, batch.OutOfOrder: `"behind"`, batch.Conflict: `"conflict"`, batch.Clone: `"clone"`, 0: `""`,
	} {
		b, err := json.Marshal(v)
		if err != nil || string(b) != want {
			t.Errorf("%d is written as %s, %v, want %s", v, b, err, want)
		}
		got := batch.Verdict(9)
		if err := json.Unmarshal(b, &got); err != nil || got != v {
			t.Errorf("%s is read as %d, %v, want %d", b, got, err, v)
		}
	}
	got := batch.Clone
	if err := json.Unmarshal([]byte(`"a word of a later version"`), &got); err != nil || got != 0 {
		t.Errorf("an unknown word is read as %d, %v", got, err)
	}
	if s := batch.Verdict(200).String(); s != "clone" {
		t.Errorf("a verdict out of range is %q", s)
	}
}

// TestReplyText checks a reply to the letter: numbers are strings, since JavaScript rounds them.
func TestReplyText(t *testing.T) {
	if b, err := json.Marshal(batch.Reply{Verdict: batch.Duplicate, Next: 2, Booked: true}); err != nil || string(b) != `{"verdict":"known","next":"2","booked":true}` {
		t.Errorf("%s, %v", b, err)
	}
	reply := batch.Reply{Verdict: batch.OutOfOrder, Next: 1<<63 + 1, Names: []workload.ShortID{7}}
	b, err := json.Marshal(reply)
	if want := `{"verdict":"behind","next":"9223372036854775809","names":["0000000000000007"]}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	var got batch.Reply
	if err := json.Unmarshal(b, &got); err != nil || got.Verdict != reply.Verdict || got.Next != reply.Next || len(got.Names) != 1 || got.Names[0] != 7 {
		t.Errorf("%s is read as %+v, %v", b, got, err)
	}
}

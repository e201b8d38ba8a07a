package book_test

import (
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// The stored bytes of conflicting batches are limited, each with an overhead of 4 KiB. A single one that is larger than
// the limit is cut.
func TestConflictLimit(t *testing.T) {
	ctx := t.Context()
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	if err := l.PutNode(ctx, registry.Node{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	const limit, overhead = 64 << 20, 4 << 10
	var sent byte
	for _, c := range []struct {
		batches   int
		bytes     int // of each
		kept      int64
		keptBytes int64 // of each
	}{{5, limit/4 - overhead, 4, limit/4 - overhead}, {5, limit/4 - overhead + 1, 3, limit/4 - overhead + 1}, {2, limit - overhead + 1, 1, limit - overhead}} {
		for range c.batches {
			sent++
			e := &batch.Entry{Node: "a", Stream: batch.Stream{1}, Number: 1, Previous: batch.Hash{1}, Hash: batch.Hash{sent}, Sent: make([]byte, c.bytes)}
			if results, err := l.Book(ctx, []*batch.Entry{e}); err != nil || results[0].Verdict != batch.Conflict {
				t.Fatal(results, err)
			}
		}
		var n, oldest, least int64
		err := ledgertest.DB(t, dsn).QueryRowContext(ctx, "SELECT count(*), min(id), min(length(sent)) FROM aside").Scan(&n, &oldest, &least)
		if err != nil || n != c.kept || oldest != int64(sent)-c.kept+1 || least != c.keptBytes {
			t.Errorf("of %d bytes: %d conflicting batches from %d on, %d bytes each, %v; want %d", c.bytes, n, oldest, least, err, c.kept)
		}
	}
}

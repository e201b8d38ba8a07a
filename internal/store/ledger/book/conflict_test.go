package book_test

import (
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestConflictLimit checks that the stored bytes of conflicting batches are limited.
func TestConflictLimit(t *testing.T) {
	ctx := t.Context()
	dsn := ledgertest.SQLite(t)
	l := ledgertest.Open(t, dsn)
	if err := l.PutNode(ctx, registry.Node{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	for i := range byte(5) {
		e := &batch.Entry{Node: "a", Stream: batch.Stream{1}, Number: 1, Previous: batch.Hash{1}, Hash: batch.Hash{i}, Sent: make([]byte, 64<<20/4)}
		if results, err := l.Book(ctx, []*batch.Entry{e}); err != nil || results[0].Verdict != batch.Conflict {
			t.Fatal(results, err)
		}
	}
	var n, least int64
	if err := ledgertest.DB(t, dsn).QueryRowContext(ctx, "SELECT count(*), min(id) FROM aside").Scan(&n, &least); err != nil || n != 3 || least != 3 {
		t.Errorf("%d conflicting batches from %d on, %v; want 3 from 3 on", n, least, err)
	}
}

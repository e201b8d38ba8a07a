package db

import (
	"errors"
	"path/filepath"
	"testing"
)

// A panic within a transaction undoes it, and the next transaction begins as usual.
func TestWriteAfterPanic(t *testing.T) {
	d, err := Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, after func()) error {
		return d.Write(t.Context(), func(x *Tx) error {
			_, err := x.Exec("INSERT INTO meta (key, value) VALUES ($1, 'x')", key)
			after()
			return err
		})
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = put("lost", func() { panic("lost") })
	}()
	if err := put("kept", func() {}); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
	lost, err := d.Meta(t.Context(), "lost")
	kept, err2 := d.Meta(t.Context(), "kept")
	if lost != "" || kept != "x" {
		t.Errorf("%q, %q, %v", lost, kept, errors.Join(err, err2))
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

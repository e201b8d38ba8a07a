package workload_test

import (
	"encoding/json"
	"errors"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

func TestShort(t *testing.T) {
	id := workload.IDFromBytes([16]byte{0: 0xfe, 7: 1, 8: 9})
	s, ok := workload.ShortIDOf(id)
	if !ok || s != 0xfe00000000000001 {
		t.Fatalf("%s is %v, %t", id, s, ok)
	}
	if _, ok := workload.ShortIDOf("no id"); ok {
		t.Error("a malformed id has a short")
	}
	b, err := json.Marshal(batch.Reply{Names: []workload.ShortID{s}})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"verdict":"","next":"0","names":["fe00000000000001"]}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var r batch.Reply
	if err := json.Unmarshal(b, &r); err != nil || len(r.Names) != 1 || r.Names[0] != s {
		t.Errorf("read as %v, %v", r, err)
	}
	for _, bad := range []string{"", "fe", "fe0000000000000g", "0xfe000000000000"} {
		if err := new(workload.ShortID).UnmarshalText([]byte(bad)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: error %v, want fault.ErrInvalid", bad, err)
		}
	}
}

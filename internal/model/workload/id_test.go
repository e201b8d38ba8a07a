package workload_test

import (
	"testing"

	"mete.dev/mete/internal/model/workload"
)

func TestIDBytes(t *testing.T) {
	id := workload.NewID("node", workload.Pod, "key")
	raw, ok := id.Bytes()
	if got := workload.IDFromBytes(raw); !ok || got != id {
		t.Errorf("%s came back as %s, %t", id, got, ok)
	}
	for _, bad := range []workload.ID{"", "x", id[:25], id + "a", "A" + id[1:], id[:25] + "b", "\n" + id[1:], id[:24] + "\n" + id[25:]} {
		if raw, ok := bad.Bytes(); ok {
			t.Errorf("%q is %x", bad, raw)
		}
	}
}

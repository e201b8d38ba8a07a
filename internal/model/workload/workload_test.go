package workload

import "testing"

// TestNewIDIsForEver pins IDs: they are stored and compared over years and programs.
func TestNewIDIsForEver(t *testing.T) {
	for _, c := range []struct {
		node string
		kind Kind
		key  string
		want ID
	}{
		// printf 'n1\0container\0abc\0' | sha256sum, the first 16 bytes in base32.
		{"n1", Container, "abc", "sse4ngomlyjmy742ujdsq4xe2m"},
		{"01j9zq", Path, "b1/system.slice", "usaqli7pxt2egf3u5qulf2kwwa"},
	} {
		if got := NewID(c.node, c.kind, c.key); got != c.want {
			t.Errorf("NewID(%q, %v, %q) = %s, want %s", c.node, c.kind, c.key, got, c.want)
		}
	}
	if a, b := NewID("n", Pod, "x"), NewID("n", Container, "x"); a == b {
		t.Errorf("a pod and a container of one key share the ID %s", a)
	}
}

func TestKindText(t *testing.T) {
	for k := Unknown; k <= Job; k++ {
		text, err := k.MarshalText()
		var back Kind
		if err == nil {
			err = back.UnmarshalText(text)
		}
		if err != nil || back != k {
			t.Errorf("%v is written %q and read as %v, %v", k, text, back, err)
		}
	}
	var k Kind
	if err := k.UnmarshalText([]byte("nothing")); err == nil {
		t.Error(`UnmarshalText("nothing") succeeded`)
	}
}

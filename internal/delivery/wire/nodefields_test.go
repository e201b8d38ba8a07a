package wire_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/replica"
)

// fill sets each field of a struct to a value of its own.
func fill(t *testing.T, v reflect.Value, next *int64) {
	for i := range v.NumField() {
		*next++
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[time.Time]():
			f.Set(reflect.ValueOf(time.Unix(*next*3600, 0).UTC()))
		case f.Kind() == reflect.Struct:
			fill(t, f, next)
		case f.Kind() == reflect.String:
			f.SetString(v.Type().Field(i).Name)
		case f.CanInt():
			f.SetInt(*next)
		case f.CanUint():
			f.SetUint(uint64(*next))
		default:
			t.Fatalf("field %s of %s: give it a value here", v.Type().Field(i).Name, v.Type())
		}
	}
}

// Each field of a node reaches a server above, except what concerns its enrollment at the server below. A
// field that is added to the type and forgotten on the way fails here.
func TestStatesNodeFields(t *testing.T) {
	var n replica.Node
	fill(t, reflect.ValueOf(&n).Elem(), new(int64))
	sent, err := wire.EncodeStates(nil, &replica.Page{To: "there", Nodes: []replica.Node{n}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.DecodeStates(sent, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	n.Root, n.Certified, n.KeyHash, n.Token = "", time.Time{}, "", ""
	if diff := cmp.Diff([]replica.Node{n}, got.Nodes); diff != "" {
		t.Errorf("(-sent +got):\n%s", diff)
	}
}

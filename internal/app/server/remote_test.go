package server

import (
	"errors"
	"reflect"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/remotewrite"
)

// TestReceivers checks that versions and headers apply to receivers in order: the last version
// applies to all that follow, but a header, which may be a secret, only to its own.
func TestReceivers(t *testing.T) {
	r := remoteWriteSettings{urls: []string{"http://a", "http://b", "http://c"}, versions: []string{"1.0", "2.0"}, headers: []string{"", "h"}}
	got, err := r.receivers()
	want := []remotewrite.Receiver{{URL: "http://a", Version: "1.0"}, {URL: "http://b", Version: "2.0", Header: "h"}, {URL: "http://c", Version: "2.0"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, r := range []remoteWriteSettings{{headers: []string{"h"}}, {urls: []string{"http://a"}, versions: []string{"1.0", "2.0"}}} {
		if _, err := r.receivers(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

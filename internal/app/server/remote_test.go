package server

import (
	"errors"
	"reflect"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/remotewrite"
)

// Versions and headers go to receivers in their order; the last version is for all
// that follow, and a header, which may be a secret, is for one alone.
func TestReceivers(t *testing.T) {
	r := remoteWriteFlags{urls: []string{"http://a", "http://b", "http://c"}, versions: []string{"1.0", "2.0"}, headers: []string{"", "h"}}
	got, err := r.receivers()
	want := []remotewrite.Receiver{{URL: "http://a", Version: "1.0"}, {URL: "http://b", Version: "2.0", Header: "h"}, {URL: "http://c", Version: "2.0"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, r := range []remoteWriteFlags{{headers: []string{"h"}}, {urls: []string{"http://a"}, versions: []string{"1.0", "2.0"}}} {
		if _, err := r.receivers(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

package vm_test

import (
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/model/fault"
)

// A fakeQEMU sends a fixed text for any request.
type fakeQEMU struct {
	io.Reader
	io.Writer
}

const (
	greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}` + "\r\n"
	agreed   = `{"return": {}}` + "\r\n"
	event    = `{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RTC_CHANGE", "data": {"offset": 0}}` + "\r\n"
)

// Answers that a real QEMU does not give in the other tests.
func TestQueryStats(t *testing.T) {
	for _, c := range []struct {
		name, says string
		want       vm.Exits
		kind       error
		text       string
	}{
		{"two CPUs, events between", greeting + event + agreed + "\r\n" + event +
			`{"return": [{"provider": "kvm", "qom-path": "/machine/unattached/device[2]", "stats": [{"name": "exits", "value": 7}, {"name": "halt_exits", "value": 1},
 {"name": "guest_mode", "value": true}, {"name": "halt_wait_hist", "value": [1, 0]}]}, {"provider": "kvm", "stats": [{"name": "exits", "value": 5}]}]}` + "\r\n",
			nil, fault.ErrInvalid, "QMP: "}, // a message is one line
		{"two CPUs", greeting + event + agreed + "\r\n" + event +
			`{"return": [{"provider": "kvm", "qom-path": "/machine/unattached/device[2]", "stats": [{"name": "exits", "value": 7}, {"name": "halt_exits", "value": 1}, ` +
			`{"name": "guest_mode", "value": true}, {"name": "halt_wait_hist", "value": [1, 0]}]}, {"provider": "kvm", "stats": [{"name": "exits", "value": 5}]}]}` + "\r\n",
			vm.Exits{"exits": 12, "halt_exits": 1}, nil, ""},
		{"no KVM", greeting + agreed + `{"return": []}` + "\r\n", nil, fault.ErrUnsupported, "without KVM"},
		{"old", greeting + agreed + `{"error": {"class": "CommandNotFound", "desc": "The command query-stats has not been found"}}` + "\r\n", nil, fault.ErrUnsupported, "older than 7.1"},
		{"refused", greeting + agreed + `{"error": {"class": "GenericError", "desc": "no\u001b[2J"}}` + "\r\n", nil, fault.ErrUnsupported, `no\x1b[2J`},
		{"not QMP", "SSH-2.0-OpenSSH_9.2\r\n", nil, fault.ErrInvalid, "QMP: "},
		{"another JSON", `{"hello": 1}` + "\n", nil, fault.ErrInvalid, "no greeting"},
		{"gone", greeting, nil, fault.ErrUnavailable, "closed the connection"},
		{"only events", greeting + strings.Repeat(event, 5<<20/len(event)), nil, fault.ErrUnavailable, "4194304 bytes"},
		{"one endless line", strings.Repeat("{", 5<<20), nil, fault.ErrUnavailable, "4194304 bytes"},
	} {
		got, err := vm.Speak(fakeQEMU{strings.NewReader(c.says), io.Discard})
		if !maps.Equal(got, c.want) || !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v, want %v, %v: %s", c.name, got, err, c.want, c.kind, c.text)
		}
	}
}

// Sums do not overflow.
func FuzzStats(f *testing.F) {
	f.Add([]byte(`[{"stats": [{"name": "exits", "value": 9223372036854775807}]}, {"stats": [{"name": "exits", "value": 9223372036854775807}, {"name": "x", "value": -1}]}]`))
	f.Add([]byte(`[{"stats": [{"name": "exits", "value": [1]}]}]`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := vm.ParseStats(b)
		if err == nil && len(e) == 0 {
			t.Error("neither counters nor an error")
		}
		for name, v := range e {
			if v < 0 {
				t.Errorf("%s: %d", name, v)
			}
		}
	})
}

package energy

import (
	"errors"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A controller gives a fixed answer and records the request.
type controller struct {
	answer []byte
	err    error
	asked  []byte
	closed int
}

func (c *controller) Ask(netfn, cmd byte, data []byte) ([]byte, error) {
	c.asked = append([]byte{netfn, cmd}, data...)
	return c.answer, c.err
}

func (c *controller) Close() error {
	c.closed++
	return c.err
}

// answer returns an answer with 214 W now, 2 W minimum, 468 W maximum, 184 W mean over a
// second, measuring.
func answer() []byte {
	return []byte{0, 0xdc, 214, 0, 2, 0, 0xd4, 1, 184, 0, 0x0e, 0x80, 0x37, 0x66, 0xe8, 3, 0, 0, 0x40}
}

func TestDCMI(t *testing.T) {
	with := func(at int, b byte) []byte { a := answer(); a[at] = b; return a }
	tests := []struct {
		name  string
		bmc   controller
		watts int64
		kind  error
	}{
		{"as captured", controller{answer: answer()}, 214, nil},
		{"above 255 W", controller{answer: with(3, 1)}, 470, nil},
		{"not measuring", controller{answer: with(18, 0)}, 0, fault.ErrUnavailable},
		{"0 W", controller{answer: with(2, 0)}, 0, fault.ErrInvalid},
		{"another group", controller{answer: with(1, 0xdd)}, 0, fault.ErrInvalid},
		{"short", controller{answer: answer()[:18]}, 0, fault.ErrInvalid},
		{"empty", controller{}, 0, fault.ErrInvalid},
		{"no such command", controller{answer: []byte{0xc1}}, 0, fault.ErrUnsupported},
		{"busy", controller{answer: []byte{0xc0}}, 0, fault.ErrUnavailable},
		{"not allowed", controller{answer: []byte{0xd4}}, 0, fault.ErrDenied},
		{"no answer", controller{err: fault.ErrUnavailable}, 0, fault.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := dcmi{index: 3, path: "/dev/ipmi0", bmc: &tt.bmc}
			v, err := d.read()
			if v != tt.watts*1e6 || !errors.Is(err, tt.kind) {
				t.Errorf("read() = %d, %v, want %d W, %v", v, err, tt.watts, tt.kind)
			}
			if watts, period, err := powerReading(tt.bmc.answer); err != nil && (watts != 0 || period != 0) || err == nil && period != 1e9 {
				t.Errorf("powerReading() = %d, %d, %v", watts, period, err)
			}
			// DCMI 1.5, table 6-16.
			if got := string(tt.bmc.asked); got != "\x2c\x02\xdc\x01\x00\x00" {
				t.Errorf("asked % x", got)
			}
			if r := d.reading(0); r.Meter != 3 || r.Value != v || (r.Err == "") != (err == nil) {
				t.Errorf("reading() = %+v", r)
			}
		})
	}
}

func TestDCMIMeter(t *testing.T) {
	d := dcmi{bmc: &controller{answer: answer()}}
	for period, want := range map[[2]byte]int64{{0xe8, 3}: 1e9, {0x88, 0x13}: 5e9, {0, 0}: 1e9} {
		a := answer()
		a[14], a[15] = period[0], period[1]
		d.bmc = &controller{answer: a}
		if _, err := d.read(); err != nil {
			t.Fatal(err)
		}
		if m := d.meter(); m.Every != want || m.Kind != power.Power || m.Level != power.Box || m.Most != 65535e6 {
			t.Errorf("period % x: %+v, want one of %d ns", period, m, want)
		}
	}
}

func TestNoIPMI(t *testing.T) {
	if _, err := openIPMI("/dev/no-such-ipmi"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("openIPMI of a missing device: %v", err)
	}
	// Another kind of device does not support the request.
	b, err := openIPMI("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ask(groupExtension, getPowerReading, nil); err == nil || !strings.Contains(err.Error(), "/dev/null: ") {
		t.Errorf("Ask of /dev/null: %v, want an error that names it", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

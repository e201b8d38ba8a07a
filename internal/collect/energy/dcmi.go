package energy

import (
	"encoding/binary"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const dcmiName = "ipmi/dcmi"

// A bmc is a baseboard management controller.
type bmc interface {
	// Ask sends a command and returns the answer, which begins with the completion code.
	Ask(netfn, cmd byte, data []byte) ([]byte, error)
	Close() error
}

// A dcmi reads the power of the machine from its management controller, by the Data Center
// Manageability Interface (DCMI 1.5, section 6.6.1, "Get Power Reading").
type dcmi struct {
	index  int
	path   string
	bmc    bmc
	period int64 // averaging period of the controller, ns
}

// meter describes the meter: whole watts of the machine at its plug.
func (d *dcmi) meter() power.Meter {
	every := d.period
	if every <= 0 || every > int64(time.Minute) {
		// Some report the time since they started as the period; all update the present
		// power about once a second.
		every = int64(time.Second)
	}
	return power.Meter{Name: dcmiName, Level: power.Box, Domain: power.Rest, Kind: power.Power, From: power.IPMI,
		Step: 1e6, Every: every, ErrorPPM: boardError, Most: 0xffff * 1e6}
}

const (
	groupExtension  = 0x2c // network function of group requests
	getPowerReading = 0x02
	dcmiGroup       = 0xdc
	systemPower     = 0x01 // mode: system power statistics
	measuring       = 1 << 6
)

// read reads the power once, in uW.
func (d *dcmi) read() (int64, error) {
	b, err := d.bmc.Ask(groupExtension, getPowerReading, []byte{dcmiGroup, systemPower, 0, 0})
	if err != nil {
		return 0, err
	}
	watts, period, err := powerReading(b)
	if err != nil {
		return 0, fmt.Errorf("%s: power reading: %w", d.path, err)
	}
	d.period = period
	return watts * 1e6, nil
}

// powerReading parses the answer: completion code, group, present power, minimum, maximum
// and mean of a period in W (16 bits each), a time, the period in ms (32 bits each), and
// whether measuring is active.
func powerReading(b []byte) (watts, period int64, err error) {
	if len(b) == 0 {
		return 0, 0, fmt.Errorf("empty answer: %w", fault.ErrInvalid)
	}
	if err := completion(b[0]); err != nil {
		return 0, 0, err
	}
	if len(b) < 19 || b[1] != dcmiGroup {
		return 0, 0, fmt.Errorf("answer % x: %w", b, fault.ErrInvalid)
	}
	watts = int64(binary.LittleEndian.Uint16(b[2:]))
	if b[18]&measuring == 0 {
		return 0, 0, fmt.Errorf("power is not being measured: %w", fault.ErrUnavailable)
	}
	if watts == 0 {
		return 0, 0, fmt.Errorf("0 W for a running machine: %w", fault.ErrInvalid)
	}
	return watts, int64(binary.LittleEndian.Uint32(b[14:])) * 1e6, nil
}

// completion returns the error of a completion code (IPMI 2.0, table 5-2).
func completion(code byte) error {
	switch code {
	case 0x00:
		return nil
	case 0xc0, 0xc3, 0xce, 0xcf, 0xd0, 0xd2: // busy, timeout, cannot respond, duplicate request, being updated
		return fmt.Errorf("the controller answers %#02x: %w", code, fault.ErrUnavailable)
	case 0xd4: // insufficient privilege
		return fmt.Errorf("the controller answers %#02x: %w", code, fault.ErrDenied)
	}
	return fmt.Errorf("the controller answers %#02x: %w", code, fault.ErrUnsupported)
}

// reading is read in the form of a reading. The caller sets the time.
func (d *dcmi) reading(int64) power.Reading {
	v, err := d.read()
	if err != nil {
		return power.Reading{Meter: d.index, Err: err.Error()}
	}
	return power.Reading{Meter: d.index, Value: v}
}

package procfmt_test

import (
	"testing"

	"mete.dev/mete/internal/host/procfmt"
)

func TestCPUInfo(t *testing.T) {
	for _, c := range []struct {
		name, text, model string
		threads           int
	}{
		{"x86", "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763  64-Core Processor\nflags\t\t: a b\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 7763  64-Core Processor\n",
			"AMD EPYC 7763 64-Core Processor", 2},
		{"arm64", "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n\nprocessor\t: 1\nprocessor\t: 2\n", "", 3},
		{"empty", "", "", 0},
		{"cut short", "processor\t: 0\nmodel name", "", 1},
	} {
		if model, threads := procfmt.CPUInfo([]byte(c.text)); model != c.model || threads != c.threads {
			t.Errorf("%s: %q, %d threads", c.name, model, threads)
		}
	}
}

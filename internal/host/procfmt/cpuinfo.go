package procfmt

import (
	"bytes"
	"strings"
)

// CPUInfo reads /proc/cpuinfo: the model name of the CPUs, "" without one as on arm64, and
// the number of online threads.
func CPUInfo(b []byte) (model string, threads int) {
	for line := range bytes.Lines(b) {
		key, value, ok := strings.Cut(string(line), ":")
		if !ok {
			continue
		}
		switch strings.TrimSpace(key) {
		case "processor":
			threads++
		case "model name":
			if model == "" {
				model = strings.Join(strings.Fields(value), " ")
			}
		}
	}
	return model, threads
}

package procfmt

import (
	"bytes"
	"strings"
)

// CPUInfo reads /proc/cpuinfo: what the CPUs are called, "" where it does not
// say so as on arm64, and how many threads are online.
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

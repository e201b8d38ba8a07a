package server

import (
	"fmt"
	"os"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
)

// readMeters reads the file of external meters; "" is none.
func readMeters(path string) ([]external.Spec, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--meters: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--meters: %w", err)
	}
	specs, err := external.Parse(text, info.Mode().Perm()&0o077 == 0)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("--meters %s: %w", path, err), "docs/guide/energy.md shows what such a file has")
	}
	return specs, nil
}

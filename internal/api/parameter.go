package api

import (
	"fmt"
	"net/url"

	"mete.dev/mete/internal/model/fault"
)

// parseParameters reads the query of a URL as a whole or not at all.
func parseParameters(raw string) (map[string][]string, error) {
	given, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("parameters: %w: %w", err, fault.ErrInvalid), "write them as name=value, with & between them and special characters as %XX")
	}
	return given, nil
}

package v1

import (
	"encoding/json"
	"errors"
	"fmt"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
)

// RatesJSON writes what every workload uses at present, by the latest window of
// its node, under the key nodes.
func RatesJSON(list []live.NodeRates) []byte { return marshalList("nodes", list) }

// ParseRates reads what RatesJSON wrote. The error wraps fault.ErrInvalid.
func ParseRates(body []byte) ([]live.NodeRates, error) {
	var read struct {
		Nodes *[]live.NodeRates `json:"nodes"`
	}
	err := json.Unmarshal(body, &read)
	if err == nil && read.Nodes == nil {
		err = errors.New("it has no nodes")
	}
	if err != nil {
		return nil, fmt.Errorf("rates: %w: %w", err, fault.ErrInvalid)
	}
	return *read.Nodes, nil
}

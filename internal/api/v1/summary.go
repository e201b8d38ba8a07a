package v1

import "mete.dev/mete/internal/model/live"

// SummaryJSON writes what machines do at present.
func SummaryJSON(s *live.Summary) []byte { return append(marshal(s), '\n') }

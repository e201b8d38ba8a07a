package table

import (
	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// SelfText formats the total use of a job for people.
func SelfText(s *query.Self, style Style) string {
	if s.Usage.Present == 0 {
		return "nothing is booked of this job yet: it comes with the first window of its machine\n"
	}
	return Text(v1.SelfAnswer(s), style) + "complete through " + style.time(s.Through) + "\n"
}

package v1

import (
	"time"

	"mete.dev/mete/internal/model/query"
)

// An Uptime is for how long of a range a machine was up.
type Uptime struct {
	Node     string     `json:"node" doc:"id of the node"`
	Name     string     `json:"name" doc:"name of the node"`
	Cluster  string     `json:"cluster"`
	From     *time.Time `json:"from" doc:"begin of the range, or when the node enrolled if that is later"`
	To       *time.Time `json:"to" doc:"end of the range, or now if that is earlier"`
	Up       Seconds    `json:"up_seconds" doc:"how long its kernel ran, also without an agent"`
	Down     Seconds    `json:"down_seconds" doc:"from the latest figures before each restart to the boot after it"`
	Unknown  Seconds    `json:"unknown_seconds" doc:"since its latest figures, where they are late, and for how long its agent had lost its state"`
	Share    *float64   `json:"up_share" csv:"-" doc:"up_seconds in up_seconds and down_seconds, from 0 to 1; null where both are 0"`
	Downs    int        `json:"downs" doc:"how often it was down"`
	LastDown *time.Time `json:"last_down_at" doc:"begin of the latest time that it was down in the range; null where it was not"`
	LastUp   *time.Time `json:"last_boot_at" doc:"the boot after that"`
}

// ListKey implements [Element].
func (Uptime) ListKey() string { return "uptimes" }

// UptimeOf makes an Uptime.
func UptimeOf(u *query.Uptime) Uptime {
	out := Uptime{Node: u.Node, Name: u.Name, Cluster: u.Cluster, From: timeOrNil(u.From), To: timeOrNil(u.To),
		Up: Seconds(u.Up), Down: Seconds(u.Down), Unknown: Seconds(u.Unknown), Downs: u.Downs, LastDown: timeOrNil(u.Last.From), LastUp: timeOrNil(u.Last.To)}
	if known := u.Up + u.Down; known > 0 {
		share := float64(u.Up) / float64(known)
		out.Share = &share
	}
	return out
}

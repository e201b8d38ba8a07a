package table

import (
	"fmt"
	"strconv"
	"time"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/registry"
)

// TokensText formats tokens as a table for people.
func TokensText(list []registry.Token, now time.Time, s Style) string {
	if len(list) == 0 {
		return "there are no tokens; mete token create makes one\n"
	}
	var rows [][]string
	for _, t := range list {
		uses, expires := "any", "never"
		if t.Uses >= 0 && !t.Role.IsBearer() {
			uses = strconv.Itoa(t.Uses)
		}
		if !t.Expires.IsZero() {
			expires = s.time(t.Expires)
		}
		cluster := "(all)"
		if t.Cluster != "" || t.Role != registry.Viewer {
			cluster = s.text(t.Cluster)
		}
		rows = append(rows, []string{s.text(t.ID), s.text(string(t.Role)), cluster, v1.TokenState(t, now), uses, s.time(t.Created), expires})
	}
	cols := append(textColumns("ID", "ROLE", "CLUSTER", "STATE"), numberColumns("USES LEFT")...)
	return render(append(cols, textColumns("CREATED", "EXPIRES")...), rows)
}

// TokenText describes the permissions of a new token in one sentence.
func TokenText(t registry.Token, s Style) string {
	cluster := "cluster " + s.text(t.Cluster)
	if t.Cluster == "" {
		cluster = "all clusters"
		if t.Role != registry.Viewer {
			cluster = "the server's cluster"
		}
	}
	what := "lets its holder read " + cluster
	if t.Role == registry.Writer {
		what = "lets its holder write series into " + cluster
	}
	if !t.Role.IsBearer() {
		things := map[registry.Role]string{registry.Agent: "machine", registry.Upstream: "server"}[t.Role]
		many := plural(max(t.Uses, 0), things)
		if t.Uses < 0 {
			many = "any number of " + things + "s"
		}
		what = "enrolls " + many + " into " + cluster
	}
	end := "without expiry"
	if !t.Expires.IsZero() {
		end = "until " + s.time(t.Expires)
	}
	return fmt.Sprintf("token %s %s, %s; it is shown only once", s.text(t.ID), what, end)
}

// Package socket is the unix socket at which an agent learns of the jobs of mete
// run, and the way of mete run to it.
//
// It carries HTTP with JSON, and problem+json for errors:
//
//	POST /v1/jobs                a job begins: Job; the answer is Registration
//	POST /v1/jobs/{id}/snapshot  take a tick now; answered when it is taken
//	PUT  /v1/jobs/{id}/end       it ended: Outcome; answered when its last values are read
//	GET  /v1/status              how the agent is doing
//
// Any user of the machine may register jobs of his own. Who asks is what the
// kernel says of the connection, never what the request says.
package socket

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// A Job is a job of mete run as it begins.
type Job struct {
	ID      string            `json:"id"` // as in the name of its groups
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels,omitempty"`
	Project string            `json:"project,omitempty"`
	Command []string          `json:"command,omitempty"`
	Groups  []string          `json:"groups"` // paths of its control groups, at least one
	Started time.Time         `json:"started"`
	// User is the name of the user who registered it, or the number of one
	// without a name. What a request says is not looked at.
	User string `json:"user,omitempty"`
}

// An Outcome is how a job ended.
type Outcome struct {
	Ended  time.Time `json:"ended"`
	Exit   int       `json:"exit"`             // exit code, as a shell has it
	Signal int       `json:"signal,omitempty"` // that ended it; 0 is none
}

// A Registration is what a job is told that was taken.
type Registration struct {
	// Self is absent where the agent has nothing to ask with.
	Self *SelfAccess `json:"self,omitempty"`
}

// A SelfAccess is what a job needs to ask a server for its own use.
type SelfAccess struct {
	URL   string `json:"url"`
	Token string `json:"token"`
	CA    string `json:"ca,omitempty"` // file with the certificate of the server's authority; "" where it speaks without TLS
}

// A Peer is who asks, as the kernel knows him (SO_PEERCRED, unix(7)): what he was
// when he connected.
type Peer struct {
	UID, GID uint32
	PID      int // 0 where it is of a PID namespace that this process does not see
}

// Hooks are what an agent does for jobs. They are called by many goroutines.
type Hooks interface {
	// Owns reports whether a peer may speak for the job with this id: the
	// directory of its group is his, or he is in it.
	Owns(p Peer, id string) bool
	// Register takes a job, or the same again.
	Register(j Job) (Registration, error)
	// Snapshot takes a tick now.
	Snapshot(ctx context.Context) error
	// End takes a job's outcome, and returns when its last values are read.
	End(ctx context.Context, id string, o Outcome) error
	// Status is how the agent is doing, ready for JSON. Everyone may see it.
	Status() any
}

const systemSocket = "/run/mete/agent.sock"

// Path is where an agent of this user listens: $METE_SOCKET, else
// /run/mete/agent.sock of root, else mete/agent.sock in $XDG_RUNTIME_DIR. It is
// "" for a user who has no such directory.
func Path(getenv func(string) string, uid int) string {
	if p := getenv("METE_SOCKET"); p != "" {
		return p
	}
	if uid == 0 {
		return systemSocket
	}
	// The XDG base directory specification has relative paths ignored.
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mete", "agent.sock")
	}
	return ""
}

// Paths are where an agent of this machine may listen for jobs of this user, the
// likeliest first: the machine's own comes before the user's.
func Paths(getenv func(string) string, uid int) []string {
	own := Path(getenv, uid)
	switch {
	case getenv("METE_SOCKET") != "" || own == systemSocket:
		return []string{own}
	case own == "":
		return []string{systemSocket}
	}
	return []string{systemSocket, own}
}

// Bounds of what a request may hold; its size has one too.
const (
	maxBody   = 64 << 10
	maxText   = 256 // bytes of a name, a project, a label's key
	maxValue  = 1024
	maxGroups = 64
	maxPath   = 4096
	// A job's start and end may be this far ahead of the agent's clock.
	ahead = time.Minute
)

// validate checks what a job says of itself.
func (j *Job) validate(now time.Time) error {
	if err := validID(j.ID); err != nil {
		return err
	}
	for what, s := range map[string]string{"name": j.Name, "project": j.Project} {
		if err := checkText(what, s, maxText); err != nil {
			return err
		}
	}
	if len(j.Labels) > batch.MaxLabels {
		return fmt.Errorf("%d labels are more than %d: %w", len(j.Labels), batch.MaxLabels, fault.ErrInvalid)
	}
	for k, v := range j.Labels {
		if k == "" {
			return fmt.Errorf("a label has no key: %w", fault.ErrInvalid)
		}
		if err := checkText("label", k, maxText); err != nil {
			return err
		}
		if err := checkText("label "+k, v, maxValue); err != nil {
			return err
		}
	}
	if len(j.Groups) == 0 || len(j.Groups) > maxGroups {
		return fmt.Errorf("%d groups, not 1 to %d: %w", len(j.Groups), maxGroups, fault.ErrInvalid)
	}
	for _, g := range j.Groups {
		n, ok := workload.Recognize(g)
		if !ok || n.Kind != workload.Job || n.Key != j.ID || !strings.HasPrefix(g, "/") || len(g) > maxPath {
			return fmt.Errorf("group %.300q is not one of job %s: %w", g, j.ID, fault.ErrInvalid)
		}
	}
	return checkTime("start", j.Started, now)
}

// validID checks that an id is one of mete run.
func validID(id string) error {
	if n, ok := workload.Recognize("/mete-run-" + id); !ok || n.Key != id {
		return fmt.Errorf("id %.40q is none of mete run: %w", id, fault.ErrInvalid)
	}
	return nil
}

// checkText checks that a text is short and can be shown to people.
func checkText(what, s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("%.40q has more than %d bytes: %w", what, most, fault.ErrInvalid)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%.40q is not plain text: %w", what, fault.ErrInvalid)
	}
	return nil
}

// checkTime checks that a time is given, and not ahead of the clock.
func checkTime(what string, t, now time.Time) error {
	if t.IsZero() || t.Sub(now) > ahead {
		return fmt.Errorf("%s %v: %w", what, t, fault.ErrInvalid)
	}
	return nil
}

// validate checks an outcome.
func (o *Outcome) validate(now time.Time) error {
	if o.Exit < 0 || o.Exit > 255 || o.Signal < 0 || o.Signal > 64 {
		return fmt.Errorf("exit %d, signal %d: %w", o.Exit, o.Signal, fault.ErrInvalid)
	}
	return checkTime("end", o.Ended, now)
}

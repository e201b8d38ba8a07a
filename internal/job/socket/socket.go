// Package socket is the unix socket at which mete run tells an agent of its jobs: server and
// client.
//
// It speaks HTTP with JSON, and problem+json for errors:
//
//	POST /v1/jobs                a job begins: Job; the answer is Registration
//	GET  /v1/jobs                the caller's open jobs, of root all: a list of Named
//	POST /v1/jobs/{id}/snapshot  take a tick now; answered when it is taken
//	PUT  /v1/jobs/{id}/end       the job ended: Outcome; answered when its last values and its name are on the agent's disk
//	GET  /v1/status              the agent's status
//
// Any user of the machine may register jobs of their own. The kernel identifies the user of a
// connection; nothing in a request does.
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
	"mete.dev/mete/internal/x/statedir"
	"mete.dev/mete/internal/x/trusted"
)

// A Job is a job of mete run as it begins.
type Job struct {
	ID     string            `json:"id"` // which is in the names of its groups
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Project is one that the job's user may use, "" for the one that the administrator of the
	// machine assigned.
	Project string    `json:"project,omitempty"`
	Groups  []string  `json:"groups"` // paths of its control groups, at least one
	Started time.Time `json:"started"`
	// User is the name of the user who registered it, or the number of one without a name. The
	// agent sets it.
	User string `json:"user,omitempty"`
}

// An Outcome is how a job ended.
type Outcome struct {
	Ended  time.Time `json:"ended"`
	Exit   int       `json:"exit"`             // exit code, by the rules of a shell
	Signal int       `json:"signal,omitempty"` // that ended it, or 0
}

// A Registration is the answer to a job that was registered.
type Registration struct {
	// Self is nil if the agent has no server to ask.
	Self *SelfAccess `json:"self,omitempty"`
}

// A Named is what an open job is called.
type Named struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	User    string `json:"user,omitempty"`
	Project string `json:"project,omitempty"`
}

// A SelfAccess is what a job needs to ask a server for its own use.
type SelfAccess struct {
	URL   string `json:"url"`
	Token string `json:"token"`
	CA    string `json:"ca,omitempty"` // file with the certificate of the server's authority; "" without TLS
}

// A Peer is the client of a connection, as the kernel identified it when it connected
// (SO_PEERCRED, unix(7)).
type Peer struct {
	UID, GID uint32
	PID      int // 0 if it is of a PID namespace that this process does not see
}

// Hooks are what an agent does for jobs. Several goroutines call them.
type Hooks interface {
	// Key returns the key of the job with this id that a peer may speak for, see
	// [workload.JobKey]: its user owns the directory of the job's group, or its process is in the
	// group. It is "" if there is none.
	Key(p Peer, id string) string
	// Project returns the project of a peer's job that asks for a project, or for none (""). The
	// error is fault.ErrDenied if the peer may not use it.
	Project(p Peer, wanted string) (string, error)
	// Register takes the job with a key; it may be called again with the same job.
	Register(key string, j Job) (Registration, error)
	// Snapshot takes a tick now.
	Snapshot(ctx context.Context) error
	// End takes the outcome of the job with a key, and returns when its last values and its name are
	// on disk. After an error it may be called again.
	End(ctx context.Context, key string, o Outcome) error
	// Status returns the agent's status, to be encoded as JSON. Every user may read it.
	Status() any
}

const systemSocket = trusted.AgentDir + "/agent.sock"

// Path returns the path at which an agent of this user listens: $METE_SOCKET, else
// /run/mete/agent.sock for root, else mete/agent.sock in $XDG_RUNTIME_DIR. It is "" for a user
// without such a directory.
func Path(getenv func(string) string, uid int) string {
	if p := getenv("METE_SOCKET"); p != "" {
		return p
	}
	if uid == 0 {
		return systemSocket
	}
	// The XDG base directory specification says to ignore relative paths.
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mete", "agent.sock")
	}
	return ""
}

// Paths returns the paths at which an agent may listen for jobs of this user: that of root's
// agent comes before that of the user's.
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

// MarkDirs returns the directories in which an agent that measures jobs of this user leaves its
// mark, by default (see exclusive.Mark): those of the sockets, which a reboot clears, and the
// state directories, which remain.
func MarkDirs(getenv func(string) string, uid int) (dirs []string) {
	for _, path := range Paths(getenv, uid) {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, uid := range []int{0, uid} {
		if state, err := statedir.Default(getenv, uid); err == nil {
			dirs = append(dirs, state)
		}
	}
	return dirs
}

// Limits of a request.
const (
	maxBody   = 64 << 10 // bytes
	maxText   = 256      // bytes of a name, a project, a label's key
	maxValue  = 1024     // bytes of a label's value
	maxGroups = 64
	maxPath   = 4096        // bytes of a group's path
	maxAhead  = time.Minute // of a job's start and end, ahead of the agent's clock
)

// validate checks a job.
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
		if err := batch.CheckJobLabel(k); err != nil {
			return err
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
		return fmt.Errorf("id %.40q is not one of mete run: %w", id, fault.ErrInvalid)
	}
	return nil
}

// checkText checks that a text is short and printable.
func checkText(what, s string, maxLen int) error {
	if len(s) > maxLen {
		return fmt.Errorf("%.40q has more than %d bytes: %w", what, maxLen, fault.ErrInvalid)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%.40q is not plain text: %w", what, fault.ErrInvalid)
	}
	return nil
}

// checkTime checks that a time is given and not ahead of the clock.
func checkTime(what string, t, now time.Time) error {
	if t.IsZero() || t.Sub(now) > maxAhead {
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

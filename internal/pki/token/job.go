package token

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
	"unique"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// The token with which a job queries its own use fits on one line too:
//
//	metejob_<workload>_<node>_<end>_<proof>
//
// It names workload and node and when it expires, and proves that its maker has the node's key. So
// a server can verify it without storing anything.
const (
	jobPrefix = "metejob"
	jobParts  = 5
	keySize   = 32
	proofSize = 20
	endSize   = 5 // seconds since 1970: to the year 36812

	// JobLife is how long a job's token is valid.
	JobLife = 90 * 24 * time.Hour

	maxNode = 64
	// jobContext separates proofs from other uses of a node's key.
	jobContext = "mete job token 1\n"
)

// A JobKey signs the tokens of the jobs of one node, and verifies them. Printing it omits the key;
// only Reveal returns it.
type JobKey struct{ secret unique.Handle[[keySize]byte] }

// JobKeyOf derives the key of a node from a secret that only its servers have.
func JobKeyOf(secret []byte, node string) JobKey {
	h := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(h, node) // never fails
	return JobKey{unique.Make([keySize]byte(h.Sum(nil)))}
}

// IsZero reports whether there is no key.
func (k JobKey) IsZero() bool { return k == JobKey{} }

// Reveal returns the text of the key for ParseJobKey, or "".
func (k JobKey) Reveal() string {
	if k.IsZero() {
		return ""
	}
	b := k.secret.Value()
	return text.EncodeToString(b[:])
}

// String omits the key.
func (k JobKey) String() string {
	if k.IsZero() {
		return ""
	}
	return "..."
}

// Format implements fmt.Formatter: no verb and no flag shows the key.
func (k JobKey) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, k.String()) // f reports errors
}

// MarshalText implements encoding.TextMarshaler; it omits the key.
func (k JobKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ParseJobKey parses the text of a key; "" is the zero key. The error is fault.ErrInvalid and
// contains nothing of the text.
func ParseJobKey(s string) (JobKey, error) {
	if s == "" {
		return JobKey{}, nil
	}
	var b [keySize]byte
	if !decodeExactly(b[:], s) {
		return JobKey{}, fmt.Errorf("key of jobs is malformed: %w", fault.ErrInvalid)
	}
	return JobKey{unique.Make(b)}, nil
}

// A Job is the content of a job's token.
type Job struct {
	Workload workload.ID
	Node     string
	Ends     time.Time // in whole seconds
}

// Sign returns the token for j, or "" without a key or if j's workload or node cannot be encoded.
func (k JobKey) Sign(j Job) string {
	if _, ok := j.Workload.Bytes(); !ok || k.IsZero() || !isNode(j.Node) || j.Ends.Unix() < 0 {
		return ""
	}
	var end [8]byte
	binary.BigEndian.PutUint64(end[:], uint64(j.Ends.Unix()))
	body := strings.Join([]string{jobPrefix, string(j.Workload), j.Node, text.EncodeToString(end[8-endSize:])}, "_")
	proof := k.prove(body)
	return body + "_" + text.EncodeToString(proof[:])
}

func (k JobKey) prove(body string) [proofSize]byte {
	b := k.secret.Value()
	h := hmac.New(sha256.New, b[:])
	_, _ = io.WriteString(h, jobContext+body) // never fails
	return [proofSize]byte(h.Sum(nil)[:proofSize])
}

// An UnverifiedJob is a parsed token whose proof is not verified yet.
type UnverifiedJob struct {
	Job
	body  string
	proof [proofSize]byte
}

// IsJob reports whether a text looks like a job's token.
func IsJob(s string) bool { return strings.HasPrefix(s, jobPrefix+"_") }

// IsForeign reports whether a text looks like a JSON Web Token, as Kubernetes issues: three parts with dots between
// them. Tokens of mete have no dots.
func IsForeign(s string) bool { return strings.Count(s, ".") == 2 }

// ParseJob parses a job's token. Each token has exactly one text. The error is fault.ErrInvalid and
// contains nothing of the text.
func ParseJob(s string) (UnverifiedJob, error) {
	malformed := func() (UnverifiedJob, error) {
		return UnverifiedJob{}, fault.WithHint(fmt.Errorf("not a job token: %w", fault.ErrInvalid), "use the whole METE_SELF_TOKEN that mete run gives a job")
	}
	parts := strings.Split(s, "_")
	if len(parts) != jobParts || parts[0] != jobPrefix {
		return malformed()
	}
	var v UnverifiedJob
	var end [8]byte
	v.Workload, v.Node = workload.ID(parts[1]), parts[2]
	if _, ok := v.Workload.Bytes(); !ok || !isNode(v.Node) || !decodeExactly(end[8-endSize:], parts[3]) || !decodeExactly(v.proof[:], parts[4]) {
		return malformed()
	}
	v.Ends = time.Unix(int64(binary.BigEndian.Uint64(end[:])), 0).UTC()
	v.body = s[:strings.LastIndexByte(s, '_')]
	return v, nil
}

// IsSignedBy reports whether the token was signed with this key, in constant time.
func (u UnverifiedJob) IsSignedBy(k JobKey) bool {
	if k.IsZero() {
		return false
	}
	want := k.prove(u.body)
	return hmac.Equal(u.proof[:], want[:])
}

// String returns the token without its proof.
func (u UnverifiedJob) String() string { return u.body + "_..." }

// Format implements fmt.Formatter: no verb and no flag shows the proof.
func (u UnverifiedJob) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, u.String()) // f reports errors
}

// isNode reports whether a text is a valid node id: letters, digits and dashes, as in ULIDs.
func isNode(s string) bool {
	return s != "" && len(s) <= maxNode && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-'
	})
}

// decodeExactly fills dst from s, which must be its canonical text.
func decodeExactly(dst []byte, s string) bool {
	return len(s) == text.EncodedLen(len(dst)) && decode(dst, s) && text.EncodeToString(dst) == s
}

// A SelfAccess is what a job needs to query its own use.
type SelfAccess struct {
	URL   string // of the query
	Token string // "" if there is no access
	CA    string // certificate of the server's authority in PEM; "" without TLS
}

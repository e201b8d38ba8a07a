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

// The token by which a job asks for its own use fits on one line too:
//
//	metejob_<workload>_<node>_<end>_<proof>
//
// It says of which workload and node it is, and until when it is good, and proves
// that who made it has the key of that node. So a server knows a right one without
// keeping any.
const (
	jobPrefix = "metejob"
	jobParts  = 5
	keySize   = 32
	proofSize = 20
	endSize   = 5 // seconds since 1970: to the year 36812

	// JobLife is for how long a job's token is good.
	JobLife = 90 * 24 * time.Hour

	maxNode = 64
	// jobContext keeps proofs apart from all else that a node's key may ever prove.
	jobContext = "mete job token 1\n"
)

// A JobKey makes the tokens of the jobs of one node, and proves them. Printing it,
// in whatever way, leaves it out; only Reveal gives it.
type JobKey struct{ secret unique.Handle[[keySize]byte] }

// JobKeyOf is the key of a node, made of a secret that only its servers know.
func JobKeyOf(secret []byte, node string) JobKey {
	h := hmac.New(sha256.New, secret)
	_, _ = io.WriteString(h, node) // which never fails
	return JobKey{unique.Make([keySize]byte(h.Sum(nil)))}
}

// IsZero says that there is no key.
func (k JobKey) IsZero() bool { return k == JobKey{} }

// Reveal returns the text of the key, which ParseJobKey reads: "" where there is
// none.
func (k JobKey) Reveal() string {
	if k.IsZero() {
		return ""
	}
	b := k.secret.Value()
	return text.EncodeToString(b[:])
}

// String returns nothing of the key.
func (k JobKey) String() string {
	if k.IsZero() {
		return ""
	}
	return "..."
}

// Format implements fmt.Formatter: no verb and no flag shows the key.
func (k JobKey) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, k.String()) // what there is to do about an error, f's owner does
}

// MarshalText implements encoding.TextMarshaler: it too leaves the key out.
func (k JobKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ParseJobKey reads the text of a key; "" is none. The error is fault.ErrInvalid,
// and shows nothing of the text.
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

// A Job is what a job's token says.
type Job struct {
	Workload workload.ID
	Node     string
	Ends     time.Time // in whole seconds
}

// Sign returns the token that says j, or "" where there is no key, or where j names
// no workload or node that can be in one.
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
	_, _ = io.WriteString(h, jobContext+body) // which never fails
	return [proofSize]byte(h.Sum(nil)[:proofSize])
}

// A UnverifiedJob is a job's token as somebody shows it: nothing of it is proved yet.
type UnverifiedJob struct {
	Job
	body  string
	proof [proofSize]byte
}

// IsJob says whether a text may be a job's token rather than another one.
func IsJob(s string) bool { return strings.HasPrefix(s, jobPrefix+"_") }

// ParseJob reads the text of a job's token. Each token has one text. The error is
// fault.ErrInvalid, and shows nothing of the text.
func ParseJob(s string) (UnverifiedJob, error) {
	malformed := func() (UnverifiedJob, error) {
		return UnverifiedJob{}, fault.WithHint(fmt.Errorf("token is none of a job: %w", fault.ErrInvalid), "mete run gives a job its token in METE_SELF_TOKEN: show that, whole")
	}
	if len(s) > 256 {
		return malformed()
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

// IsSignedBy says whether the token was made with this key. How long it takes says nothing
// about how nearly it was.
func (v UnverifiedJob) IsSignedBy(k JobKey) bool {
	if k.IsZero() {
		return false
	}
	want := k.prove(v.body)
	return hmac.Equal(v.proof[:], want[:])
}

// String returns the token without its proof.
func (v UnverifiedJob) String() string { return v.body + "_..." }

// Format implements fmt.Formatter: no verb and no flag shows the proof.
func (v UnverifiedJob) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, v.String()) // what there is to do about an error, f's owner does
}

// isNode says whether a text can be the id of a node: letters and digits, as ULIDs
// have.
func isNode(s string) bool {
	return s != "" && len(s) <= maxNode && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-'
	})
}

// decodeExactly fills dst from s, which has to be the one text of just that length.
func decodeExactly(dst []byte, s string) bool {
	return len(s) == text.EncodedLen(len(dst)) && decode(dst, s) && text.EncodeToString(dst) == s
}

// A SelfAccess is what a job needs to ask a server for its own use.
type SelfAccess struct {
	URL   string // of the question
	Token string // "" where there is none, as of all else then
	CA    string // certificate of the server's authority in PEM; "" where it speaks without TLS
}

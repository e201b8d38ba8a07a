package token_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/token"
)

const aNode = "01J00000000000000000000001"

func aJob() token.Job {
	return token.Job{Workload: workload.NewID(aNode, workload.Job, "x"), Node: aNode, Ends: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)}
}

func drawJob(t *rapid.T) token.Job {
	return token.Job{
		Workload: workload.NewID("n", workload.Job, rapid.String().Draw(t, "key")),
		Node:     rapid.StringMatching(`[0-9A-Za-z-]{1,64}`).Draw(t, "node"),
		Ends:     time.Unix(rapid.Int64Range(0, 1<<40-1).Draw(t, "end"), 0).UTC(),
	}
}

// TestJobRoundTrip checks that a token contains what it was made of, and verifies only with its own
// key.
func TestJobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, secret := drawJob(t), bytesOf(t, 32, "secret")
		key := token.JobKeyOf(secret, want.Node)
		s := key.Sign(want)
		got, err := token.ParseJob(s)
		if err != nil || got.Job != want || !got.IsSignedBy(key) {
			t.Fatalf("%q of %+v: %+v, %v", s, want, got.Job, err)
		}
		if len(s) != 77+len(want.Node) {
			t.Errorf("%q has %d characters", s, len(s))
		}
		for _, other := range []token.JobKey{{}, token.JobKeyOf(secret, want.Node+"x"), token.JobKeyOf(append(secret, 1), want.Node)} {
			if got.IsSignedBy(other) {
				t.Errorf("it verifies with another key")
			}
		}
		if again, err := token.ParseJobKey(key.Reveal()); err != nil || again != key {
			t.Errorf("the key did not round-trip: %v", err)
		}
		if _, err := token.Parse(s); err == nil || !token.IsJob(s) {
			t.Errorf("%q passes for a token of another kind", s)
		}
	})
}

// TestJobText checks the text of a token to the letter: the tokens of running jobs stay valid.
func TestJobText(t *testing.T) {
	const want = "metejob_ax4dfafiqal4xr5oswtmc2gc7e_01J00000000000000000000001_abvbzs4a_ddfvh2mllzhuqamabhggqttmcgs34dey"
	if got := token.JobKeyOf([]byte("secret"), aNode).Sign(aJob()); got != want {
		t.Errorf("Sign() = %s, want %s", got, want)
	}
	if token.JobLife.Hours() != 90*24 {
		t.Errorf("a token is valid for %v, and docs/guide/api.md says 90 days", token.JobLife)
	}
}

// TestJobNode checks which node ids a token may have.
func TestJobNode(t *testing.T) {
	key := token.JobKeyOf([]byte("secret"), "")
	for node, want := range map[string]bool{
		strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "": false,
		"0": true, "9": true, "a": true, "z": true, "A": true, "Z": true, "-": true,
		"/": false, ":": false, "`": false, "{": false, "@": false, "[": false, "_": false, "é": false,
	} {
		j := aJob()
		j.Node = node
		s := key.Sign(j)
		if (s != "") != want {
			t.Errorf("node %q: %q", node, s)
		}
		if v, err := token.ParseJob(s); want && (err != nil || v.Node != node) {
			t.Errorf("node %q: %v, %v", node, v, err)
		}
	}
}

// TestJobForged checks that no part of a token can be replaced by that of another.
func TestJobForged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := []byte("secret")
		a, b := drawJob(t), drawJob(t)
		first, second := strings.Split(token.JobKeyOf(secret, a.Node).Sign(a), "_"), strings.Split(token.JobKeyOf(secret, b.Node).Sign(b), "_")
		mixed := make([]string, len(first))
		for i := range first {
			mixed[i] = rapid.SampledFrom([]string{first[i], second[i]}).Draw(t, fmt.Sprint(i))
		}
		s := strings.Join(mixed, "_")
		if v, err := token.ParseJob(s); err == nil && v.IsSignedBy(token.JobKeyOf(secret, v.Node)) && v.Job != a && v.Job != b {
			t.Errorf("%s verifies, and no server signed it", s)
		}
	})
}

// TestJobDamage checks that a text with one changed letter does not parse or does not verify.
func TestJobDamage(t *testing.T) {
	key := token.JobKeyOf([]byte("secret"), aNode)
	s := key.Sign(aJob())
	for at := range len(s) {
		for _, letter := range "abcdefghijklmnopqrstuvwxyzABZ0123456789_-. \n" {
			typo := s[:at] + string(letter) + s[at+1:]
			if v, err := token.ParseJob(typo); typo != s && err == nil && v.IsSignedBy(key) {
				t.Errorf("%q is right", typo)
			}
		}
		if _, err := token.ParseJob(s[:at]); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" || strings.Contains(err.Error(), "metejob_") {
			t.Errorf("cut off at %d: %v", at, err)
		}
	}
}

// TestJobUnsigned checks that invalid content gives no token.
func TestJobUnsigned(t *testing.T) {
	key := token.JobKeyOf([]byte("secret"), aNode)
	for name, change := range map[string]func(*token.Job){
		"no workload": func(j *token.Job) { j.Workload = "" }, "no id": func(j *token.Job) { j.Workload = "x_y" },
		"no node": func(j *token.Job) { j.Node = "" }, "node of two parts": func(j *token.Job) { j.Node = "a_b" },
		"no end": func(j *token.Job) { j.Ends = time.Time{} },
	} {
		j := aJob()
		change(&j)
		if s := key.Sign(j); s != "" {
			t.Errorf("%s: %s", name, s)
		}
	}
	if s := (token.JobKey{}).Sign(aJob()); s != "" {
		t.Errorf("without a key: %s", s)
	}
	if k, err := token.ParseJobKey(""); err != nil || !k.IsZero() || k.Reveal() != "" {
		t.Errorf("empty key: %v, %v", k, err)
	}
	if _, err := token.ParseJobKey("abc"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a malformed key: %v", err)
	}
}

// TestIsForeign tells tokens of Kubernetes from those of mete.
func TestIsForeign(t *testing.T) {
	for s, want := range map[string]bool{"a.b.c": true, "..": true, "a.b": false, "a.b.c.d": false, "": false, token.JobKeyOf([]byte("secret"), aNode).Sign(aJob()): false} {
		if got := token.IsForeign(s); got != want {
			t.Errorf("%q: %t", s, got)
		}
	}
}

// TestJobRedacted checks that printing a key or a token omits the secret.
func TestJobRedacted(t *testing.T) {
	key := token.JobKeyOf([]byte("secret"), aNode)
	text := key.Sign(aJob())
	v, err := token.ParseJob(text)
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Key token.JobKey
		V   token.UnverifiedJob
	}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, strings.Repeat(verb+" ", 5)+"\n", key, &key, v, &v, holder{key, v})
	}
	b, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	proof := text[strings.LastIndexByte(text, '_')+1:]
	for _, secret := range []string{key.Reveal(), proof} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%s is in\n%s", secret, out.String())
		}
	}
	if want := strings.TrimSuffix(text, proof) + "..."; v.String() != want || fmt.Sprint(v) != want || fmt.Sprintf("%#v", v) != want {
		t.Errorf("String() = %q, printed %v, want %q", v.String(), v, want)
	}
	if fmt.Sprint(key) != "..." || fmt.Sprint(token.JobKey{}) != "" {
		t.Errorf("a key is printed as %v, none as %v", key, token.JobKey{})
	}
}

func FuzzParseJob(f *testing.F) {
	key := token.JobKeyOf([]byte("secret"), aNode)
	f.Add(key.Sign(aJob()))
	f.Add("metejob____")
	f.Add("mete_a_b_c_d")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := token.ParseJob(s)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%v is of another kind", err)
			}
			return
		}
		// Each token has one text, so a valid one is equal to the original.
		if again := key.Sign(v.Job); v.IsSignedBy(key) != (again == s) {
			t.Errorf("%q: right is %t, and it is made as %q", s, v.IsSignedBy(key), again)
		}
	})
}

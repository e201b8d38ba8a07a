package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test . -run=^TestReference$ -count=1 -update

var update = flag.Bool("update", false, "write the files that describe the API anew")

// TestReference holds docs/openapi.json to what the handlers say, and beside it what
// the client's code is made of.
func TestReference(t *testing.T) {
	document := get(handler(example(), all), "/openapi.json").Body.Bytes()
	for file, have := range map[string][]byte{"../../docs/openapi.json": document, "ask/questions.json": questions(t, document)} {
		if *update {
			if err := os.WriteFile(file, have, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(have)); diff != "" {
			t.Errorf("%s is stale; go generate ./internal/api ./internal/api/ask writes it anew (-want +have):\n%s", file, diff)
		}
	}
}

// questions is what can be asked, without the answers, which the client reads by
// itself, and in OpenAPI 3.0.3, which generators of code take.
func questions(t *testing.T, document []byte) []byte {
	var d map[string]any
	if err := json.Unmarshal(document, &d); err != nil {
		t.Fatal(err)
	}
	d["openapi"], d["components"] = "3.0.3", map[string]any{}
	delete(d, "security")
	for _, item := range d["paths"].(map[string]any) {
		op := item.(map[string]any)["get"].(map[string]any)
		delete(op, "security")
		op["responses"] = map[string]any{"200": map[string]any{"description": "the answer"}}
		list, _ := op["parameters"].([]any)
		for _, p := range list {
			for s, ok := p.(map[string]any)["schema"].(map[string]any); ok; s, ok = s["items"].(map[string]any) {
				delete(s, "examples")
			}
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(d); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

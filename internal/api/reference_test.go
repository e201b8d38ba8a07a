package api_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test . -run=^TestReference$ -count=1 -update

var update = flag.Bool("update", false, "rewrite the files that describe the API")

// TestReference checks that docs/openapi.json is the description that the handlers serve.
func TestReference(t *testing.T) {
	const file = "../../docs/openapi.json"
	have := get(handler(example(), all), "/openapi.json").Body.Bytes()
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
		t.Errorf("%s is stale; go generate ./internal/api rewrites it (-want +have):\n%s", file, diff)
	}
}

package proto_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/usage"
)

const file = "mete.proto"

var update = flag.Bool("update", false, "rewrite the enum of resources in mete.proto")

// TestResources compares the enum Resource with the list in usage.
func TestResources(t *testing.T) {
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := withResources(t, string(have))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is stale; run go generate ./proto (-want +have):\n%s", file, diff)
	}
}

// withResources returns the text of a .proto with its enum Resource made from
// the list.
func withResources(t *testing.T, text string) string {
	t.Helper()
	const open, end = "\nenum Resource {\n", "}\n"
	before, rest, ok := strings.Cut(text, open)
	if !ok {
		t.Fatalf("%s has no enum Resource", file)
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("the enum Resource of %s does not end", file)
	}
	var b strings.Builder
	b.WriteString("  RESOURCE_UNSPECIFIED = 0;\n")
	usage.All.Each(func(r usage.Resource) {
		d := r.Detail()
		fmt.Fprintf(&b, "  RESOURCE_%s = %d;  // %s: %s\n", strings.ToUpper(d.Name), r, d.Unit, d.Help)
	})
	return before + open + b.String() + end + after
}

package prose_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"mete.dev/mete/tools/prose"
)

const root = "../.."

// foreign are files whose words are not ours, and decisions, which do not change.
var foreign = []string{"docs/decisions/", "internal/web/static/vendor/", "internal/web/testdata/", "LICENSE", "go.sum", "tools/prose/"}

// TestTree holds all text of the tree to the rules.
func TestTree(t *testing.T) {
	checked := 0
	for _, name := range files(t) {
		if slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(name, p) }) || strings.Contains(name, "/testdata/fuzz/") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, and not committed yet
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
			continue
		}
		checked++
		for _, f := range prose.Spelling(string(b)) {
			t.Errorf("%s:%d: %s", name, f.Line, f.Why)
		}
	}
	if checked < 500 {
		t.Errorf("only %d files were checked", checked)
	}
}

// files lists the files of the tree that git knows or would add.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("git ls-files: %v (the tree is no checkout)", err)
	}
	return strings.Fields(string(out))
}

func TestSpelling(t *testing.T) {
	for text, want := range map[string]int{
		"the colour of\na Reenrol()":                  2,
		"it enrolled, and enrolls; NodeEnrol":         1,
		"EnrolLocal and EnrollLocal":                  1,
		"node.enrol and cancelled_write_bytes":        0,
		"recognise, recognize, unrecognised":          2,
		"analysis of a catalog; analysed":             1,
		"a modelled figure, optimistic and towards":   0,
		"licence\nLicense":                            1,
		"concentred is no word of ours, centre is":    1,
		"20 per cent, 20 percent; greyhound; Agrey b": 2,
	} {
		if found := prose.Spelling(text); len(found) != want {
			t.Errorf("Spelling(%q) = %v, want %d findings", text, found, want)
		}
	}
}

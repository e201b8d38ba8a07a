package prose_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"mete.dev/mete/tools/prose"
)

const root = "../.."

// foreign are files with text of others, decisions, which do not change, and this package,
// which quotes the words that it finds.
var foreign = []string{"docs/decisions/", "internal/web/static/vendor/", "internal/web/testdata/", "LICENSE", "go.sum", "tools/prose/"}

// generated marks generated Go files, whose wording comes from their sources.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestTree checks all text of the tree. It also fails for a room that is listed as not
// checked yet but has no findings.
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
		if !strings.HasSuffix(name, ".go") || generated.Match(b) {
			continue
		}
		for _, f := range prose.Wording(b) {
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

// Every phrase has an example here, which fails without its rule.
func TestWording(t *testing.T) {
	for text, want := range map[string]string{
		"nobody answers":                           "nobody",
		"the user nobody; nobody could see it":     "",
		"somebody else":                            "somebody",
		"the error of who has many":                "of who",
		"No turn is lost. Who has one is next":     ". Who has",
		"the client who has one":                   "",
		"it ends with his turn":                    "his",
		"the log is told":                          "is told",
		"an event tells of births":                 "tells of",
		"the kernel is asked":                      "is asked",
		"What fails leaves the old file.":          "What fails leaves the old file.",
		"What is it?":                              "",
		"the holder is who listens":                "is who",
		"the least of those of all groups":         "of those of",
		"what is no number":                        "is no number",
		"there is no number; it is no longer used": "",
		"the file is not there":                    "is not there",
		"the groups that are there":                "that are there",
		"the metrics that there are":               "that there are",
		"0 where there is none":                    "where there is",
		"it begins anew":                           "anew",
		"it is read all the same":                  "all the same",
		"the clock that it goes by":                "goes by",
		"since the tick before":                    "the tick before",
		"lets so many run":                         "so many",
		"it is closed for good":                    "for good",
		"Close gives all of it back":               "gives all of it back",
		"what came of it":                          "came of",
		"whatever befalls a meter":                 "befalls",
		"it looks whether one is left":             "looks whether",
	} {
		for form, src := range map[string]string{"comment": "package p\n\n// " + text + "\n", "string": "package p\n\nvar s = \"" + text + "\"\n", "lines": "package p\n\n// " + strings.ReplaceAll(text, " ", "\n// ") + "\n"} {
			found := prose.Wording([]byte(src))
			if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.HasPrefix(found[0].Why, strconv.Quote(want)+": write ")) {
				t.Errorf("Wording(%s %q) = %v, want %q", form, text, found, want)
			}
		}
	}
}

// A finding has the line of its first word; code is not read.
func TestWordingLine(t *testing.T) {
	const src = "package p\n\nvar nobody = 1 // begins\n\n// f is the first, and\n// begins anew.\nfunc f() { _ = `x\nbegins anew` }\n"
	var lines []int
	for _, f := range prose.Wording([]byte(src)) {
		lines = append(lines, f.Line)
	}
	if !slices.Equal(lines, []int{6, 8}) {
		t.Errorf("lines %v, want 6 and 8", lines)
	}
}

package text_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"mete.dev/mete/internal/x/text"
)

// No string in JSON controls a terminal, and each means the same as before.
func TestJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"b"}`: `{"a":"b"}`, "\"x\u009b31m\"": `"x\u009b31m"`, "\"\x7f\"": `"\u007f"`, "\"a\u202eb\u2066\"": `"a\u202eb\u2066"`, "\"é🙂\"\n": "\"é🙂\"\n", "\"é\u0085\"": `"é\u0085"`, "\"\x9b2J\"": `"\ufffd2J"`, "\"\\u001b\"": `"\u001b"`, "\"\uFFFD\"": "\"\uFFFD\"",
	} {
		got := string(text.JSON([]byte(in)))
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		var before, after any
		if err := json.Unmarshal([]byte(in), &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(got), &after); err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%q means %q, want %q: %v", got, after, before, err)
		}
	}
}

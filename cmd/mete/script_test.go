package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
)

func TestMain(m *testing.M) {
	testscript.Main(both{m}, map[string]func(){"mete": main})
}

// both installs mete-server beside mete, which testscript puts first into the path.
type both struct{ *testing.M }

func (b both) Run() int {
	bin, _, _ := strings.Cut(os.Getenv("PATH"), ":")
	if out, err := exec.Command("go", "build", "-o", bin+"/", "mete.dev/mete/cmd/mete-server").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build ./cmd/mete-server: %v\n%s", err, out)
		return 1
	}
	return b.M.Run()
}

// TestScript runs testdata/script: stdout, stderr and exit code of every command, each with its own
// state directory. In addition to those of testscript, scripts can use the commands of [words], and
// the condition [group]: mete run can create control groups.
func TestScript(t *testing.T) {
	if deadline, ok := t.Deadline(); ok {
		giveUp = deadline.Add(-20 * time.Second)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("METE_STATE", e.WorkDir+"/state")
			e.Setenv("METE_SOCKET", e.WorkDir+"/agent.sock")
			e.Setenv("METE_HOST_VSOCK", "false") // tests must not query the real host
			return nil
		},
		Cmds: words,
		Condition: func(cond string) (bool, error) {
			if cond != "group" {
				return false, fmt.Errorf("condition %q is not known", cond)
			}
			return canGroup(), nil
		},
	})
}

// canGroup reports whether this process can create a job's control groups.
var canGroup = sync.OnceValue(func() bool {
	h, err := hostfs.Open("/")
	if err != nil {
		return false
	}
	ys, err := h.Hierarchies()
	if err != nil {
		return false
	}
	var random [10]byte
	_, _ = rand.Read(random[:]) // it never fails
	g, err := launch.Open(h, ys, report.NewID(time.Now().UnixMilli(), random), launch.Limits{})
	if err != nil {
		return false
	}
	g.Remove()
	return true
})

var words = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"exits":    exits,
	"keys":     keys,
	"value":    value,
	"await":    await,
	"get":      get,
	"getuntil": getUntil,
	"portbusy": portBusy,
	"viewer":   viewer,
}

// exits CODE PROGRAM ARGUMENT...: exec, and the exit code is CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGUMENT...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func object(ts *testscript.TestScript, file string) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &m))
	return m
}

// keys FILE KEY...: the JSON object in the file has these keys.
func keys(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: keys FILE KEY...")
	}
	m := object(ts, args[0])
	for _, k := range args[1:] {
		if _, ok := m[k]; !ok {
			ts.Fatalf("%s has no key %q", args[0], k)
		}
	}
}

// value FILE KEY REGEXP: the whole value of the key, without spaces, matches. A dot selects a key
// of a nested object.
func value(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: value FILE KEY REGEXP")
	}
	var v any
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	d.UseNumber()
	ts.Check(d.Decode(&v))
	for k := range strings.SplitSeq(args[1], ".") {
		m, _ := v.(map[string]any) // other values have no keys
		var ok bool
		if v, ok = m[k]; !ok {
			ts.Fatalf("%s has no %q", args[0], args[1])
		}
	}
	b, err := json.Marshal(v)
	ts.Check(err)
	re, err := regexp.Compile(`^(?:` + args[2] + `)$`)
	ts.Check(err)
	if re.Match(b) == neg {
		ts.Fatalf("%s: %s is %s", args[0], args[1], b)
	}
}

// giveUp is when a waiting script fails: shortly before the test program's deadline. It is zero
// without a deadline.
var giveUp time.Time

// eventually waits until ok returns true, however long a slow machine takes.
func eventually(ts *testscript.TestScript, what string, ok func() bool) {
	for ; !ok(); time.Sleep(20 * time.Millisecond) {
		if !giveUp.IsZero() && time.Now().After(giveUp) {
			ts.Fatalf("%s", what)
		}
	}
}

// await FILE REGEXP [VARIABLE]: waits until the file matches, and sets the variable to the first
// group.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: await FILE REGEXP [VARIABLE]")
	}
	re, err := regexp.Compile(`(?m)` + args[1])
	ts.Check(err)
	var m [][]byte
	eventually(ts, args[0]+" does not match "+args[1], func() bool {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		m = re.FindSubmatch(b)
		return err == nil && m != nil
	})
	if len(args) == 3 {
		ts.Setenv(args[2], string(m[1]))
	}
}

// get URL CODE [FILE]: checks the status code and writes the body to the file. It shows the token
// in $VIEWER, if that is set.
func get(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: get URL CODE [FILE]")
	}
	q, err := http.NewRequest(http.MethodGet, args[0], nil)
	ts.Check(err)
	if text := strings.TrimSpace(ts.Getenv("VIEWER")); text != "" {
		q.Header.Set("Authorization", "Bearer "+text)
	}
	r, err := http.DefaultClient.Do(q)
	ts.Check(err)
	body, err := io.ReadAll(r.Body)
	ts.Check(errors.Join(err, r.Body.Close()))
	if strconv.Itoa(r.StatusCode) != args[1] {
		ts.Fatalf("%s: %s, want %s\n%s", args[0], r.Status, args[1], body)
	}
	if len(args) == 3 {
		ts.Check(os.WriteFile(ts.MkAbs(args[2]), body, 0o600))
	}
}

// getUntil URL REGEXP FILE: repeats a request until the body matches, and writes it to the file.
func getUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: getuntil URL REGEXP FILE")
	}
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	eventually(ts, args[0]+" does not match "+args[1], func() bool {
		get(ts, false, []string{args[0], "200", args[2]})
		return re.MatchString(ts.ReadFile(args[2]))
	})
}

// viewer [STATE]: makes a viewer's token, which get shows. STATE is a pattern of a state directory.
func viewer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: viewer [STATE]")
	}
	order := []string{"token", "create", "--role", "viewer"}
	if len(args) == 1 {
		found, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		if len(found) != 1 {
			ts.Fatalf("%s: %d directories", args[0], len(found))
		}
		order = append(order, "--state", found[0])
	}
	ts.Check(ts.Exec("mete", order...))
	ts.Setenv("VIEWER", ts.ReadFile("stdout"))
}

// portBusy VARIABLE: listens on a port until the end of the script.
func portBusy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: portbusy VARIABLE")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = ln.Close() })
	ts.Setenv(args[0], ln.Addr().String())
}

// TestCommands checks that every command has a script of its name.
func TestCommands(t *testing.T) {
	for _, c := range command().Commands() {
		if slices.Contains([]string{"help", "completion"}, c.Name()) {
			continue // in help.txtar
		}
		if _, err := os.Stat("testdata/script/" + c.Name() + ".txtar"); err != nil {
			t.Errorf("mete %s has no script: %v", c.Name(), err)
		}
	}
}

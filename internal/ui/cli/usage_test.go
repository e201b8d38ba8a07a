package cli_test

import (
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/cli"
)

// program returns a command line with one command of each kind.
func program() *cobra.Command {
	root := &cobra.Command{Use: "prog", SilenceErrors: true, SilenceUsage: true}
	nothing := func(*cobra.Command, []string) error { return nil }
	root.AddCommand(
		&cobra.Command{Use: "report", Args: cobra.MaximumNArgs(1), RunE: nothing},
		&cobra.Command{Use: "pair ONE TWO", Args: cobra.ExactArgs(2), RunE: nothing},
		&cobra.Command{Use: "any", RunE: nothing},
	)
	cli.Complete(root)
	return root
}

func TestMisuse(t *testing.T) {
	for _, c := range []struct{ args, err, hint string }{
		{"", "", ""},
		{"report", "", ""},
		{"report a", "", ""},
		{"any a b c", "", ""},
		{"help report", "", ""},
		{"report a b c", `unexpected argument "b"`, "prog report --help says what there is"},
		{"report --no", "unknown flag: --no", "prog report --help says what there is"},
		{"pair a", "an argument is missing: prog pair ONE TWO", "prog pair --help says what there is"},
		{"pair a b c", `unexpected argument "c"`, "prog pair --help says what there is"},
		{"--no", "unknown flag: --no", "prog --help says what there is"},
		{"zzz", `unknown command "zzz"`, "prog --help lists the commands"},
		{"zzz --no", `unknown command "zzz"`, "prog --help lists the commands"},
		{"rpeort", `unknown command "rpeort"`, "perhaps prog report; prog --help lists the commands"},
		{"help zzz", `unknown command "zzz"`, "prog --help lists the commands"},
		{"help report x", `unexpected argument "x"`, "prog help --help says what there is"},
		{"completion zzz", `unexpected argument "zzz"`, "prog completion --help says what there is"},
		{"completion bash x", `unexpected argument "x"`, "prog completion bash --help says what there is"},
	} {
		root := program()
		args := strings.Fields(c.args)
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.Execute()
		if err != nil {
			if u := cli.Unknown(root, args); u != nil {
				err = u
			}
		}
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%q: %v, want no error", c.args, err)
		case c.err == "":
		case err == nil || err.Error() != c.err:
			t.Errorf("%q: %v, want %s", c.args, err, c.err)
		case !errors.Is(err, fault.ErrInvalid) || cli.Code(err) != cli.Invalid:
			t.Errorf("%q: code %d, want %d", c.args, cli.Code(err), cli.Invalid)
		case fault.Hint(err) != c.hint:
			t.Errorf("%q: hint %q, want %q", c.args, fault.Hint(err), c.hint)
		}
	}
}

func TestVersion(t *testing.T) {
	const rev = "0123456789abcdef0123456789abcdef01234567"
	on := "go1.26.0, " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for _, c := range []struct {
		version, revision, modified, want string
	}{
		{"(devel)", "", "", "devel (" + on},
		{"", rev, "true", "devel (commit 0123456789ab, modified, " + on},
		{"v1.2.3", rev, "false", "v1.2.3 (commit 0123456789ab, " + on},
		{"v0.0.0-20260102030405-0123456789ab+dirty", rev, "true", "v0.0.0-20260102030405-0123456789ab+dirty (" + on},
	} {
		b := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: c.version}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: c.revision}, {Key: "vcs.modified", Value: c.modified},
		}}
		if got := cli.Version(b); got != c.want {
			t.Errorf("Version(%+v) = %q, want %q", c, got, c.want)
		}
	}
	if got := cli.Version(nil); got != "devel" {
		t.Errorf("Version(nil) = %q, want devel", got)
	}
}

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mete.dev/mete/internal/model/fault"
)

// Choices lets the shell complete a flag.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	// The only error is an unknown flag, which the tests would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// IsPlainWord reports whether a text is one word for any shell, without quotes. Completion offers only such names of
// jobs and other things: their owner may be another user, who could write a command into one.
func IsPlainWord(text string) bool {
	return text != "" && text[0] != '-' && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/@%+=-") == ""
}

// StateFlag adds the flag for the state directory of this machine's server.
func StateFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state", "", "state directory of the server: the `DIR` given to mete up or mete server as --state (default: as theirs)")
}

// RangeFlags adds --from and --to, also as --since and --until. from is the default of the first; whatFrom
// and whatTo say what the two do.
func RangeFlags(cmd *cobra.Command, begin, end *string, from, whatFrom, whatTo string) {
	f := cmd.Flags()
	f.StringVar(begin, "from", from, whatFrom+" `TIME` (or --since): 90m, 24h or 7d ago, today, yesterday, 2026-03-01, 2026-03-01T12:00:00Z")
	f.StringVar(end, "to", "now", whatTo+" `TIME` (or --until)")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name {
		case "since":
			name = "from"
		case "until":
			name = "to"
		}
		return pflag.NormalizedName(name)
	})
}

// OutputFlag adds the flag for the form of the output. The first form is the default.
func OutputFlag(cmd *cobra.Command, form *string, forms ...string) {
	cmd.Flags().StringVarP(form, "output", "o", forms[0], "print `FORM`: "+strings.Join(forms[:len(forms)-1], ", ")+" or "+forms[len(forms)-1])
	Choices(cmd, "output", forms...)
}

// OneOf checks the value of a flag. The error wraps fault.ErrInvalid.
func OneOf(flag, value string, values ...string) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%s %q: %w", flag, value, fault.ErrInvalid), "it is one of "+strings.Join(values, ", "))
}

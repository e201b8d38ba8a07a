package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
)

// Choices lets the shell complete a flag.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	// The only error is an unknown flag, which the tests would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// StateFlag adds the flag for the state directory of this machine's server.
func StateFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state", "", "state directory of the server: the `DIR` given to mete up or mete server as --state (default: as theirs)")
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

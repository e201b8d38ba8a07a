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

// OneOf checks the value of a flag. The error wraps fault.ErrInvalid.
func OneOf(flag, value string, values ...string) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%s %q: %w", flag, value, fault.ErrInvalid), "it is one of "+strings.Join(values, ", "))
}

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
)

// usageError is an error in a command line: a fault.ErrInvalid with a message of its own.
type usageError struct{ string }

func (u usageError) Error() string      { return u.string }
func (usageError) Is(target error) bool { return target == fault.ErrInvalid }

// newUsageError returns an error in a command line of cmd, with the help command as its
// hint.
func newUsageError(cmd *cobra.Command, what string) error {
	return fault.WithHint(usageError{what}, cmd.CommandPath()+" --help says what there is")
}

// Complete adds the standard behavior to root: help without arguments and by the command
// help, and errors for wrong usage that wrap fault.ErrInvalid and name the help. A
// FlagErrorFunc of a command takes precedence.
func Complete(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if hint := fault.Hint(err); hint != "" {
			return fault.WithHint(usageError{err.Error()}, hint)
		}
		return newUsageError(cmd, err.Error())
	})
	root.SetHelpCommand(helpCommand())
	groupRest(root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		check(c)
	}
}

// check makes c and the commands below it refuse arguments with [newUsageError].
func check(c *cobra.Command) {
	for _, sub := range c.Commands() {
		check(sub)
	}
	if !c.Runnable() {
		// Cobra's default would print the help for any arguments, without an error.
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	valid := c.Args
	if valid == nil {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := valid(c, args)
		if err == nil {
			return nil
		}
		for n := len(args) - 1; n >= 0; n-- {
			if valid(c, args[:n]) == nil {
				return newUsageError(c, fmt.Sprintf("unexpected argument %q", args[n]))
			}
		}
		// Words in capitals in the usage line stand for arguments.
		if line := strings.TrimSuffix(c.UseLine(), " [flags]"); line != c.CommandPath() {
			return newUsageError(c, "an argument is missing: "+line)
		}
		return newUsageError(c, err.Error())
	}
}

// Unknown returns an error if the command line names no command of root, else nil.
func Unknown(root *cobra.Command, args []string) error {
	found, rest, err := root.Find(args)
	if err == nil || len(rest) == 0 {
		return nil
	}
	name := rest[0]
	for _, a := range rest {
		if !strings.HasPrefix(a, "-") {
			name = a
			break
		}
	}
	hint := found.CommandPath() + " --help lists the commands"
	if near := similar(found, name); near != "" {
		hint = "perhaps " + near + "; " + hint
	}
	return fault.WithHint(usageError{fmt.Sprintf("unknown command %q", name)}, hint)
}

// similar returns the command of c closest to a mistyped name, or "". The first letter must
// match, because short names are all similar.
func similar(c *cobra.Command, name string) string {
	if name == "" {
		return ""
	}
	c.SuggestionsMinimumDistance = 2
	for _, s := range c.SuggestionsFor(name) {
		if s[0] == name[0] {
			return c.CommandPath() + " " + s
		}
	}
	return ""
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Long:  "Show the help of a command, as the command's own --help does.",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			for _, sub := range c.Root().Commands() {
				if len(args) == 0 && sub.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := Unknown(c.Root(), args); err != nil {
				return err
			}
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return newUsageError(c, fmt.Sprintf("unexpected argument %q", rest[0]))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

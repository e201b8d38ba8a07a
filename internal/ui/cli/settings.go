package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/settings"
)

// Settings gives a command the flags of a table of settings.
func Settings(cmd *cobra.Command, set *settings.Set) {
	for _, s := range set.All() {
		f := cmd.Flags().VarPF(setting{s}, s.Name, s.Short, s.Help)
		f.DefValue = s.Default()
		if s.Kind == settings.Switch {
			f.NoOptDefVal = "true"
		}
		if c := s.Choices(); c != nil {
			Choices(cmd, s.Name, c...)
		}
	}
}

// A setting is the value of a setting's flag.
type setting struct{ *settings.Setting }

func (s setting) String() string {
	if s.Setting == nil { // pflag asks the zero value
		return ""
	}
	return strings.Join(s.Texts(), ",")
}

func (s setting) Set(text string) error {
	err := s.SetFlag(text)
	if err != nil && fault.Hint(err) == "" {
		err = fault.WithHint(err, "--help lists the flags and their values")
	}
	return err
}

// Type implements pflag.Value: it is shown in place of the value.
func (s setting) Type() string {
	if s.Kind == settings.Switch {
		return "bool"
	}
	return s.Arg
}

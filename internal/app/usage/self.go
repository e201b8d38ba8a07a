package usage

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
)

// self prints the use of the job or pod that runs this program.
func (s *serverFlags) self(cmd *cobra.Command, text func(*v1.Self) string) error {
	var other string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"self", "output", "ascii", "columns", "reserved", "network"}, f.Name) {
			other = f.Name
		}
	})
	if other != "" {
		return fault.WithHint(fmt.Errorf("--self with --%s: %w", other, fault.ErrInvalid), "--self queries the whole use of this job or pod")
	}
	if err := s.checkOutput(); err != nil {
		return err
	}
	c, err := client.ForJob(os.Getenv)
	if err != nil {
		return err
	}
	a, err := c.Self(cmd.Context())
	if err != nil {
		return err
	}
	return s.print(cmd, a, func() string { return text(a) })
}

package usage

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/table"
)

// self prints the use of the job or pod that runs this program.
func (s *serverFlags) self(cmd *cobra.Command) error {
	var other string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "self" && f.Name != "output" && f.Name != "ascii" {
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
	return s.print(cmd, a, func() string { return table.SelfText(a, s.style()) })
}

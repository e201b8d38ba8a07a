// Package power implements the commands mete power and mete power calibrate, which show this
// machine's power meters and measure how its power follows the load.
package power

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/calibrate"
	"mete.dev/mete/internal/model/power"
)

const long = `Show the meters of energy and power of this machine with their present values,
which of them cannot be read and why, and the model that replaces missing meters:
a curve of power by load, with its origin and its possible error. Also show the
virtual machines that run here: how much CPU they use and wait for, how often they
leave it for the hypervisor, and whether each has a share of this machine's energy
or why not.

It reads everything twice, a second apart.`

const calibrateLong = `Keep this machine busy for a share of its time, from nothing to all of it in
steps, measure with its meters what power each load takes, and fit a curve to
that. It uses meters of the whole machine if there are any, else those of its CPU
packages.

The output is JSON: the curve, its possible error (error_ppm: the class of the
meter and the residual of the fit), and each sample with its distance from the
curve. mete-agent --power-curve FILE uses the curve for power that no meter
measures, on this machine or on others of the same model.

The machine should have little else to do meanwhile. The load of other programs is
measured too and does not falsify the curve, but the curve has no samples of loads
that do not occur.`

const calibrateExamples = `  mete power calibrate -o curve.json
  mete power calibrate --for 20s -o curve.json
  mete-agent --power-curve curve.json`

// Command returns mete power with its subcommand.
func Command() *cobra.Command {
	cfg := calibrate.Default()
	var output string
	cmd := &cobra.Command{
		Use:     "power",
		Short:   "Show this machine's power meters, and the model used without them",
		Long:    long,
		Example: "  mete power\n  mete power -o json\n  mete power --ipmi /dev/ipmi0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), cfg.Machine, output, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "print `FORM`: text or json")
	f := cmd.PersistentFlags()
	f.StringVar(&cfg.Machine.Energy.Powercap, "powercap", "", "read RAPL's counters in `DIR`, in place of this machine's own")
	f.StringVar(&cfg.Machine.Energy.IPMI, "ipmi", "", "ask the management controller at `DEVICE`, as /dev/ipmi0, too")
	cmd.AddCommand(calibration(&cfg))
	return cmd
}

func calibration(cfg *calibrate.Config) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "calibrate",
		Short:   "Measure the power of this machine at loads from nothing to all of it",
		Long:    calibrateLong,
		Example: calibrateExamples,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd.Context(), *cfg, file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Step, "for", cfg.Step, "measure each load for `DURATION`")
	f.StringVarP(&file, "output", "o", "-", "write the curve to `FILE`")
	return cmd
}

// measure calibrates and writes the curve.
func measure(ctx context.Context, cfg calibrate.Config, file string, out, progress io.Writer) error {
	head := false
	r, err := calibrate.Run(ctx, cfg, func(s energy.Sample) {
		if !head {
			fmt.Fprintf(progress, "%8s %12s\n", "load", "power")
			head = true
		}
		fmt.Fprintf(progress, "%6.1f %% %10.2f W\n", float64(s.Load)*100/power.PPM, watts(s.Power))
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	c := r.Fit(time.Now())
	fmt.Fprintf(progress, "idle %.2f W, full load %.2f W; the curve is off the samples by %.2f %%, and off the truth by %s or less\n",
		watts(energy.CurvePower(&c.Curve, 0)), watts(energy.CurvePower(&c.Curve, power.PPM)), float64(c.Residual)*100/power.PPM, percent(c.Curve.ErrorPPM))
	if file == "-" {
		_, err := out.Write(c.Encode())
		return err
	}
	return write(file, c.Encode())
}

// write replaces a file atomically; it writes a device or a pipe directly.
func write(file string, b []byte) error {
	if st, err := os.Stat(file); err == nil && !st.Mode().IsRegular() {
		return os.WriteFile(file, b, 0o644)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".mete-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// watts converts uW to W.
func watts(uW int64) float64 { return float64(uW) / 1e6 }

func percent(ppm int64) string { return fmt.Sprintf("±%.3g %%", float64(ppm)*100/power.PPM) }

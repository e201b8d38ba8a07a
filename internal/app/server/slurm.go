package server

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/identity/slurm"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/settings"
)

// slurmSettings say which Slurm cluster the server asks.
type slurmSettings struct{ slurm.Config }

func (c *slurmSettings) add(s *settings.Set) {
	if c.Interval == 0 {
		c.Config = slurm.Default()
	}
	s.Text(&c.Cluster, "slurm-cluster", "CLUSTER", "name the Slurm jobs of the nodes of this cluster by Slurm's controller, with Slurm's commands on this machine (default: none)")
	s.Text(&c.Commands, "slurm-commands", "DIR", "directory of squeue, sinfo and sacct for --slurm-cluster (default: those in PATH)")
	s.Text(&c.File, "slurm-conf", "FILE", "slurm.conf of --slurm-cluster (default: as Slurm's commands find it)")
	s.Duration(&c.Interval, time.Second, time.Hour, "slurm-interval", "time between questions to the controller of --slurm-cluster")
}

// config returns the cluster to ask.
func (c *slurmSettings) config() (slurm.Config, error) {
	if c.Cluster == "" && (c.Commands != "" || c.File != "") {
		return slurm.Config{}, fault.WithHint(fmt.Errorf("--slurm-commands or --slurm-conf without --slurm-cluster: %w", fault.ErrInvalid), "name the cluster as the agents' tokens do: mete token create --cluster CLUSTER")
	}
	return c.Config, nil
}

package server

import (
	"fmt"

	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/settings"
)

// kubeSettings say which Kubernetes cluster the server watches.
type kubeSettings struct {
	kube.Config
	labels []string // in addition to the default ones
}

func (k *kubeSettings) add(s *settings.Set) {
	s.Text(&k.Cluster, "kube-cluster", "CLUSTER", "name the pods of the nodes of this cluster by its Kubernetes API server (default: none)")
	s.Text(&k.Kubeconfig, "kubeconfig", "FILE", "how to reach the API server of --kube-cluster (default: the service account of the server's pod)")
	s.List(&k.labels, "kube-label", "TEXT", "keep this label of pods, or all that begin so, as team or example.org/*; may be repeated (always: app.kubernetes.io/name, component and part-of)")
}

// config returns the cluster to watch.
func (k *kubeSettings) config() (kube.Config, error) {
	if k.Cluster == "" && (k.Kubeconfig != "" || len(k.labels) > 0) {
		return kube.Config{}, fault.WithHint(fmt.Errorf("--kubeconfig or --kube-label without --kube-cluster: %w", fault.ErrInvalid), "name the cluster as the agents' tokens do: mete token create --cluster CLUSTER")
	}
	c := k.Config
	c.Labels = append(kube.Default().Labels, k.labels...)
	return c, nil
}

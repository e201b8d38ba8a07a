package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/testbed"
)

// starting is the CPU time, in seconds, that the runtime may use in a container's control group to start it: 3 to 8 ms on an
// idle machine, and up to 38 ms were seen on a busy one. Use of another pod is missing there, which has no such bound.
const starting = .06

// jobManifest returns a Job of Kubernetes in the namespace shop. spec and pod are further fields of the Job and of its
// pods, each followed by a comma; resources are those of the container.
func jobManifest(name, spec, pod, resources string, args ...string) string {
	list, _ := json.Marshal(args) // of strings
	return fmt.Sprintf(`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": %q}, "spec": {%s "template": {"spec": {%s "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": %s, "resources": {%s}}]}}}}`, name, spec, pod, testbed.PodImage, list, resources)
}

// An endedPod is a pod of a Job that ended, as the API server has it, with the report of its program.
type endedPod struct {
	name, node, job     string
	scheduled, finished time.Time
	said                struct {
		Life     int64 `json:"life_ns"`
		CPU      int64 `json:"cpu_ns"`
		Held     int64 `json:"held_byte_seconds"`
		Private  int64 `json:"private_byte_seconds"`
		Written  int64
		Sent     int64
		Received int64
		Tx       int64 `json:"tx_bytes"`
		Rx       int64 `json:"rx_bytes"`
	}
}

// endedPods returns the pods of all Jobs in the namespace shop, which must have ended well. Their reports are in their
// status, as logs may be gone.
func endedPods(t *testing.T, c *testbed.Cluster) map[string]endedPod {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec   struct{ NodeName string }
			Status struct {
				Conditions []struct {
					Type               string
					LastTransitionTime time.Time
				}
				ContainerStatuses []struct {
					State struct {
						Terminated *struct {
							FinishedAt time.Time
							Message    string
							ExitCode   int
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(c.Kubectl(t, "", "-n", "shop", "get", "pods", "-l", "job-name", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]endedPod{}
	for _, item := range list.Items {
		p := endedPod{name: item.Metadata.Name, node: item.Spec.NodeName, job: item.Metadata.Labels["job-name"]}
		for _, cond := range item.Status.Conditions {
			if cond.Type == "PodScheduled" {
				p.scheduled = cond.LastTransitionTime
			}
		}
		for _, s := range item.Status.ContainerStatuses {
			end := s.State.Terminated
			if end == nil || end.ExitCode != 0 {
				t.Fatalf("%s has not ended well: %+v", p.name, end)
			}
			p.finished = end.FinishedAt
			if err := json.Unmarshal([]byte(end.Message), &p.said); err != nil {
				t.Fatalf("%s reports %q: %v", p.name, end.Message, err)
			}
		}
		if p.said.CPU == 0 {
			t.Fatalf("%s has no report: %+v", p.name, item.Status)
		}
		all[p.name] = p
	}
	return all
}

// A podGroup is what the ledger says of a group of pods and containers.
type podGroup struct {
	Namespace, Job, Pod, Container, Workload, Kind string

	CPU            float64 `json:"cpu_seconds"`
	Memory         float64 `json:"memory_byte_seconds"`
	Anon           float64 `json:"memory_anon_byte_seconds"`
	Working        float64 `json:"memory_working_byte_seconds"`
	Written        float64 `json:"disk_written_bytes"`
	Rx             float64 `json:"network_rx_bytes"`
	Tx             float64 `json:"network_tx_bytes"`
	CPUReserved    float64 `json:"cpu_reserved_seconds"`
	MemoryReserved float64 `json:"memory_reserved_byte_seconds"`
	Quality        map[string]string
}

// askGroups returns the groups of mete usage with some arguments.
func (s *site) askGroups(args ...string) []podGroup {
	s.t.Helper()
	var a struct{ Groups []podGroup }
	out := s.run(append([]string{"usage", "--from", "-1h", "-o", "json", "--server", s.url, "--token", s.viewer}, args...)...)
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return a.Groups
}

// measureCluster starts a server that watches a cluster, by a kubeconfig, and an agent with the defaults. Pods may be created in
// the namespace shop.
func (s *site) measureCluster(c *testbed.Cluster, kubeconfig string) {
	s.t.Helper()
	s.serve("--kube-cluster", "lab", "--kubeconfig", kubeconfig)
	s.token = s.run("token", "create", "--role", "agent", "--cluster", "lab")
	s.server.waitOutput("pods are named by this server")
	s.measure("-reader", "bpf", "-tick", "1s", "-window", "10s") // the defaults
	c.Kubectl(s.t, "", "create", "namespace", "shop")
}

// checkCPU compares CPU time in seconds with what the programs of containers say: 0.1 % may be missing, and more than
// 0.1 % is the start of their runtimes.
func checkCPU(t *testing.T, what string, got float64, ns int64, containers int) {
	t.Helper()
	if said := float64(ns) / 1e9; got < said*.999 || got > said*1.001+starting*float64(containers) {
		t.Errorf("%s used %.4f s, its pods say %.4f", what, got, said)
	}
}

// checkNear compares amounts, which may differ by 1 %.
func checkNear(t *testing.T, what string, got float64, want int64) {
	t.Helper()
	if got < float64(want)*.99 || got > float64(want)*1.01 {
		t.Errorf("%s: %.0f, want %d: off by %.2f %%", what, got, want, 100*(got/float64(want)-1))
	}
}

// inKubernetes reports whether a workload's name is of a group of a pod that has no name.
func (g podGroup) inKubernetes() bool {
	return g.Namespace == "" && (strings.Contains(g.Workload, "kubepods") || g.Kind == "container" || g.Kind == "pod")
}

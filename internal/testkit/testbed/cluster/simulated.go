package main

import (
	"fmt"
	"strconv"
	"time"
)

// startSimulated starts kwok, which lets nodes and their pods seem to run, and makes some nodes, in three
// zones. They have a taint of their own, so that real pods do not go there.
func (c *cluster) startSimulated(nodes int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	server := c.certificate("server")
	err = c.start("kwok", c.program("kwok", "--config", c.bin+"/kwok.yaml", "--kubeconfig", c.path("kwok.kubeconfig"), "--manage-nodes-with-label-selector", "type=kwok",
		"--node-lease-duration-seconds", "40", "--cidr", "10.128.0.0/14", "--node-ip", "127.0.0.1", "--node-port", strconv.Itoa(port),
		"--server-address", fmt.Sprintf("127.0.0.1:%d", port), "--tls-cert-file", server+".crt", "--tls-private-key-file", server+".key"))
	if err != nil {
		return err
	}
	for i := range nodes {
		name := fmt.Sprintf("simulated-%d", i)
		err := c.post("/api/v1/nodes", fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %[1]q,
"labels": {"type": "kwok", "kubernetes.io/hostname": %[1]q, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "zone-%[2]d"},
"annotations": {"node.alpha.kubernetes.io/ttl": "0", "kwok.x-k8s.io/node": "fake"}},
"spec": {"taints": [{"effect": "NoSchedule", "key": "kwok.x-k8s.io/node", "value": "fake"}]},
"status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}, "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110"}}}`, name, i%3))
		if err != nil {
			return err
		}
	}
	if nodes == 0 {
		return nil
	}
	return wait(time.Minute, func() error { return c.ready(fmt.Sprintf("simulated-%d", nodes-1)) })
}

package main

import (
	"fmt"
	"strconv"
	"time"
)

// startMetrics starts metrics-server, with the resolution of its release, on this machine, and waits until the API server
// delegates to it. It knows no pods before it has read each twice.
func (c *cluster) startMetrics() error {
	port, err := freePort()
	if err != nil {
		return err
	}
	admin, server, client := c.path("admin.kubeconfig"), c.certificate("server"), c.certificate("kubelet-client")
	err = c.start("metrics-server", c.program("metrics-server", "--kubeconfig", admin, "--authentication-kubeconfig", admin, "--authorization-kubeconfig", admin,
		"--bind-address", bridgeAddress, "--secure-port", strconv.Itoa(port), "--tls-cert-file", server+".crt", "--tls-private-key-file", server+".key",
		"--kubelet-use-node-status-port", "--kubelet-preferred-address-types", "InternalIP", "--kubelet-certificate-authority", c.certificate("ca.crt"),
		"--kubelet-client-certificate", client+".crt", "--kubelet-client-key", client+".key", "--metric-resolution", "15s"))
	if err != nil {
		return err
	}
	objects := []struct{ path, object string }{
		{"/api/v1/namespaces/kube-system/services", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server"}, "spec": {"ports": [{"port": 443, "targetPort": %d}]}}`, port)},
		{"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
"metadata": {"name": "metrics-server", "labels": {"kubernetes.io/service-name": "metrics-server"}}, "addressType": "IPv4", "ports": [{"port": %d}], "endpoints": [{"addresses": [%q]}]}`, port, bridgeAddress)},
		{"/apis/apiregistration.k8s.io/v1/apiservices", `{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io",
"version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true, "service": {"name": "metrics-server", "namespace": "kube-system"}}}`},
	}
	for _, o := range objects {
		if err := c.post(o.path, []byte(o.object)); err != nil {
			return err
		}
	}
	return wait(time.Minute, func() error {
		_, err := c.get("/apis/metrics.k8s.io/v1beta1/nodes")
		return err
	})
}

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Addresses of a cluster. Nodes have addresses of the bridge's network, pods of node N 10.244.N.0/24.
const (
	bridge        = "mete-tb"
	bridgeAddress = "10.99.0.1"
	services      = "10.96.0.0/16"
	firstService  = "10.96.0.1" // of the API server
	pods          = "10.244.0.0/16"
)

// A cluster is one that runs.
type cluster struct {
	bin, dir  string
	port      int  // of the API server
	peers     bool // with programs that measure pods
	authority *authority
	processes
	client *http.Client // of the administrator
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}
func (c *cluster) certificate(n string) string { return c.path("pki", n) }
func (c *cluster) program(name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(c.bin, name), args...)
}

// identities makes the certificates, and the kubeconfig of each user of the API.
func (c *cluster) identities(nodes []node) (err error) {
	if c.authority, err = newAuthority(c.path("pki")); err != nil {
		return err
	}
	local, bridged := fmt.Sprintf("https://127.0.0.1:%d", c.port), fmt.Sprintf("https://%s:%d", bridgeAddress, c.port)
	admin := local
	if len(nodes) > 0 {
		admin = bridged // from this machine and from its nodes
	}
	users := []struct{ file, user, group, server string }{
		{"admin", "admin", "system:masters", admin},
		{"controllers", "system:kube-controller-manager", "", local},
		{"scheduler", "system:kube-scheduler", "", local},
		{"kwok", "kwok", "system:masters", local},
		{"proxy", "system:kube-proxy", "system:node-proxier", bridged},
		{"kubelet-client", "kube-apiserver-kubelet-client", "system:masters", ""},
		{"front-proxy", "front-proxy-client", "", ""},
	}
	errs := []error{c.authority.issue("server", "kube-apiserver", "", "127.0.0.1", bridgeAddress, firstService, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")}
	for _, u := range users {
		errs = append(errs, c.authority.issue(u.file, u.user, u.group))
		if u.server != "" {
			errs = append(errs, c.authority.writeKubeconfig(c.path(u.file+".kubeconfig"), u.server, u.file))
		}
	}
	for _, n := range nodes {
		errs = append(errs, c.authority.issue(n.name, "system:node:"+n.name, "system:nodes", n.address(), n.name),
			c.authority.writeKubeconfig(c.path(n.name+".kubeconfig"), bridged, n.name))
	}
	return errors.Join(errs...)
}

// startAPI starts etcd and the API server, for nodes too or for this machine alone. A cluster's data may be
// lost with the machine: etcd does not sync.
func (c *cluster) startAPI(nodes bool) error {
	etcd, err := freePort()
	if err != nil {
		return err
	}
	peers, err := freePort()
	if err != nil {
		return err
	}
	data, peer := fmt.Sprintf("http://127.0.0.1:%d", etcd), fmt.Sprintf("http://127.0.0.1:%d", peers)
	err = c.start("etcd", c.program("etcd", "--name", "testbed", "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", data, "--advertise-client-urls", data, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "testbed="+peer))
	if err != nil {
		return err
	}
	if err := wait(30*time.Second, func() error {
		_, err := answerOf(http.DefaultClient.Get(data + "/health"))
		return err
	}); err != nil {
		return err
	}
	server := c.certificate("server")
	address := []string{"--bind-address", "127.0.0.1", "--endpoint-reconciler-type", "none"}
	if nodes {
		address = []string{"--bind-address", "0.0.0.0", "--advertise-address", bridgeAddress}
	}
	err = c.start("kube-apiserver", c.program("kube-apiserver", append(address, "--etcd-servers", data, "--secure-port", strconv.Itoa(c.port), "--service-cluster-ip-range", services,
		"--tls-cert-file", server+".crt", "--tls-private-key-file", server+".key", "--client-ca-file", c.certificate("ca.crt"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", c.certificate("sa.pub"), "--service-account-signing-key-file", c.certificate("sa.key"),
		"--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--kubelet-client-certificate", c.certificate("kubelet-client.crt"), "--kubelet-client-key", c.certificate("kubelet-client.key"),
		"--kubelet-certificate-authority", c.certificate("ca.crt"), "--kubelet-preferred-address-types", "InternalIP",
		"--requestheader-client-ca-file", c.certificate("ca.crt"), "--requestheader-allowed-names", "front-proxy-client", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", c.certificate("front-proxy.crt"), "--proxy-client-key-file", c.certificate("front-proxy.key"), "--enable-aggregator-routing",
		"--allow-privileged", "--profiling=false")...))
	if err != nil {
		return err
	}
	if c.client, err = c.newClient(); err != nil {
		return err
	}
	return c.serves()
}

// serves waits until the API server answers.
func (c *cluster) serves() error {
	return wait(90*time.Second, func() error {
		_, err := c.get("/readyz")
		return err
	})
}

// startControllers starts the controllers and the scheduler. Their limits of requests are raised: with the
// default ones a thousand pods take minutes.
func (c *cluster) startControllers() error {
	ports := make([]int, 2)
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	controllers, scheduler := c.path("controllers.kubeconfig"), c.path("scheduler.kubeconfig")
	// With StaleControllerConsistency (on by default since 1.36), controllers on a busy machine take their own
	// cache for stale and stop for minutes.
	const gates = "StaleControllerConsistencyDaemonSet=false,StaleControllerConsistencyJob=false,StaleControllerConsistencyReplicaSet=false,StaleControllerConsistencyStatefulSet=false"
	err := c.start("kube-controller-manager", c.program("kube-controller-manager", "--kubeconfig", controllers, "--authentication-kubeconfig", controllers,
		"--authorization-kubeconfig", controllers, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(ports[0]), "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file", c.certificate("sa.key"), "--root-ca-file", c.certificate("ca.crt"), "--cluster-signing-cert-file", c.certificate("ca.crt"),
		"--cluster-signing-key-file", c.certificate("ca.key"), "--allocate-node-cidrs=false", "--kube-api-qps", "1000", "--kube-api-burst", "2000", "--feature-gates", gates))
	if err != nil {
		return err
	}
	config := c.path("scheduler.yaml")
	err = os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
`, scheduler), 0o600)
	if err != nil {
		return err
	}
	err = c.start("kube-scheduler", c.program("kube-scheduler", "--config", config, "--authentication-kubeconfig", scheduler,
		"--authorization-kubeconfig", scheduler, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(ports[1])))
	if err != nil {
		return err
	}
	// Pods need the account, which a controller makes.
	return wait(60*time.Second, func() error {
		_, err := c.get("/api/v1/namespaces/default/serviceaccounts/default")
		return err
	})
}

// newClient returns a client with the rights of the administrator.
func (c *cluster) newClient() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(c.certificate("admin.crt"), c.certificate("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.certificate("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}, nil
}

// url returns the URL of a path of the API server.
func (c *cluster) url(path string) string { return fmt.Sprintf("https://127.0.0.1:%d%s", c.port, path) }

// get returns the API server's answer to a path.
func (c *cluster) get(path string) ([]byte, error) { return answerOf(c.client.Get(c.url(path))) }

// post creates an object.
func (c *cluster) post(path string, object []byte) error {
	_, err := answerOf(c.client.Post(c.url(path), "application/json", bytes.NewReader(object)))
	return err
}

// answerOf returns the body of a response, or an error if its status is not a success.
func answerOf(r *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil && r.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s: %s", r.Request.URL, r.Status, b)
	}
	return b, err
}

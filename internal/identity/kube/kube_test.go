package kube_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/netfault"
	"mete.dev/mete/internal/testkit/syncbuf"
	"mete.dev/mete/internal/testkit/testbed"
)

// account returns a kubeconfig of the account that deploy/kubernetes/mete-server-rbac.yaml makes, at a server's address.
func account(t *testing.T, c *testbed.Cluster, server string) string {
	t.Helper()
	c.Kubectl(t, "", "apply", "-f", "../../../deploy/kubernetes/mete-server-rbac.yaml")
	conf, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range conf.Clusters {
		u, err := url.Parse(cluster.Server)
		if err != nil {
			t.Fatal(err)
		}
		cluster.TLSServerName = u.Hostname()
		if server != "" {
			cluster.Server = "https://" + server
		}
	}
	token := strings.TrimSpace(c.Kubectl(t, "", "-n", "mete", "create", "token", "mete-server"))
	for _, user := range conf.AuthInfos {
		user.ClientCertificate, user.ClientKey, user.ClientCertificateData, user.ClientKeyData = "", "", nil, nil
		user.Token = token
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*conf, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// proxyTo returns a proxy to the API server of a cluster.
func proxyTo(t *testing.T, c *testbed.Cluster) *netfault.Proxy {
	t.Helper()
	conf, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var target string
	for _, cluster := range conf.Clusters {
		target = strings.TrimPrefix(cluster.Server, "https://")
	}
	proxy, err := netfault.Open(target, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	return proxy
}

// A named ledger has one node, n1, with rows of containers and pods.
type named struct {
	*ledger.Ledger
	t    *testing.T
	dsn  string
	mark batch.Mark
}

func newNamed(t *testing.T) *named {
	dsn := ledgertest.SQLite(t)
	n := &named{Ledger: ledgertest.Open(t, dsn), t: t, dsn: dsn, mark: batch.Mark{Next: 1}}
	ledgertest.Node(t, n.Ledger, "n1")
	return n
}

// watch runs a watcher until the function that it returns is called.
func (n *named) watch(cfg kube.Config, log io.Writer) (*kube.Watcher, func()) {
	n.t.Helper()
	w, err := kube.New(cfg, n.Ledger, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return w, func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	}
}

// uses books that a workload of a key used CPU time.
func (n *named) uses(kind workload.Kind, key string) {
	n.t.Helper()
	name := batch.Name{ID: workload.NewID("n1", kind, key), Kind: kind, Key: key}
	short, _ := workload.ShortIDOf(name.ID)
	e := ledgertest.Entry("n1", batch.Stream{1}, n.mark, short, 1, time.Now().Unix()/60)
	e.Names = []batch.Name{name}
	n.mark = batch.Mark{Next: n.mark.Next + 1, Last: e.Hash}
	if _, err := n.Book(n.t.Context(), []*batch.Entry{e}); err != nil {
		n.t.Fatal(err)
	}
}

// place returns where the workload of a key belongs.
func (n *named) place(key string) (place string) {
	n.t.Helper()
	db := ledgertest.DB(n.t, n.dsn)
	var ns, pod, container, job string
	err := db.QueryRow("SELECT namespace, pod, container, job FROM workload WHERE key = $1 ORDER BY from_minute DESC LIMIT 1", key).Scan(&ns, &pod, &container, &job)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(strings.Join([]string{ns, pod, container, job}, " "))
}

// waitFor waits until the workload of a key has a place.
func (n *named) waitFor(key, want string) {
	n.t.Helper()
	testkit.Eventually(n.t, fmt.Sprintf("%s is %q", key, want), func() bool { return n.place(key) == want })
}

// create creates an object and returns its UID.
func create(t *testing.T, c *testbed.Cluster, object string) string {
	t.Helper()
	var o struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal([]byte(c.Kubectl(t, object, "create", "-o", "json", "-f", "-")), &o); err != nil {
		t.Fatal(err)
	}
	return o.Metadata.UID
}

const podSpec = `"spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0, "containers": [{"name": "app", "image": "x"}]}`

// createPod creates a pod of an owner.
func createPod(t *testing.T, c *testbed.Cluster, namespace, name, version, kind, ownerName, ownerUID string) string {
	t.Helper()
	return create(t, c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": %q, "name": %q, "labels": {"team": "blue", "other": "x"},
"ownerReferences": [{"apiVersion": %q, "kind": %q, "name": %q, "uid": %q, "controller": true}]}, %s}`, namespace, name, version, kind, ownerName, ownerUID, podSpec))
}

// setContainer sets the container id in a pod's status, as a kubelet does.
func setContainer(t *testing.T, c *testbed.Cluster, namespace, pod, id string) {
	t.Helper()
	c.Kubectl(t, "", "-n", namespace, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status": {"containerStatuses":
[{"name": "app", "image": "x", "imageID": "x", "ready": true, "restartCount": 0, "containerID": "containerd://%s", "state": {"running": {}}}]}}`, id))
}

// TestWatch names pods by a real API server, with the rights of the manifest: before and after their rows are
// booked, by owners of all kinds, and after outages.
func TestWatch(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, "", "-n", "shop", "create", "serviceaccount", "default") // no controller runs
	proxy := proxyTo(t, c)
	kubeconfig := account(t, c, proxy.Addr())
	n := newNamed(t)
	id := func(digit string) string { return strings.Repeat(digit, 64) }

	// A pod of a deployment, there before the watch; its container's rows too.
	web := create(t, c, `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
"template": {"metadata": {"labels": {"a": "b"}}, `+podSpec+`}}}`)
	set := create(t, c, fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"namespace": "shop", "name": "web-5f",
"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": %q, "controller": true}]}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
"template": {"metadata": {"labels": {"a": "b"}}, %s}}}`, web, podSpec))
	webPod := createPod(t, c, "shop", "web-5f-1", "apps/v1", "ReplicaSet", "web-5f", set)
	setContainer(t, c, "shop", "web-5f-1", id("a"))
	n.uses(workload.Pod, webPod)
	n.uses(workload.Container, id("a"))

	log := &syncbuf.Buffer{}
	watch := func() (*kube.Watcher, func()) {
		t.Helper()
		return n.watch(kube.Config{Cluster: "c", Kubeconfig: kubeconfig, Labels: []string{"team"}}, log)
	}
	w, stop := watch()
	n.waitFor(webPod, "shop web-5f-1  shop/deployment/web")
	n.waitFor(id("a"), "shop web-5f-1 app shop/deployment/web")
	if s := w.Stats(); !s.Synced || s.Pods != 1 || s.Booked < 1 {
		t.Errorf("%+v", s)
	}

	// A pod of a Job of a CronJob, with rows before the pod.
	n.uses(workload.Container, id("b"))
	cron := create(t, c, `{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"namespace": "shop", "name": "report"}, "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template":
{"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "x"}]}}}}}}`)
	job := create(t, c, fmt.Sprintf(`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": "report-1",
"ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "report", "uid": %q, "controller": true}]}, "spec": {"template":
{"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "x"}]}}}}`, cron))
	createPod(t, c, "shop", "report-1-x", "batch/v1", "Job", "report-1", job)
	setContainer(t, c, "shop", "report-1-x", id("b"))
	n.waitFor(id("b"), "shop report-1-x app shop/cronjob/report")

	// Owners that are deleted before their pods do not change the job.
	c.Kubectl(t, "", "-n", "shop", "delete", "job", "report-1", "--cascade=background") // no controller deletes the pod
	c.Kubectl(t, "", "-n", "shop", "label", "pod", "report-1-x", "team=green", "--overwrite")
	testkit.Eventually(t, "the label is green", func() bool {
		var count int
		err := ledgertest.DB(t, n.dsn).QueryRow("SELECT count(*) FROM workload_label l JOIN workload w ON w.id = l.workload WHERE l.value = 'green' AND w.key = $1", id("b")).Scan(&count)
		return err == nil && count == 1
	})
	if got := n.place(id("b")); got != "shop report-1-x app shop/cronjob/report" {
		t.Errorf("without its owner the container is %q", got)
	}
	// An owner whose name is a path stops nothing.
	create(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "hostile", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment",
"name": "../../../../../../api/v1/secrets", "uid": "x", "controller": true}]}, `+podSpec+`}`)

	// An owner of a kind that operators define, which the account may not read.
	create(t, c, `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "trains.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
"names": {"plural": "trains", "singular": "train", "kind": "Train"}, "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}`)
	c.Kubectl(t, "", "wait", "--for=condition=established", "crd/trains.example.org", "--timeout=1m")
	train := create(t, c, `{"apiVersion": "example.org/v1", "kind": "Train", "metadata": {"namespace": "shop", "name": "t1"}}`)
	createPod(t, c, "shop", "t1-worker", "example.org/v1", "Train", "t1", train)
	setContainer(t, c, "shop", "t1-worker", id("c"))
	n.uses(workload.Container, id("c"))
	n.waitFor(id("c"), "shop t1-worker app shop/train/t1")
	c.Kubectl(t, "", "-n", "shop", "label", "pod", "t1-worker", "mete.dev/job=training")
	n.waitFor(id("c"), "shop t1-worker app shop/training")

	// While the API server is away, a pod comes and another one goes.
	proxy.Set(netfault.Conditions{Down: true})
	testkit.Eventually(t, "an error is counted", func() bool { return w.Stats().Errors > 0 })
	createPod(t, c, "shop", "web-5f-2", "apps/v1", "ReplicaSet", "web-5f", set)
	setContainer(t, c, "shop", "web-5f-2", id("d"))
	n.uses(workload.Container, id("d"))
	c.Kubectl(t, "", "-n", "shop", "delete", "pod", "report-1-x", "--force")
	if got := n.place(id("d")); got != "" {
		t.Errorf("without an API server a container is %q", got)
	}
	proxy.Set(netfault.Conditions{})
	n.waitFor(id("d"), "shop web-5f-2 app shop/deployment/web")
	live := func(want int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d pods live", want), func() bool {
			pods, err := n.LivePods(t.Context(), "c")
			return err == nil && len(pods) == want
		})
	}
	live(4)
	if !strings.Contains(log.String(), "new pods have no names until it does") || strings.Count(log.String(), "does not answer") != 1 {
		t.Errorf("the log says\n%s", log)
	}
	// Rows that come later have the name of a pod that is gone.
	n.uses(workload.Pod, strings.TrimSpace(webPod))
	stop()

	// A pod goes while no server runs.
	c.Kubectl(t, "", "-n", "shop", "delete", "pod", "web-5f-1", "--force")
	_, stop = watch()
	live(3)
	stop()

	for _, right := range [][]string{{"get", "secrets"}, {"list", "secrets"}, {"create", "pods"}, {"delete", "pods"}, {"get", "configmaps"}, {"get", "nodes"}, {"patch", "nodes"}, {"get", "nodes/proxy"}, {"get", "persistentvolumes"}, {"delete", "persistentvolumeclaims"}, {"patch", "deployments.apps"}, {"create", "pods/exec"},
		{"create", "serviceaccounts/token"}, {"create", "subjectaccessreviews.authorization.k8s.io"}, {"get", "tokenreviews.authentication.k8s.io"}} {
		if out, _ := c.Try("", append([]string{"auth", "can-i", "--as=system:serviceaccount:mete:mete-server", "-A"}, right...)...); strings.TrimSpace(out) == "yes" {
			t.Errorf("the account may %v", right)
		}
	}
}

// TestTwoServers: of two servers with one ledger, one names pods. The other one takes over when it stops, and books what
// changed since.
func TestTwoServers(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, "", "-n", "shop", "create", "serviceaccount", "default")
	kubeconfig := account(t, c, "")
	n := newNamed(t)
	log := &syncbuf.Buffer{}
	run := func(holder string) (*kube.Watcher, func()) {
		t.Helper()
		return n.watch(kube.Config{Cluster: "c", Kubeconfig: kubeconfig, Holder: holder}, log)
	}
	first, stopFirst := run("first")
	testkit.Eventually(t, "the first server has the lease", func() bool { return first.Stats().Holds })
	second, stopSecond := run("second")
	testkit.Eventually(t, "the second server waits", func() bool { return strings.Contains(log.String(), "pods are named by another server") })
	pods := map[string]string{}
	for _, name := range []string{"web-1", "web-2"} {
		pods[name] = create(t, c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q}, %s}`, name, podSpec))
		n.uses(workload.Pod, pods[name])
		n.waitFor(pods[name], "shop "+name+"  shop/pod/"+name)
	}
	if a, b := first.Stats(), second.Stats(); b.Holds || b.Booked > 0 || a.Booked < 2 {
		t.Errorf("the first server: %+v, the second: %+v", a, b)
	}
	stopFirst()
	c.Kubectl(t, "", "-n", "shop", "delete", "pod", "web-1", "--force")
	c.Kubectl(t, "", "-n", "shop", "label", "pod", "web-2", "mete.dev/job=other")
	n.waitFor(pods["web-2"], "shop web-2  shop/other")
	testkit.Eventually(t, "one pod lives", func() bool {
		live, err := n.LivePods(t.Context(), "c")
		return err == nil && len(live) == 1 && second.Stats().Holds
	})
	// Another server believes that it has the lease for longer than it lasts.
	l, err := n.LeasePods(t.Context(), pod.Lease{Cluster: "c", Holder: "second"}, time.Now(), time.Now().Add(time.Hour))
	if err != nil || l.Number == 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	testkit.Eventually(t, "the second server takes its lease again", func() bool { return strings.Contains(log.String(), fmt.Sprintf("lease=%d", l.Number+1)) })
	stopSecond()
}

// TestIdentify asks a real API server, with the rights of the manifest, whose the tokens are that it issued.
func TestIdentify(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	for _, ns := range []string{"shop", "evil"} {
		c.Kubectl(t, "", "create", "namespace", ns)
		c.Kubectl(t, "", "-n", ns, "create", "serviceaccount", "default") // no controller runs
	}
	proxy := proxyTo(t, c)
	log := &syncbuf.Buffer{}
	w, err := kube.New(kube.Config{Cluster: "lab", Kubeconfig: account(t, c, proxy.Addr())}, nil, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	newPod := func(namespace, name string) string {
		return create(t, c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": %q, "name": %q}, %s}`, namespace, name, podSpec))
	}
	var issued []string
	token := func(namespace string, args ...string) string {
		issued = append(issued, strings.TrimSpace(c.Kubectl(t, "", append([]string{"-n", namespace, "create", "token", "default"}, args...)...)))
		return issued[len(issued)-1]
	}
	of := func(namespace, pod, uid string) string {
		return token(namespace, "--audience", "mete", "--bound-object-kind", "Pod", "--bound-object-name", pod, "--bound-object-uid", uid)
	}
	identify := func(text string, want pod.Ref, kind error, why string) {
		t.Helper()
		p, err := w.Identify(t.Context(), "a", text)
		if p != want || !errors.Is(err, kind) || (err == nil) != (kind == nil) || err != nil && (!strings.Contains(err.Error(), why) || fault.Hint(err) == "") {
			t.Errorf("%+v, %v; want %+v, %v, %s", p, err, want, kind, why)
		}
	}

	uid, other, gone := newPod("shop", "web"), newPod("evil", "web"), newPod("shop", "gone")
	web, none := of("shop", "web", uid), pod.Ref{}
	ref := pod.Ref{Cluster: "lab", Namespace: "shop", Name: "web", UID: uid}
	identify(web, ref, nil, "")
	identify(of("evil", "web", other), pod.Ref{Cluster: "lab", Namespace: "evil", Name: "web", UID: other}, nil, "")
	// A token of two audiences is for each of them.
	identify(token("shop", "--audience", "x", "--audience", "mete", "--bound-object-kind", "Pod", "--bound-object-name", "web", "--bound-object-uid", uid), ref, nil, "")
	identify(token("shop", "--audience", "mete"), none, fault.ErrDenied, "not bound to a pod")
	c.Kubectl(t, "", "-n", "shop", "create", "secret", "generic", "s")
	identify(token("shop", "--audience", "mete", "--bound-object-kind", "Secret", "--bound-object-name", "s"), none, fault.ErrDenied, "not bound to a pod")
	identify(token("shop", "--bound-object-kind", "Pod", "--bound-object-name", "web", "--bound-object-uid", uid), none, fault.ErrDenied, "another audience")
	identify(token("shop", "--audience", "vault", "--bound-object-kind", "Pod", "--bound-object-name", "web", "--bound-object-uid", uid), none, fault.ErrDenied, "another audience")

	// With other claims, another signature or none, the token is not one of this API server.
	parts := strings.Split(web, ".")
	swap := func(old, with string) string {
		body, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil || !strings.Contains(string(body), old) {
			t.Fatalf("%s has no %s: %v", body, old, err)
		}
		return base64.RawURLEncoding.EncodeToString([]byte(strings.ReplaceAll(string(body), old, with)))
	}
	for _, body := range []string{swap(uid, other), swap(`"shop"`, `"evil"`), parts[1]} {
		for _, signature := range []string{parts[2], "", parts[2][1:], strings.Split(issued[1], ".")[2]} {
			if body != parts[1] || signature != parts[2] {
				identify(parts[0]+"."+body+"."+signature, none, fault.ErrDenied, "refuses the token")
			}
		}
	}
	identify(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))+"."+parts[1]+".", none, fault.ErrDenied, "refuses the token")

	// A token ends with its pod, also where another pod has the name.
	lost := of("shop", "gone", gone)
	c.Kubectl(t, "", "-n", "shop", "delete", "pod", "gone", "--force")
	again := newPod("shop", "gone")
	identify(lost, none, fault.ErrDenied, "refuses the token")
	identify(of("shop", "gone", again), pod.Ref{Cluster: "lab", Namespace: "shop", Name: "gone", UID: again}, nil, "")

	// While the API server is away, no pod is admitted that it did not name just before.
	late := of("evil", "web", other)
	proxy.Set(netfault.Conditions{Down: true})
	identify(late, none, fault.ErrUnavailable, "cannot be checked")
	identify(web, ref, nil, "")
	proxy.Set(netfault.Conditions{})
	testkit.Eventually(t, "the API server names a pod again", func() bool { _, err := w.Identify(t.Context(), "a", late); return err == nil })
	if n := w.Stats().Errors; n < 1 || strings.Count(log.String(), "tokens of pods cannot be checked") != 1 {
		t.Errorf("%d errors; the log says\n%s", n, log)
	}

	// Without the right the log says which one is missing.
	c.Kubectl(t, "", "delete", "clusterrolebinding", "mete-server")
	testkit.Eventually(t, "the right is gone", func() bool {
		_, err := w.Identify(t.Context(), "a", of("shop", "web", uid))
		return errors.Is(err, fault.ErrUnavailable)
	})
	for _, text := range issued {
		if strings.Contains(log.String(), text) || strings.Contains(log.String(), strings.Split(text, ".")[2]) {
			t.Error("the log has a token")
		}
	}
}

// TestNoRights says in the log which rights an account lacks.
func TestNoRights(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	kubeconfig := account(t, c, "")
	c.Kubectl(t, "", "delete", "clusterrolebinding", "mete-server")
	log := &syncbuf.Buffer{}
	w, err := kube.New(kube.Config{Cluster: "c", Kubeconfig: kubeconfig}, newNamed(t).Ledger, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	testkit.Eventually(t, "the log names the missing right", func() bool {
		return strings.Contains(log.String(), "mete-server-rbac.yaml") && regexp.MustCompile(`cannot (list|watch) resource`).MatchString(log.String())
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if token := tokenOf(t, kubeconfig); bytes.Contains([]byte(log.String()), []byte(token)) {
		t.Error("the log has the token")
	}
}

func tokenOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	conf, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range conf.AuthInfos {
		return user.Token
	}
	t.Fatal("no token")
	return ""
}

// TestNew names files that cannot be used.
func TestNew(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("clusters: {"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for file, want := range map[string]string{"": "no service account of a pod", broken: broken, broken + "x": "no such file"} {
		if _, err := kube.New(kube.Config{Cluster: "c", Kubeconfig: file}, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

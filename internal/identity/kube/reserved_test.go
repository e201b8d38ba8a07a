package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/testbed"
)

// reservedManifests are pods of all kinds. Sums by hand are in reservedByHand.
func reservedManifests() string {
	container := func(name, resources, args string) string {
		return fmt.Sprintf(`{"name": %q, "image": %q, "imagePullPolicy": "Never", "args": [%s], "resources": {%s}}`, name, testbed.PodImage, args, resources)
	}
	pod := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, %s}}`, name, spec)
	}
	small := `"requests": {"cpu": "20m", "memory": "16Mi", "ephemeral-storage": "1Mi"}, "limits": {"cpu": "50m", "memory": "32Mi"}`
	template := func(c, policy string) string {
		return fmt.Sprintf(`{"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": %q, "terminationGracePeriodSeconds": 1, "containers": [%s]}}`, policy, c)
	}
	sidecar := strings.Replace(container("sidecar", `"requests": {"cpu": "30m", "memory": "16Mi"}`, ""), `{"name"`, `{"restartPolicy": "Always", "name"`, 1)
	return strings.Join([]string{
		// Two containers, a sidecar, and an init container that needs more than all of them: 200 + 30, of 100 + 30 + 10.
		pod("resized", `"initContainers": [`+sidecar+`, `+container("init", `"requests": {"cpu": "200m", "memory": "16Mi"}`, `"burn", "-cpu", "1ms"`)+`],
			"containers": [`+container("app", `"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}`, "")+`, `+container("proxy", `"requests": {"cpu": "10m"}`, "")+`]`),
		pod("crash", `"containers": [`+container("app", small, `"nonsense"`)+`]`),
		pod("pull", `"containers": [{"name": "app", "image": "mete.test/missing:1", "imagePullPolicy": "Never", "resources": {`+small+`}}]`),
		pod("whole", `"resources": {"requests": {"cpu": "300m", "memory": "64Mi"}, "limits": {"cpu": "500m"}}, "containers": [`+container("app", `"requests": {"cpu": "100m"}`, "")+`, `+container("other", "", "")+`]`),
		pod("huge", `"containers": [`+container("app", `"requests": {"cpu": "5000"}`, "")+`]`), // it is never scheduled
		`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "burn"}, "spec": {"completions": 20, "parallelism": 5, "template": ` + template(container("app", small, `"burn", "-cpu", "100ms"`), "Never") + `}}`,
		`{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": ` + template(container("app", small, `"burn", "-cpu", "1ms"`), "Never") + `}}}}`,
		`{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "daemon"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": ` + template(container("app", small, ""), "Always") + `}}`,
	}, "\n")
}

// A byHand is what a pod reserves in each second: thousandths of a CPU, bytes of memory, and thousandths of a CPU that limits
// allow; and how many of its containers are there, and have a limit of CPU time.
type byHand struct{ cpu, memory, limit, containers, limited int64 }

// reservedByHand is by the beginning of the pod's name.
var reservedByHand = map[string]byHand{
	"resized": {230, 48 << 20, 300, 3, 1}, "crash": {20, 16 << 20, 50, 1, 1}, "pull": {20, 16 << 20, 50, 1, 1}, "whole": {300, 64 << 20, 500, 2, 2},
	"burn": {20, 16 << 20, 50, 1, 1}, "cron": {20, 16 << 20, 50, 1, 1}, "daemon": {20, 16 << 20, 50, 1, 1},
}

// TestReserved compares what the ledger says that pods of two real nodes reserve with sums by hand, from what kubectl shows:
// while they are watched, and over an outage of the server.
func TestReserved(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	dsn := ledgertest.SQLite(t)
	n := &named{Ledger: ledgertest.Open(t, dsn), t: t, dsn: dsn}
	began := time.Now().Truncate(time.Minute)
	for _, name := range []string{"node1", "node2"} {
		if err := n.PutNode(t.Context(), registry.Node{ID: name, Name: name, Cluster: "c", At: began}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := kube.Config{Cluster: "c", Kubeconfig: account(t, c, ""), Holder: "server"}
	w, stop := n.watch(cfg, os.Stderr)
	testkit.Eventually(t, "the watch", func() bool { return w.Stats().Holds })
	c.Kubectl(t, reservedManifests(), "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=condition=complete", "job/burn", "--timeout=3m")
	c.Kubectl(t, "", "wait", "--for=condition=Ready", "pod/resized", "pod/whole", "--timeout=2m")

	// From 100 to 250 thousandths: it holds from here on, within the second that it takes.
	patch := `{"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "400m"}}}]}}`
	c.Kubectl(t, "", "patch", "pod", "resized", "--subresource=resize", "--type=strategic", "-p", patch)
	resized := time.Now()
	testkit.Eventually(t, "a run of the CronJob, and a restart of what crashes", func() bool {
		return strings.Contains(c.Kubectl(t, "", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}"), "cron-") &&
			c.Kubectl(t, "", "get", "pod", "crash", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") > "1"
	})
	gone := map[string]time.Time{}
	remove := func(pod string) {
		t.Helper()
		c.Kubectl(t, "", "delete", "pod", pod, "--wait=true", "--grace-period=1")
		gone[pod] = time.Now()
	}
	all := podsOf(t, c)
	remove("pull")
	n.compare(c, all, began, resized, gone, 2*time.Second)

	// The server is away while pods come, end and go.
	stop()
	away := time.Now()
	all = podsOf(t, c)
	c.Kubectl(t, `{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "burn-later"}, "spec": {"completions": 3, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "`+testbed.PodImage+`",
"imagePullPolicy": "Never", "args": ["burn", "-cpu", "50ms"], "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "50m"}}}]}}}}`, "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=condition=complete", "job/burn-later", "--timeout=3m")
	remove("crash")
	testkit.Eventually(t, "more than two minutes later", func() bool { return time.Since(away) > 150*time.Second })
	maps.Copy(all, podsOf(t, c))
	w, stop = n.watch(cfg, os.Stderr)
	defer stop()
	testkit.Eventually(t, "the watch again", func() bool { return w.Stats().Holds })
	delete(gone, "crash")
	n.compare(c, all, began, resized, gone, 2*time.Second, "crash")
	// It ended at an unknown time: half of it counts.
	u := n.reserved(began)["crash"]
	middle := away.Add(time.Since(away) / 2)
	if s := u.Sum[usage.ReservedTime].Int64() / 1e9; time.Duration(s)*time.Second > middle.Sub(began) || u.Quality.Get(usage.ReservedTime) != usage.Apportioned {
		t.Errorf("a pod that was deleted meanwhile reserved for %d s, %v; it ended about %v", s, u.Quality.Get(usage.ReservedTime), middle)
	}
}

// podsOf returns the present pods, by their names.
func podsOf(t *testing.T, c *testbed.Cluster) map[string]corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal([]byte(c.Kubectl(t, "", "get", "pods", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]corev1.Pod{}
	for _, p := range list.Items {
		all[p.Name] = p
	}
	return all
}

// reserved returns what pods reserved since a minute, by their names.
func (n *named) reserved(from time.Time) map[string]*query.Total {
	n.t.Helper()
	a, err := n.Usage(n.t.Context(), query.Query{From: from, To: time.Now().Add(time.Hour), By: []query.Dimension{query.ByPod}, Scope: query.Scope{All: true}})
	if err != nil {
		n.t.Fatal(err)
	}
	got := map[string]*query.Total{}
	for i := range a.Groups {
		got[a.Groups[i].Keys[0]] = &a.Groups[i].Usage
	}
	return got
}

// compare compares what pods reserved, up to a minute that is over, with sums by hand. Of those that were deleted, and of a
// change, the second is known within some time.
func (n *named) compare(c *testbed.Cluster, all map[string]corev1.Pod, began, resized time.Time, gone map[string]time.Time, within time.Duration, except ...string) {
	n.t.Helper()
	until := time.Now().Truncate(time.Minute).Add(time.Minute)
	db := ledgertest.DB(n.t, n.dsn)
	testkit.Eventually(n.t, "rows up to "+until.Format(time.TimeOnly), func() bool {
		var waiting int
		if err := db.QueryRow("SELECT count(*) FROM pod WHERE right_minute < $1", until.Unix()/60).Scan(&waiting); err != nil {
			n.t.Fatal(err)
		}
		return waiting == 0 && time.Now().After(until)
	})
	maps.Copy(all, podsOf(n.t, c))
	got := n.reserved(began)
	checked := 0
	for name, p := range all {
		kind, _, _ := strings.Cut(name, "-")
		hand, ok := reservedByHand[kind]
		if !ok || len(except) > 0 && name == except[0] {
			continue
		}
		var from, to time.Time
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled {
				from = cond.LastTransitionTime.Time
			}
		}
		slack := int64(0)
		switch end := gone[name]; {
		case p.Status.Phase == corev1.PodSucceeded:
			to = p.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time
		case !end.IsZero():
			to, slack = end.Truncate(time.Second), int64(within.Seconds())
		default: // rows are of whole minutes
			var right int64
			if err := db.QueryRow("SELECT put_minute FROM pod WHERE name = $1", name).Scan(&right); err != nil {
				n.t.Fatal(err)
			}
			to = time.Unix(right*60, 0)
		}
		seconds := int64(to.Sub(from).Seconds())
		if seconds == 0 || !from.Before(until) {
			continue
		}
		u := got[name]
		if u == nil {
			n.t.Errorf("%s reserves nothing", name)
			continue
		}
		check := func(r usage.Resource, want, slack int64) {
			n.t.Helper()
			if have := u.Sum[r].Int64(); have < want-slack || have > want+slack {
				n.t.Errorf("%s of %s is %d, want %d +- %d: from %v to %v", r, name, have, want, slack, from, to)
			}
		}
		cpu, limit := hand.cpu*seconds, hand.limit*seconds
		cpuSlack, limitSlack := hand.cpu*slack, hand.limit*slack
		if name == "resized" { // 280 = 250 + 30 + 10 - 10: the init container's maximum holds no longer
			after := int64(to.Sub(resized.Truncate(time.Second)).Seconds())
			cpu += (290 - hand.cpu) * after
			limit += 100 * after
			cpuSlack, limitSlack = 60*2, 100*2
		}
		check(usage.CPUReserved, cpu*1e6, cpuSlack*1e6)
		check(usage.CPULimit, limit*1e6, limitSlack*1e6)
		check(usage.MemoryReserved, hand.memory*seconds, hand.memory*slack)
		check(usage.ReservedTime, hand.containers*seconds*1e9, hand.containers*slack*1e9)
		check(usage.CPULimitedTime, hand.limited*seconds*1e9, hand.limited*slack*1e9)
		if q := u.Quality.Get(usage.CPUReserved); q != usage.Measured {
			n.t.Errorf("%s of %s is %v", usage.CPUReserved, name, q)
		}
		checked++
	}
	if _, ok := got["huge"]; ok || checked < 24 {
		n.t.Errorf("%d pods were compared; a pod that is not scheduled reserves: %v", checked, ok)
	}
	n.t.Logf("%d pods reserve what they should to the second", checked)
}

package kube_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/syncbuf"
	"mete.dev/mete/internal/testkit/testbed"
)

// A volumeTrial makes volumes of a cluster without controllers: the test does what they do.
type volumeTrial struct {
	*named
	c *testbed.Cluster
}

// claim creates a claim of the namespace shop, and volume a volume; bound binds one to a claim. They return UIDs.
func (v *volumeTrial) claim(name, labels string) string {
	v.t.Helper()
	return create(v.t, v.c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": %q, "labels": {%s}},
"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Ki"}}}}`, name, labels))
}

func (v *volumeTrial) volume(name, source string) string {
	v.t.Helper()
	return create(v.t, v.c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": %q}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
"persistentVolumeReclaimPolicy": "Retain", "capacity": {"storage": "1000"}, %s}}`, name, source))
}

func (v *volumeTrial) patch(name string, more ...string) {
	v.t.Helper()
	v.c.Kubectl(v.t, "", append([]string{"patch", "persistentvolume", name, "--type=merge", "-p"}, more...)...)
}

func (v *volumeTrial) phase(name, phase string) {
	v.t.Helper()
	v.patch(name, `{"status": {"phase": "`+phase+`"}}`, "--subresource=status")
}

// remove deletes an object as the controllers do that take off its finalizer, and returns when it was gone.
func (v *volumeTrial) remove(kind, name string) time.Time {
	v.t.Helper()
	v.c.Kubectl(v.t, "", "-n", "shop", "delete", kind, name, "--wait=false")
	_, _ = v.c.Try("", "-n", "shop", "patch", kind, name, "--type=merge", "-p", `{"metadata": {"finalizers": null}}`) // it may be gone
	return time.Now()
}

// created returns when the API server says that a volume was created.
func (v *volumeTrial) created(name string) time.Time {
	v.t.Helper()
	var o struct {
		Metadata struct{ CreationTimestamp time.Time }
	}
	if err := json.Unmarshal([]byte(v.c.Kubectl(v.t, "", "get", "persistentvolume", name, "-o", "json")), &o); err != nil {
		v.t.Fatal(err)
	}
	return o.Metadata.CreationTimestamp
}

// stored waits until a column of the ledger has a value for a volume.
func (v *volumeTrial) stored(name, column, want string) {
	v.t.Helper()
	db := ledgertest.DB(v.t, v.dsn)
	testkit.Eventually(v.t, fmt.Sprintf("%s of %s is %q", column, name, want), func() bool {
		var got string
		err := db.QueryRow("SELECT CAST("+column+" AS text) FROM pod p WHERE p.volume = 1 AND p.name = $1", name).Scan(&got)
		return err == nil && got == want
	})
}

// used returns how many byte-seconds of a volume are used.
func (v *volumeTrial) used(t *testing.T, name string, from, to time.Time) (sum int64) {
	t.Helper()
	a, err := v.Usage(t.Context(), query.Query{From: from, To: to, By: []query.Dimension{query.ByWorkload}, Where: map[query.Dimension][]string{query.ByKind: {"volume"}}, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range a.Groups {
		if g.Keys[0] == name {
			sum += g.Usage.Sum[usage.Storage].Int64()
		}
	}
	return sum
}

// TestVolumesOfCluster compares what the ledger says that volumes of a real API server reserve with sums by hand: bound, resized,
// released and deleted, with a restart of the server between.
func TestVolumesOfCluster(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, "", "-n", "shop", "create", "serviceaccount", "default")
	v := &volumeTrial{newNamed(t), c}
	cfg := kube.Config{Cluster: "c", Kubeconfig: account(t, c, ""), Holder: "server", Labels: []string{"team"}}
	log := &syncbuf.Buffer{}
	w, stop := v.watch(cfg, log)
	testkit.Eventually(t, "the lease", func() bool { return w.Stats().Holds })
	const lasts = "(SELECT max(r.storage) FROM reservation r WHERE r.pod = p.id AND r.to_s = 0)"

	began := time.Now().Truncate(time.Minute)
	v.volume("idle", `"nfs": {"server": "x", "path": "/"}`)
	uid := v.claim("data", `"team": "blue", "other": "x"`)
	v.volume("disk", `"csi": {"driver": "disk.example.org", "volumeHandle": "d"}, "claimRef": {"namespace": "shop", "name": "data", "uid": "`+uid+`"}`)
	v.phase("disk", "Bound")
	v.stored("disk", "job", "shop/persistentvolumeclaim/data")
	v.stored("disk", "labels", `{"mete.dev/claim":"data","mete.dev/storage-class":"fast","mete.dev/volume-type":"disk.example.org","team":"blue"}`)
	v.stored("idle", "namespace || job || labels", `{"mete.dev/storage-class":"fast","mete.dev/volume-type":"nfs"}`)
	if s := w.Stats(); s.Volumes != 2 || s.Errors != 0 {
		t.Errorf("%+v", s)
	}
	v.patch("disk", `{"spec": {"capacity": {"storage": "3000"}}}`)
	resized := time.Now()
	v.stored("disk", lasts, "3000")
	// Its claim says which job it is for, while it is in its first version or later.
	c.Kubectl(t, "", "-n", "shop", "label", "persistentvolumeclaim", "data", "mete.dev/job=checkout")
	v.stored("disk", "job", "shop/checkout")

	// A pod of a node mounts it: what the agent there measures counts, and nothing of another node.
	if err := v.PutNode(t.Context(), registry.Node{ID: "n2", Name: "n2", Cluster: "c", MachineID: "n2", At: began}); err != nil {
		t.Fatal(err)
	}
	pod := create(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": "n2", "terminationGracePeriodSeconds": 0,
"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}], "containers": [{"name": "app", "image": "x"}]}}`)
	v.stored("disk", "(SELECT max(o.claims) FROM pod o WHERE o.name = 'web')", "data")
	measured := time.Now()
	for i, node := range []string{"n2", "n1"} {
		e := ledgertest.Entry(node, batch.Stream{byte(i), 9}, batch.Mark{Next: 1}, 0, 0)
		e.Volumes = []batch.TimedVolume{{At: measured, VolumeUse: usage.VolumeUse{Pod: pod, Volume: "disk", Used: int64(100 * (i + 1))}}}
		if r, err := v.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil {
			t.Fatal(r, err)
		}
	}

	// The server is restarted within less time than an outage.
	stop()
	w, stop = v.watch(cfg, log)
	testkit.Eventually(t, "the lease again", func() bool { return w.Stats().Holds })
	created := map[string]time.Time{"disk": v.created("disk"), "idle": v.created("idle")}
	v.remove("persistentvolumeclaim", "data")
	v.phase("disk", "Released")
	v.stored("disk", "namespace || job", "")
	time.Sleep(20 * time.Second)
	gone := v.remove("persistentvolume", "disk")
	v.stored("disk", "CASE WHEN ended_ns > 0 THEN 1 ELSE 0 END", "1")

	until := time.Now().Truncate(time.Minute).Add(time.Minute)
	v.stored("idle", "CASE WHEN right_minute >= "+fmt.Sprint(until.Unix()/60)+" THEN 1 ELSE 0 END", "1")
	stop()
	a, err := v.Usage(t.Context(), query.Query{From: began, To: until, By: []query.Dimension{query.ByWorkload}, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, g := range a.Groups {
		if sums[g.Keys[0]] = g.Usage.Sum[usage.StorageReserved].Int64(); g.Usage.Quality.Get(usage.StorageReserved) != usage.Measured {
			t.Errorf("%v is %v", g.Keys, g.Usage.Quality.Get(usage.StorageReserved))
		}
	}
	seconds := func(from, to time.Time) int64 { return to.Unix() - from.Unix() }
	since := max(measured.Truncate(time.Minute).Unix(), created["disk"].Unix()) // a level is one of its whole minute
	if used, want := v.used(t, "disk", began, until), 100*(gone.Unix()-since); used < want-200 || used > want+200 {
		t.Errorf("disk uses %d, want %d", used, want)
	}
	// The second of a change is that in which the server sees it.
	for name, want := range map[string]int64{"idle": 1000 * seconds(created["idle"], until), "disk": 1000*seconds(created["disk"], resized) + 3000*seconds(resized, gone)} {
		slack := map[string]int64{"disk": 2*2000 + 2*3000}[name]
		if got := sums[name]; got < want-slack || got > want+slack {
			t.Errorf("%s reserves %d, want %d +- %d", name, got, want, slack)
		}
	}
	t.Logf("sums %v, by %v", sums, created)
	// To the second, from what the ledger says of the seconds of changes.
	var hand int64
	err = ledgertest.DB(t, v.dsn).QueryRow("SELECT sum(r.storage * (r.to_s - r.from_s)) FROM reservation r JOIN pod p ON p.id = r.pod WHERE p.name = 'disk'").Scan(&hand)
	if err != nil || hand != sums["disk"] {
		t.Errorf("levels sum to %d, rows to %d, %v", hand, sums["disk"], err)
	}
	nodes, err := v.Nodes(t.Context(), query.Scope{All: true})
	if err != nil || len(nodes) != 2 {
		t.Errorf("nodes %+v, %v", nodes, err)
	}
	if findings, err := v.Check(t.Context()); err != nil || len(findings) > 0 {
		t.Errorf("check: %v, %v", findings, err)
	}
	if strings.Contains(log.String(), "level=WARN") {
		t.Error(log)
	}
}

// TestNoVolumes: an account of an earlier version, which may not list volumes, names pods as before. With the right, volumes
// follow without a restart.
func TestNoVolumes(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	c.Kubectl(t, "", "create", "namespace", "shop")
	c.Kubectl(t, "", "-n", "shop", "create", "serviceaccount", "default")
	kubeconfig := account(t, c, "")
	rights := func(resources string) {
		c.Kubectl(t, "", "patch", "clusterrole", "mete-server", "--type=json", "-p", `[{"op": "replace", "path": "/rules/0/resources", "value": [`+resources+`]}]`)
	}
	rights(`"pods", "nodes"`)
	v := &volumeTrial{newNamed(t), c}
	v.volume("disk", `"nfs": {"server": "x", "path": "/"}`)
	log := &syncbuf.Buffer{}
	w, stop := v.watch(kube.Config{Cluster: "c", Kubeconfig: kubeconfig, Holder: "server"}, log)
	defer stop()
	testkit.Eventually(t, "the lease", func() bool { return w.Stats().Holds })
	uid := create(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, `+podSpec+`}`)
	testkit.Eventually(t, "the pod is known", func() bool {
		live, err := v.LivePods(t.Context(), "c")
		return err == nil && len(live) == 1 && live[0].UID == uid
	})
	testkit.Eventually(t, "the log says so", func() bool { return strings.Contains(log.String(), "volumes of the cluster are not counted") })
	time.Sleep(5 * time.Second) // it is refused again and again
	if s := w.Stats(); strings.Count(log.String(), "level=WARN") != 1 || s.Errors != 0 || s.Volumes != 0 {
		t.Errorf("%+v\n%s", s, log)
	}
	rights(`"pods", "nodes", "persistentvolumes", "persistentvolumeclaims"`)
	v.stored("disk", "name", "disk")
}

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
)

// A memoryAPI answers requests for an API server of before Kubernetes 1.34, in memory.
type memoryAPI struct {
	mu      sync.Mutex
	watches map[string]*io.PipeWriter // the latest of a path
	answers map[string]string         // by path
	codes   map[string]int            // of failures, by path
	away    bool
	hangs   bool
	asked   []string
}

// RoundTrip implements http.RoundTripper.
func (a *memoryAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r.URL.RequestURI())
	query := r.URL.Query()
	reply := func(code int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
	}
	status := func(code int, reason metav1.StatusReason) (*http.Response, error) {
		return reply(code, io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code))))
	}
	switch answer, ok := a.answers[r.URL.Path]; {
	case a.away:
		return nil, errors.New("connection refused")
	case a.hangs:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case a.codes[r.URL.Path] != 0:
		return status(a.codes[r.URL.Path], "")
	case query.Has("sendInitialEvents"):
		return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Has("watch"):
		body, events := io.Pipe()
		if a.watches == nil {
			a.watches = map[string]*io.PipeWriter{}
		}
		a.watches[r.URL.Path] = events
		context.AfterFunc(r.Context(), func() { _ = events.Close() }) // it does not fail
		return reply(http.StatusOK, body)
	case !ok:
		return status(http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		return reply(http.StatusOK, io.NopCloser(strings.NewReader(answer)))
	}
}

// set changes how it answers.
func (a *memoryAPI) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// send sends an event to the watch of a path.
func (a *memoryAPI) send(t *testing.T, path, kind, object string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := fmt.Fprintf(a.watches[path], `{"type": %q, "object": %s}`, kind, object); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// took returns the requests since the last call.
func (a *memoryAPI) took() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

// lists answers requests for all objects that a watcher reads, with items by resource.
func (a *memoryAPI) lists(items map[string]string) {
	a.answers = map[string]string{}
	list := func(path, kind, version, resource string) {
		a.answers[path+resource] = fmt.Sprintf(`{"kind": %q, "apiVersion": %q, "metadata": {"resourceVersion": "1"}, "items": [%s]}`, kind, version, items[resource])
	}
	for _, of := range watchedOwners {
		list("/apis/"+of.Group+"/v1/", "PartialObjectMetadataList", "meta.k8s.io/v1", of.Resource)
	}
	list("/apis/batch/v1/", "JobList", "batch/v1", "jobs")
	list("/api/v1/", "PodList", "v1", "pods")
	list("/api/v1/", "NodeList", "v1", "nodes")
}

// objectOf returns an object in JSON, with more fields than its metadata. owner is "KIND NAME", or empty.
func objectOf(version, kind, name, owner, more string) string {
	var owners string
	if kind, of, ok := strings.Cut(owner, " "); ok {
		owners = fmt.Sprintf(`{"apiVersion": "v1", "kind": "Other", "name": "controls nothing", "uid": "u"}, {"apiVersion": "apps/v1", "kind": %q, "name": %q, "uid": %q, "controller": true}`, kind, of, "uid-"+of)
	}
	return fmt.Sprintf(`{"kind": %q, "apiVersion": %q, "metadata": {"namespace": "shop", "name": %q, "uid": %q, "resourceVersion": "1", "ownerReferences": [%s]}%s}`, kind, version, name, "uid-"+name, owners, more)
}

// metadataOf returns the metadata of an object in JSON.
func metadataOf(name, owner string) string {
	return objectOf("meta.k8s.io/v1", "PartialObjectMetadata", name, owner, "")
}

// TestConfiguration: one that no client takes is invalid.
func TestConfiguration(t *testing.T) {
	w, err := newWatcher(Config{Cluster: "c"}, &rest.Config{Host: "http://api:port"}, nil, slog.New(slog.DiscardHandler))
	if w != nil || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "of the service account") {
		t.Errorf("%v", err)
	}
}

// TestRun: a watcher reads all that names pods, books it, shows failures, and releases the lease at its end.
func TestRun(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		api := &memoryAPI{}
		podOf := func(name, owner string) string {
			return objectOf("v1", "Pod", name, owner, `, "spec": {"nodeName": "n1"}`)
		}
		jobOf := func(status string) string { return objectOf("batch/v1", "Job", "report", "", `, "status": `+status) }
		api.lists(map[string]string{"replicasets": metadataOf("web", "Deployment all"), "deployments": metadataOf("all", ""), "pods": podOf("web-1", "ReplicaSet web")})
		w := newWorkerOf(t, l, "s", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		l.booking = errors.New("down")
		go func() { result <- w.Run(ctx) }()
		time.Sleep(flushEvery / 2)
		synctest.Wait()
		if s := w.Stats(); !s.Synced || !s.Holds || s.Pods != 1 || s.Failures != 1 || s.Booked != 0 || !strings.Contains(w.log.String(), "pods, volumes or nodes could not be written to the ledger") {
			t.Errorf("while the ledger fails: %+v\n%s", s, w.log)
		}
		l.booking = nil
		time.Sleep(flushEvery)
		synctest.Wait()
		if s := w.Stats(); s.Failures != 1 || s.Booked != 1 || w.booked["uid-web-1"].Job != "shop/deployment/all" {
			t.Errorf("%+v, %+v", s, w.booked)
		}
		// Pods and Jobs that come, change and go later are booked too.
		started, ended := `{"startTime": "2000-01-01T00:00:00Z"}`, `{"startTime": "2000-01-01T00:00:00Z", "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2000-01-01T00:00:01Z"}]}`
		for i, c := range []struct{ pod, job, owner, status, want string }{
			{"ADDED", "ADDED", "ReplicaSet web", started, "2 pods, shop/deployment/all; 1 Jobs, ended false"},
			{"MODIFIED", "MODIFIED", "", ended, "2 pods, shop/pod/web-2; 1 Jobs, ended true"},
			{"DELETED", "DELETED", "", ended, "1 pods, ; 0 Jobs, ended false"},
		} {
			api.send(t, "/api/v1/pods", c.pod, podOf("web-2", c.owner))
			api.send(t, "/apis/batch/v1/jobs", c.job, jobOf(c.status))
			time.Sleep(flushEvery)
			synctest.Wait()
			live, err := l.LivePods(t.Context(), "c")
			if got := fmt.Sprintf("%d pods, %s; %d Jobs, ended %t", len(live), w.booked["uid-web-2"].Job, len(w.runs), !w.runs["uid-report"].Ended.IsZero()); got != c.want || err != nil {
				t.Errorf("%d: %s, %v; want %s", i, got, err, c.want)
			}
		}
		api.set(func() { api.away = true })
		time.Sleep(probeEvery)
		synctest.Wait()
		if !strings.Contains(w.log.String(), "the API server of the cluster does not answer") {
			t.Errorf("nothing is said of an API server that is away:\n%s", w.log)
		}
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
		if next, err := l.LeasePods(t.Context(), pod.Lease{Cluster: "c", Holder: "next"}, time.Now(), time.Now().Add(leaseFor)); err != nil || next.Number == 0 {
			t.Errorf("the next server has the lease %+v, %v", next, err)
		}

		// One that is ended before it has read everything takes no lease.
		w = newWorkerOf(t, l, "early", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil || w.Stats().Synced || w.Stats().Holds {
			t.Errorf("%v, %+v", err, w.Stats())
		}
	})
}

// TestRefused: the log shows which rights an account lacks, and that the lists are requested again.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &memoryAPI{codes: map[string]int{"/api/v1/pods": http.StatusForbidden}}
		api.lists(nil)
		w := newWorkerOf(t, nil, "s", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		if s, log := w.Stats(), w.log.String(); s.Synced || s.Errors < 2 || strings.Count(log, "refuses to list what names pods") != 1 || !strings.Contains(log, "mete-server-rbac.yaml") {
			t.Errorf("%+v\n%s", s, log)
		}
	})
}

// TestProbe: a request every while finds out whether the API server answers, and does not wait for long.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &memoryAPI{}
		api.lists(nil)
		w := newWorkerOf(t, nil, "s", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); w.probe(ctx) }()
		after := func(d time.Duration, wantErrors int64, wantLog string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := w.Stats().Errors; n != wantErrors || !strings.Contains(w.log.String(), wantLog) {
				t.Errorf("%d errors, want %d; the log lacks %q:\n%s", n, wantErrors, wantLog, w.log)
			}
		}
		after(14*time.Second, 0, "")
		if asked := api.took(); len(asked) != 0 {
			t.Errorf("asked too early: %q", asked)
		}
		after(time.Second, 0, "")
		if asked := api.took(); !slices.Equal(asked, []string{"/api/v1/pods?limit=1"}) {
			t.Errorf("asked %q", asked)
		}
		api.set(func() { api.hangs = true })
		after(probeEvery+probeTimeout-time.Second, 0, "")
		after(time.Second, 1, "no answer within 10s")
		api.hangs = false // the request has ended
		after(probeEvery-probeTimeout, 1, "answers again")
		api.set(func() { api.hangs = true })
		time.Sleep(probeEvery + time.Second)
		cancel()
		<-ended
		if n := w.Stats().Errors; n != 1 {
			t.Errorf("the end of the program counts as an error: %d", n)
		}
	})
}

const groups = `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "example.org", "versions": [{"groupVersion": "example.org/v1", "version": "v1"}],
	"preferredVersion": {"groupVersion": "example.org/v1", "version": "v1"}}]}`

// TestLookUp: owners that no informer has are requested: of all kinds, as far as the API server shows them. Its answers are
// remembered for a while, and after an error nothing is requested for a moment.
func TestLookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kinds = "/apis/example.org/v1"
		const trains = kinds + "/namespaces/shop/trains/"
		resources := func(more string) string {
			return `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.org/v1", "resources": [{"name": "trains", "kind": "Train", "namespaced": true, "verbs": ["get"]},
				{"name": "fleets", "kind": "Fleet", "namespaced": false, "verbs": ["get"]}` + more + `]}`
		}
		api := &memoryAPI{
			answers: map[string]string{
				"/api":  `{"kind": "APIVersions", "versions": []}`,
				"/apis": groups,
				kinds:   resources(""), trains + "t1": metadataOf("t1", "Fleet f1"), kinds + "/fleets/f1": metadataOf("f1", ""), trains + "again": metadataOf("another", "Fleet f1"),
				trains + "t2": metadataOf("t2", "Fleet f1"), kinds + "/namespaces/shop/ships/s1": metadataOf("s1", "Fleet f2"), kinds + "/namespaces/shop/ships/s2": metadataOf("s2", "Fleet f3"),
			},
			codes: map[string]int{trains + "secret": http.StatusForbidden, trains + "broken": http.StatusInternalServerError},
		}
		w := newWorkerOf(t, nil, "s", &rest.Config{Host: "http://api", Transport: api})
		ask := func(kind, name, want, wantErr string, wantAsked int) {
			t.Helper()
			got, err := w.ownerOf(t.Context(), "shop", &metav1.OwnerReference{APIVersion: "example.org/v1", Kind: kind, Name: name, UID: types.UID("uid-" + name)})
			if (got == nil) != (want == "") || got != nil && got.Name != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
				t.Errorf("%s %s: %v, %v; want %q, %q", kind, name, got, err, want, wantErr)
			}
			asked := api.took()
			if n := len(slices.DeleteFunc(slices.Clone(asked), func(r string) bool { return !strings.Contains(r, "/"+name) })); n != wantAsked {
				t.Errorf("%s %s: asked %q, want %d requests", kind, name, asked, wantAsked)
			}
		}
		ask("Train", "t1", "f1", "", 1)
		ask("Fleet", "f1", "", "", 1) // it is in no namespace
		ask("Train", "gone", "", errGone.Error(), 1)
		ask("Train", "again", "", errGone.Error(), 1) // another object with this name
		ask("Train", "secret", "", "", 1)             // this program may not read it
		for range 2 {
			ask("Train", "t1", "f1", "", 0)
			ask("Train", "gone", "", errGone.Error(), 0)
			ask("Train", "secret", "", "", 0)
			time.Sleep(10*time.Minute - 2*time.Second)
			ask("Train", "t1", "f1", "", 0)
			time.Sleep(2 * time.Second)
			ask("Train", "t1", "f1", "", 1)
			ask("Train", "gone", "", errGone.Error(), 1)
			ask("Train", "secret", "", "", 1)
		}

		if n := w.Stats().Errors; n != 0 {
			t.Errorf("%d errors", n)
		}
		ask("Train", "broken", "", "owner shop/train broken", 1)
		if n := w.Stats().Errors; n != 1 || !strings.Contains(w.log.String(), "an owner of pods or claims cannot be read") {
			t.Errorf("%d errors:\n%s", n, w.log)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		ask("Train", "t2", "", "later", 0)
		ask("Train", "t1", "f1", "", 0)
		time.Sleep(time.Nanosecond)
		ask("Train", "t2", "f1", "", 1)

		// A new kind is found, as the kinds are read again, but not for each unknown kind.
		ask("Ship", "s1", "", "", 0)
		api.set(func() {
			api.answers[kinds] = resources(`, {"name": "ships", "kind": "Ship", "namespaced": true, "verbs": ["get"]}`)
		})
		ask("Ship", "s2", "", "", 0)
		time.Sleep(time.Minute)
		ask("Ship", "s3", "", "", 0)
		time.Sleep(keepSeen - time.Minute)
		ask("Ship", "s1", "f2", "", 1)
		ask("Ship", "s2", "f3", "", 1)

		// A request to an API server that does not answer ends after some time.
		api.set(func() { api.hangs = true })
		began := time.Now()
		ask("Train", "slow", "", "owner shop/train slow", 1)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		api.hangs = false
		time.Sleep(lookupPause)
		clear(w.above)
		for i := range 9_999 {
			w.above[ownerKey{name: fmt.Sprint(i)}] = seenOwner{}
		}
		for i, want := range []int{10_000, 1} {
			ask("Train", fmt.Sprint("t", i+1), "f1", "", 1)
			if n := len(w.above); n != want {
				t.Errorf("%d owners are remembered, want %d", n, want)
			}
		}
	})
}

// TestOwnerLater: a pod whose owner could not be read has the job of what is known, until it can be read.
func TestOwnerLater(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		api := &memoryAPI{away: true, answers: map[string]string{
			"/api": `{"kind": "APIVersions", "versions": []}`, "/apis": groups,
			"/apis/example.org/v1":                           `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.org/v1", "resources": [{"name": "trains", "kind": "Train", "namespaced": true, "verbs": ["get"]}]}`,
			"/apis/example.org/v1/namespaces/shop/trains/t1": metadataOf("t1", "Other x"),
		}}
		w := newWorkerOf(t, l, "s", &rest.Config{Host: "http://api", Transport: api})
		pod := func(uid string) *keptPod {
			return w.pod(uid, "n1", func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.org/v1", Kind: "Train", Name: "t1", UID: "uid-t1", Controller: new(true)}}
			})
		}
		w.sees(pod("a"))
		w.sees(pod("b"))
		w.works("while it is away", nil, "a", "b")
		if a := w.booked["a"]; a.Job != "shop/train/t1" || !a.OwnerGone {
			t.Errorf("%+v", a)
		}
		w.gone(pod("b"))
		api.set(func() { api.away = false })
		time.Sleep(lookupPause)
		w.works("it is back", nil, "a")
		if a := w.booked["a"]; a.Job != "shop/other/x" || a.OwnerGone || len(w.changed) > 0 {
			t.Errorf("%+v; %d are to be booked again", a, len(w.changed))
		}
	})
}

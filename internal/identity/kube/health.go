package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"mete.dev/mete/internal/model/pod"
)

// health says whether the watch works, in the log and as metrics.
type health struct {
	log    *slog.Logger
	server string
	now    func() time.Time

	mu      sync.Mutex
	lease   int64  // number of the lease, 0 if another server has it
	other   string // the latest holder of the lease
	isAway  bool   // the API server
	pods    sight
	volumes sight
	nodes   sight
	refused [extras]runtime.Object // kind that is only needed for this, and that the account has no right to list; nil: none
	warned  map[string]time.Time   // by text
	stats   Stats
}

// A sight is what is known of the watch of one kind of object.
type sight struct {
	stale bool      // objects may have changed that are not known yet
	good  time.Time // when the watch was known to work, unless it is stale
}

// sightOf returns that of a kind of object; nil if it does not matter.
func (h *health) sightOf(of runtime.Object) *sight {
	switch of.(type) {
	case *corev1.Pod:
		return &h.pods
	case *corev1.PersistentVolume:
		return &h.volumes
	case *corev1.Node:
		return &h.nodes
	}
	return nil
}

// An extra is what a watcher does beside pods, if the account has the right to list some kinds of objects.
type extra int

const (
	ofVolumes extra = iota
	ofNodes
	extras // their number
)

// extraOf returns what objects are only needed for; false if they name pods.
func extraOf(of runtime.Object) (e extra, ok bool) {
	switch of.(type) {
	case *corev1.PersistentVolume, *corev1.PersistentVolumeClaim:
		return ofVolumes, true
	case *corev1.Node:
		return ofNodes, true
	}
	return 0, false
}

// refusals are what the log says where the account has no right, and failures where a list fails otherwise.
var (
	refusals = [extras]string{
		ofVolumes: "volumes of the cluster are not counted: its API server refuses to list them",
		ofNodes:   "classes of network traffic do not follow from the nodes of the cluster: its API server refuses to list them",
	}
	failures = [extras]string{
		ofVolumes: "the API server of the cluster does not list volumes or their claims: changes of them are counted later",
		ofNodes:   "the API server of the cluster does not list nodes: classes of network traffic follow their changes later",
	}
)

// warnEvery limits warnings of the same trouble.
const warnEvery = 5 * time.Minute

const checkRights = "give the server's account the rights of deploy/kubernetes/mete-server-rbac.yaml, and a token that is valid"

// lists takes that all objects are read, at the start and after changes were missed: what they are is not known until
// they are listed.
func (h *health) lists(ctx context.Context, of runtime.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sightOf(of); s != nil && ctx.Err() == nil {
		s.stale = true
	}
}

// listed takes the result of a list, which is repeated after an error.
func (h *health) listed(ctx context.Context, of runtime.Object, err error) {
	h.watched(ctx, of, err)
	if _, ofPods := of.(*corev1.Pod); ofPods && err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stats.Lists++
	}
}

// watched takes the result of the start of a watch, which is repeated after an error.
func (h *health) watched(ctx context.Context, of runtime.Object, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sightOf(of); s != nil && ctx.Err() == nil {
		if s.stale = err != nil; !s.stale {
			s.good = h.now().Add(listedAfter)
		}
	}
	e, isExtra := extraOf(of)
	if isExtra && h.refuses(e, of, err) {
		return
	}
	if err == nil || ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // also routine: the list is read again
	}
	h.stats.Errors++
	if isExtra {
		h.warn(failures[e], err, checkRights)
	} else if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		h.warn("the API server of the cluster refuses to list what names pods", err, checkRights)
	} else {
		h.warn("the API server of the cluster does not list what names pods: new ones have no names", err, "check that the API server runs and that this machine reaches it")
	}
}

// refuses notes whether the account has no right to list objects that name no pods, and says so once: all else works without.
func (h *health) refuses(e extra, of runtime.Object, err error) bool {
	is := err != nil && apierrors.IsForbidden(err)
	switch {
	case is && h.refused[e] == nil:
		h.refused[e] = of
		h.log.Warn(refusals[e], "server", h.server, "err", err, "hint", checkRights)
	case err == nil && h.refused[e] == of:
		h.refused[e] = nil
	}
	return is
}

// listedAfter is how long after a list or the start of a watch its first changes are surely here.
const listedAfter = 15 * time.Second

// confirmed returns a time at which all changes of pods that had been made were known; zero if it is not known.
func (h *health) confirmed() time.Time { return h.confirm(&h.pods) }

// confirmedVolumes is confirmed for volumes.
func (h *health) confirmedVolumes() time.Time { return h.confirm(&h.volumes) }

// seesNodes reports whether the API server answers and lists nodes, as far as is known.
func (h *health) seesNodes() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.nodes.stale && !h.isAway
}

func (h *health) confirm(s *sight) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.stale || h.isAway || s.good.After(h.now()) {
		return time.Time{}
	}
	return s.good
}

// probed takes the result of a request that only finds out whether the API server answers.
func (h *health) probed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && h.isAway:
		h.log.Info("the API server of the cluster answers again", "server", h.server)
	case err != nil:
		h.stats.Errors++
		h.warn("the API server of the cluster does not answer: new pods have no names until it does", err, "check that the API server runs and that this machine reaches it")
	}
	h.isAway = err != nil
	for _, s := range []*sight{&h.pods, &h.volumes} {
		if !h.isAway && !s.stale && h.now().After(s.good) {
			s.good = h.now()
		}
	}
}

// notFound takes an error of looking up an owner, which is done again.
func (h *health) notFound(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Errors++
	h.warn("an owner of pods or claims cannot be read: their jobs are those of the owners below it until then", err, "check that the API server runs")
}

// notBooked takes an error of booking, which is tried again.
func (h *health) notBooked(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Failures++
	h.warn("pods, volumes or nodes could not be written to the ledger; this is tried again", err, "check that the database runs and has room")
}

func (h *health) warn(text string, err error, hint string) {
	if now := h.now(); now.Sub(h.warned[text]) >= warnEvery {
		h.warned[text] = now
		h.log.Warn(text, "server", h.server, "err", err, "hint", hint)
	}
}

func (h *health) synced(pods int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Synced = true
	h.log.Info("the cluster's API server has listed its pods", "server", h.server, "pods", pods)
}

// leased takes which server has the lease of the cluster.
func (h *health) leased(l pod.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch holds := l.Number != 0; {
	case holds && h.lease != l.Number:
		h.log.Info("pods are named by this server", "cluster", l.Cluster, "lease", l.Number)
	case !holds && h.other != l.Holder:
		h.log.Info("pods are named by another server with this ledger; this one takes over when it stops", "cluster", l.Cluster, "holder", l.Holder)
	}
	h.stats.Holds, h.lease, h.other = l.Number != 0, l.Number, l.Holder
}

func (h *health) booked(pods int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Booked += int64(pods)
}

// Stats are counts since the start.
type Stats struct {
	Synced   bool  // all pods were read once
	Holds    bool  // the lease: this server names the pods
	Pods     int   // that the API server has, as far as is known
	Volumes  int   // the same; 0 without the right to list them
	Lists    int64 // how often all pods were read: at the start, and whenever changes were missed
	Booked   int64 // pods that were written to the ledger, because they were new or had changed
	Failures int64 // failed attempts to write pods
	Errors   int64 // of the API server
}

// Stats returns counts for metrics.
func (w *Watcher) Stats() Stats {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	if s.Pods = len(w.pods.GetStore().ListKeys()); h.refused[ofVolumes] == nil {
		s.Volumes = len(w.volumes.GetStore().ListKeys())
	}
	return s
}

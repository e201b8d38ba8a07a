package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// health says whether the watch works, in the log and as metrics.
type health struct {
	log    *slog.Logger
	server string
	now    func() time.Time

	mu     sync.Mutex
	isAway bool // the API server
	warned time.Time
	stats  Stats
}

// warnEvery limits warnings of the same trouble.
const warnEvery = 5 * time.Minute

// answered takes the result of a request to the API server. After an error it is repeated.
func (h *health) answered(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		if h.isAway {
			h.isAway = false
			h.log.Info("the API server of the cluster answers again", "server", h.server)
		}
		return
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return // the end, or routine: the list is read again
	}
	h.stats.Errors++
	h.isAway = true
	hint := "check that the API server runs and that this machine reaches it"
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		hint = "give the server's account the rights of deploy/kubernetes/mete-server-rbac.yaml"
	}
	h.warn("the API server of the cluster does not answer: new pods have no names until it does", err, hint)
}

// notBooked takes an error of booking, which is tried again.
func (h *health) notBooked(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Failures++
	h.warn("pods could not be named; this is tried again", err, "")
}

func (h *health) warn(text string, err error, hint string) {
	if now := h.now(); now.Sub(h.warned) >= warnEvery {
		h.warned = now
		h.log.Warn(text, "server", h.server, "err", err, "hint", hint)
	}
}

func (h *health) synced(pods int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Synced = true
	h.log.Info("pods are named by the cluster's API server", "server", h.server, "pods", pods)
}

func (h *health) booked(pods int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Booked += int64(pods)
}

// Stats are counts since the start.
type Stats struct {
	Synced   bool  // all pods were read once
	Pods     int   // that the API server has, as far as is known
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
	s.Pods = len(w.pods.GetStore().ListKeys())
	return s
}

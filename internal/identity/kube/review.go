package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authnclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/x/fairqueue"
	"mete.dev/mete/internal/x/text"
)

// Audience is that of the service-account tokens by which pods ask for their own use: no other server takes such a
// token, the API server included.
const Audience = "mete"

// The keys of what the API server says of the pod that a token is bound to.
const (
	podNameExtra = "authentication.kubernetes.io/pod-name"
	podUIDExtra  = "authentication.kubernetes.io/pod-uid"
	accountUser  = "system:serviceaccount:" // and namespace:name
)

const (
	maxTokenBytes = 16 << 10
	// goodFor and badFor are how long an answer counts, and so how long the token of a deleted pod still does.
	goodFor, badFor = time.Minute, 10 * time.Second
	maxAnswers      = 10_000 // good ones, and as many bad ones
	// reviewTimeout limits a review with the wait for its turn. At most maxReviews are made at once, and
	// of one client as many wait as maxReviewsWaiting says; reviewsPerSecond and reviewsBurst limit all.
	reviewTimeout                  = 10 * time.Second
	maxReviews, maxReviewsWaiting  = 8, 64
	reviewsPerSecond, reviewsBurst = 20, 100
)

const howToMount = "mount a projected volume with a serviceAccountToken of the audience " + Audience + ", as docs/guide/kubernetes.md shows, and send what the file has at present"

// reviews asks the API server which pods have tokens, and remembers the answers for a moment.
type reviews struct {
	cluster string
	create  func(context.Context, *authnv1.TokenReview, metav1.CreateOptions) (*authnv1.TokenReview, error)
	queue   *fairqueue.Queue
	health  *health

	mu        sync.Mutex
	good, bad map[[sha256.Size]byte]answer
}

// An answer has the pod of a token, or the reason for which it is refused.
type answer struct {
	pod   pod.Ref
	err   error
	until time.Time
}

// newReviews returns reviews with a client of their own, so that the watch never waits for them.
func newReviews(cluster string, rc *rest.Config, h *health) (*reviews, error) {
	rc = rest.CopyConfig(rc)
	rc.QPS, rc.Burst = reviewsPerSecond, reviewsBurst
	c, err := authnclient.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	return reviewsBy(c.TokenReviews().Create, cluster, h), nil
}

// reviewsBy returns reviews that are made by a function.
func reviewsBy(create func(context.Context, *authnv1.TokenReview, metav1.CreateOptions) (*authnv1.TokenReview, error), cluster string, h *health) *reviews {
	return &reviews{cluster: cluster, create: create, queue: fairqueue.New(maxReviews, maxReviewsWaiting), health: h,
		good: map[[sha256.Size]byte]answer{}, bad: map[[sha256.Size]byte]answer{}}
}

// Identify returns the pod of the cluster to which a service-account token of [Audience] is bound. The API server
// says so; its answer counts for up to a minute, and no longer than the token. Clients share the reviews fairly. The
// error of a token that is not valid is fault.ErrDenied, and fault.ErrUnavailable if it cannot be checked now. No error
// contains the token.
func (w *Watcher) Identify(ctx context.Context, client, token string) (pod.Ref, error) {
	return w.reviews.identify(ctx, client, token)
}

func (r *reviews) identify(ctx context.Context, client, token string) (pod.Ref, error) {
	now := time.Now()
	if err := checkClaims(token, now); err != nil {
		return pod.Ref{}, err
	}
	key := sha256.Sum256([]byte(token))
	if a, ok := r.known(key, now); ok {
		return a.pod, a.err
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	if err := r.queue.Acquire(ctx, client); err != nil {
		if caller.Err() != nil {
			return pod.Ref{}, err
		}
		return pod.Ref{}, fault.WithHint(fmt.Errorf("too many tokens of pods to check: %w", fault.ErrUnavailable), "ask again later, and less often")
	}
	defer r.queue.Release(client)
	if a, ok := r.known(key, time.Now()); ok { // another request had the same token
		return a.pod, a.err
	}
	got, err := r.create(ctx, &authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}}}, metav1.CreateOptions{})
	if err != nil {
		if caller.Err() != nil {
			return pod.Ref{}, caller.Err()
		}
		r.health.notReviewed(err)
		return pod.Ref{}, fault.WithHint(fmt.Errorf("the token cannot be checked, as the API server of cluster %s does not say whose it is: %w", r.cluster, fault.ErrUnavailable),
			"ask again later; the log of the server has the reason")
	}
	a := answer{until: time.Now().Add(goodFor)}
	if a.pod, a.err = podOf(r.cluster, &got.Status); a.err != nil {
		a.until = time.Now().Add(badFor)
	}
	r.keep(key, a)
	return a.pod, a.err
}

// known returns the answer about a token, if there was one lately.
func (r *reviews) known(key [sha256.Size]byte, now time.Time) (answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, answers := range []map[[sha256.Size]byte]answer{r.good, r.bad} {
		if a, ok := answers[key]; ok && now.Before(a.until) {
			return a, true
		}
	}
	return answer{}, false
}

// keep remembers an answer. Bad ones do not displace good ones.
func (r *reviews) keep(key [sha256.Size]byte, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := r.good
	if a.err != nil {
		answers = r.bad
	}
	if len(answers) >= maxAnswers {
		now := time.Now()
		for k, old := range answers {
			if !now.Before(old.until) {
				delete(answers, k)
			}
		}
		if len(answers) >= maxAnswers {
			clear(answers)
		}
	}
	answers[key] = a
}

// denied returns the error of a token that is refused.
func denied(why string) error {
	return fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrDenied), howToMount)
}

// checkClaims refuses a token that is not of a service account, not for the audience or expired by its own words: the
// API server need not refuse it, and no answer of it counts any more.
func checkClaims(token string, now time.Time) error {
	malformed := denied("not a token of a service account")
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > maxTokenBytes {
		return malformed
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Audience json.RawMessage `json:"aud"`
		Expires  float64         `json:"exp"`
	}
	if err != nil || json.Unmarshal(body, &claims) != nil {
		return malformed
	}
	var audiences []string
	if json.Unmarshal(claims.Audience, &audiences) != nil {
		audiences = make([]string, 1)
		if json.Unmarshal(claims.Audience, &audiences[0]) != nil {
			return denied("a token without an audience")
		}
	}
	if !slices.Contains(audiences, Audience) {
		return denied("a token for another audience than " + Audience)
	}
	const latest = 1 << 40
	expires := time.Unix(int64(min(max(0, claims.Expires), latest)), 0)
	if !now.Before(expires) {
		return denied("the token has expired")
	}
	return nil
}

// podOf returns the pod that a review names.
func podOf(cluster string, s *authnv1.TokenReviewStatus) (pod.Ref, error) {
	switch {
	case !s.Authenticated:
		why := "the cluster's API server refuses the token"
		if s.Error != "" {
			why += ": " + text.Cut(text.Clean(s.Error), 200)
		}
		return pod.Ref{}, denied(why)
	case !slices.Contains(s.Audiences, Audience): // an API server may ignore the requested audiences
		return pod.Ref{}, denied("a token for another audience than " + Audience)
	}
	one := func(key string) string {
		if values := s.User.Extra[key]; len(values) == 1 {
			return values[0]
		}
		return ""
	}
	account, isAccount := strings.CutPrefix(s.User.Username, accountUser)
	namespace, _, _ := strings.Cut(account, ":")
	p := pod.Ref{Cluster: cluster, Namespace: namespace, Name: one(podNameExtra), UID: one(podUIDExtra)}
	if !isAccount || p.Namespace == "" || p.Name == "" || p.UID == "" {
		return pod.Ref{}, denied("the token is not bound to a pod")
	}
	return p, nil
}

// notReviewed takes an error of a review.
func (h *health) notReviewed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Errors++
	const what = "tokens of pods cannot be checked, so that pods get no answer about their own use"
	hint := "check that the API server runs and that this machine reaches it"
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		hint = checkRights
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", reviewTimeout)
	}
	h.warn(what, err, hint)
}

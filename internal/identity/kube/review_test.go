package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// jwt returns a token with these claims and no valid signature.
func jwt(claims string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256"}`)) + "." + part([]byte(claims)) + "." + part([]byte("signature"))
}

// claimsFor are those of a token of the audience that expires at a time.
func claimsFor(at time.Time) string { return fmt.Sprintf(`{"aud":["mete"],"exp":%d}`, at.Unix()) }

// TestClaims refuses tokens that no API server would take, without a request.
func TestClaims(t *testing.T) {
	now := time.Unix(1000, 0)
	longest := jwt(`{"aud":["mete"],"exp":1001}`)
	longest += strings.Repeat("x", 16<<10-len(longest))
	for token, want := range map[string]string{
		jwt(`{"aud":["other","mete"],"exp":1001}`): "", jwt(`{"aud":"mete","exp":1000.5e1}`): "", jwt(`{"aud":"mete","exp":1e300}`): "",
		"": "not a token", "mete_x": "not a token", "a.b": "not a token", "..": "not a token", "a.b.c.d": "not a token", "a.!.c": "not a token", jwt("{"): "not a token",
		longest: "", longest + "x": "not a token",
		jwt(`{"exp":1001}`): "without an audience", jwt(`{"aud":{"a":1},"exp":1001}`): "without an audience",
		jwt(`{"aud":["https://kubernetes.default.svc"],"exp":1001}`): "for another audience", jwt(`{"aud":[],"exp":1001}`): "for another audience", jwt(`{"aud":"metes","exp":1001}`): "for another audience",
		jwt(`{"aud":["mete"],"exp":1000}`): "has expired", jwt(`{"aud":["mete"]}`): "has expired", jwt(`{"aud":["mete"],"exp":-5}`): "has expired", jwt(`{"aud":["mete"],"exp":"1001"}`): "not a token",
	} {
		err := checkClaims(token, now)
		if want == "" && err != nil {
			t.Errorf("%.60q: %v", token, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, fault.ErrDenied) || !strings.Contains(fault.Hint(err), "audience mete")) {
			t.Errorf("%.60q: %v, want %q", token, err, want)
		}
	}
}

// TestReviewFailures: an API server that fails, or that says less than it has to, admits no client.
func TestReviewFailures(t *testing.T) {
	const good = `"user":{"username":"system:serviceaccount:shop:web","extra":{"authentication.kubernetes.io/pod-name":["web-1"],"authentication.kubernetes.io/pod-uid":["u"]}}`
	review := func(status string) string {
		return `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{` + status + `}}`
	}
	type reply struct {
		code      int
		body, err string
		kind      error
	}
	for name, c := range map[string]reply{
		"error":              {500, "", "cannot be checked", fault.ErrUnavailable},
		"unavailable":        {503, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":503}`, "cannot be checked", fault.ErrUnavailable},
		"no rights":          {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"cannot create resource tokenreviews","code":403}`, "cannot be checked", fault.ErrUnavailable},
		"not authenticated":  {401, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`, "cannot be checked", fault.ErrUnavailable},
		"garbage":            {201, "<html>", "cannot be checked", fault.ErrUnavailable},
		"cut off":            {201, review(`"authenticated":true,` + good)[:60], "cannot be checked", fault.ErrUnavailable},
		"nothing":            {201, "{}", "refuses the token", fault.ErrDenied},
		"refused":            {201, review(`"error":"signature\u001b[31m is wrong",` + good), "refuses the token: signature", fault.ErrDenied},
		"no audience":        {201, review(`"authenticated":true,` + good), "another audience", fault.ErrDenied},
		"another audience":   {201, review(`"authenticated":true,"audiences":["x"],` + good), "another audience", fault.ErrDenied},
		"a person":           {201, review(`"authenticated":true,"audiences":["mete"],` + strings.Replace(good, "system:serviceaccount:shop:web", "alice", 1)), "not bound to a pod", fault.ErrDenied},
		"no pod":             {201, review(`"authenticated":true,"audiences":["mete"],"user":{"username":"system:serviceaccount:shop:web"}`), "not bound to a pod", fault.ErrDenied},
		"no UID":             {201, review(`"authenticated":true,"audiences":["mete"],` + strings.Replace(good, `["u"]`, `[]`, 1)), "not bound to a pod", fault.ErrDenied},
		"two pods":           {201, review(`"authenticated":true,"audiences":["mete"],` + strings.Replace(good, `["u"]`, `["u","v"]`, 1)), "not bound to a pod", fault.ErrDenied},
		"an account of none": {201, review(`"authenticated":true,"audiences":["mete"],` + strings.Replace(good, "shop:web", "", 1)), "not bound to a pod", fault.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" {
					asked.Add(1)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body)) // the test checks the result
			}))
			defer s.Close()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, s.URL), 0o600); err != nil {
				t.Fatal(err)
			}
			log := &syncbuf.Buffer{}
			w, err := New(Config{Cluster: "lab", Kubeconfig: file}, nil, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			if err != nil {
				t.Fatal(err)
			}
			token := jwt(claimsFor(time.Now().Add(time.Hour)))
			for range 2 {
				p, err := w.Identify(t.Context(), "a", token)
				if p != (pod.Ref{}) || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.err) || fault.Hint(err) == "" || strings.ContainsAny(err.Error(), "\x1b\n") {
					t.Errorf("%+v, %v", p, err)
				}
			}
			n, failed := asked.Load(), errors.Is(c.kind, fault.ErrUnavailable)
			if failed && (n < 2 || w.Stats().Errors != 2 || strings.Count(log.String(), "tokens of pods cannot be checked") != 1) || !failed && (n != 1 || w.Stats().Errors != 0) {
				t.Errorf("asked %d times, %+v; the log says\n%s", n, w.Stats(), log)
			}
			if rights := strings.Contains(log.String(), "mete-server-rbac.yaml"); rights != (c.code == 403 || c.code == 401) {
				t.Errorf("the log says\n%s", log)
			}
			if strings.Contains(log.String(), token[:20]) {
				t.Errorf("the log has the token:\n%s", log)
			}
		})
	}
}

// fakeReviews returns reviews that create answers.
func fakeReviews(create func(context.Context, string) (*authnv1.TokenReviewStatus, error)) *reviews {
	return reviewsBy(func(ctx context.Context, r *authnv1.TokenReview, _ metav1.CreateOptions) (*authnv1.TokenReview, error) {
		s, err := create(ctx, r.Spec.Token)
		if err != nil {
			return nil, err
		}
		return &authnv1.TokenReview{Status: *s}, nil
	}, "lab", &health{log: slog.New(slog.DiscardHandler), now: time.Now, warned: map[string]time.Time{}})
}

// bound says that a token is bound to a pod.
var bound = &authnv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"mete"}, User: authnv1.UserInfo{Username: "system:serviceaccount:shop:web",
	Extra: map[string]authnv1.ExtraValue{podNameExtra: {"web-1"}, podUIDExtra: {"u"}}}}

// TestReviewCache: answers count for a while, good ones longer, but none longer than its token.
func TestReviewCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		status, failure := bound, error(nil)
		r := fakeReviews(func(context.Context, string) (*authnv1.TokenReviewStatus, error) { asked++; return status, failure })
		ask := func(token string, good bool, times int) {
			t.Helper()
			before := asked
			p, err := r.identify(t.Context(), "a", token)
			if (err == nil) != good || good && p != (pod.Ref{Cluster: "lab", Namespace: "shop", Name: "web-1", UID: "u"}) || asked-before != times {
				t.Errorf("%+v, %v, asked %d times, want %d", p, err, asked-before, times)
			}
		}
		begin := time.Now()
		long, short := jwt(claimsFor(begin.Add(time.Hour))), jwt(claimsFor(begin.Add(30*time.Second)))
		ask(long, true, 1)
		ask(short, true, 1)
		status = &authnv1.TokenReviewStatus{}
		time.Sleep(30*time.Second - 1)
		ask(short, true, 0)
		time.Sleep(time.Nanosecond)
		ask(short, false, 0) // it has expired
		time.Sleep(30*time.Second - 1)
		ask(long, true, 0)
		time.Sleep(time.Nanosecond)
		ask(long, false, 1) // the pod was deleted
		status = bound
		time.Sleep(10*time.Second - 1)
		ask(long, false, 0)
		time.Sleep(time.Nanosecond)
		ask(long, true, 1)
		// A token that could not be checked is checked again.
		time.Sleep(goodFor)
		failure = errors.New("away")
		ask(long, false, 1)
		failure = nil
		ask(long, true, 1)

		// Many bad tokens displace no good one, and few of each are kept.
		status = &authnv1.TokenReviewStatus{}
		for i := range 10_010 {
			ask(jwt(fmt.Sprintf(`{"aud":"mete","exp":%d,"jti":"%d"}`, begin.Add(time.Hour).Unix(), i)), false, 1)
			if n := len(r.bad); n > 10_000 {
				t.Fatalf("%d bad answers are kept", n)
			}
		}
		ask(long, true, 0)
		if len(r.good) > 2 {
			t.Errorf("%d good answers are kept", len(r.good))
		}
	})
}

// TestReviewLimits: an API server that does not answer holds few requests, of all clients some, and none for long.
func TestReviewLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		r := fakeReviews(func(ctx context.Context, token string) (*authnv1.TokenReviewStatus, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			now--
			return nil, ctx.Err()
		})
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 200 {
			client := "many"
			if i >= 199 {
				client = "other"
			}
			all.Go(func() {
				_, err := r.identify(t.Context(), client, jwt(fmt.Sprintf(`{"aud":"mete","exp":%d,"jti":"%d"}`, begin.Add(time.Hour).Unix(), i)))
				if !errors.Is(err, fault.ErrUnavailable) {
					t.Errorf("%v", err)
				}
				if took := time.Since(begin); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if most != 7 {
			t.Errorf("up to %d requests at once, want 6 of one client and one of another", most)
		}
		if r.queue.Running() != 0 || r.queue.Waiting() != 0 {
			t.Errorf("%d run, %d wait", r.queue.Running(), r.queue.Waiting())
		}
		// A caller that has gone is not a failure of the API server.
		errorsBefore := r.health.stats.Errors
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := r.identify(ctx, "a", jwt(claimsFor(begin.Add(time.Hour)))); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		synctest.Wait()
		cancel()
		all.Wait()
		if n := r.health.stats.Errors - errorsBefore; n != 0 {
			t.Errorf("%d errors", n)
		}
	})
}

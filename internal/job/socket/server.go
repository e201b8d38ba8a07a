package socket

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/httpx"
)

const (
	maxJobs         = 10000 // open at once
	hookTimeout     = 5 * time.Second
	shutdownTimeout = time.Second // for requests in flight
)

// A Server is the agent's side of the socket.
type Server struct {
	ln    *listener
	http  *http.Server
	hooks Hooks
	log   *slog.Logger

	mu         sync.Mutex
	open       map[string]uint32 // users who registered the jobs that have not ended, by key
	jobsByUser map[uint32]int    // number of open jobs, by user
	named      map[string]Named  // what these jobs are called, by key
}

// Listen creates the socket at path, and its directory if it is missing. It replaces a socket on
// which no process listens. The error is fault.ErrConflict if another agent listens there, or if
// path is not a socket.
func Listen(path string, hooks Hooks, logger *slog.Logger) (*Server, error) {
	ln, err := bind(path)
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, hooks: hooks, log: logger, open: map[string]uint32{}, jobsByUser: map[uint32]int{}, named: map[string]Named{}}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 2 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      5*time.Second + hookTimeout,
		IdleTimeout:       10 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ConnContext:       withPeer,
		// The HTTP server would log broken connections of clients, which are of no interest.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return s, nil
}

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.http.Serve(s.ln) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(last); err != nil {
		_ = s.http.Close() // the requests that are left have had their time
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close removes the socket. If Run was called, it must have returned.
func (s *Server) Close() error { return s.ln.close() }

// Forget closes the job with a key, whose group is gone and whose end was not reported.
func (s *Server) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid, ok := s.open[key]; ok {
		s.remove(key, uid)
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs", s.handle(s.register))
	mux.HandleFunc("GET /v1/jobs", s.handle(s.list))
	mux.HandleFunc("POST /v1/jobs/{id}/snapshot", s.handle(s.snapshot))
	mux.HandleFunc("PUT /v1/jobs/{id}/end", s.handle(s.end))
	mux.HandleFunc("GET /v1/status", s.handle(func(*http.Request, []byte) (any, error) { return s.hooks.Status(), nil }))
	return mux
}

// handle returns a handler that passes a request and its body to f, and answers with what f
// returns, as JSON.
func (s *Server) handle(f func(*http.Request, []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
			err = fmt.Errorf("request of more than %d bytes: %w", big.Limit, fault.ErrInvalid)
		}
		ctx, cancel := context.WithTimeout(r.Context(), hookTimeout)
		defer cancel()
		var out any
		if err == nil {
			out, err = f(r.WithContext(ctx), body)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the agent is busy: %w", fault.ErrUnavailable)
		}
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
			return
		}
		if httpx.ProblemOf(err).Status == http.StatusInternalServerError && r.Context().Err() == nil {
			s.log.Warn("request failed", "path", r.URL.Path, "err", err)
		}
		httpx.Fail(w, err)
	}
}

// register takes a job from a peer that may speak for it.
func (s *Server) register(r *http.Request, body []byte) (any, error) {
	var j Job
	if err := decode(body, &j); err != nil {
		return nil, err
	}
	if err := j.validate(time.Now()); err != nil {
		return nil, err
	}
	p := peerOf(r.Context())
	key := s.hooks.Key(p, j.ID)
	if key == "" {
		return nil, fmt.Errorf("job %s: its group is not of user %d: %w", j.ID, p.UID, fault.ErrDenied)
	}
	var err error
	if j.Project, err = s.hooks.Project(p, j.Project); err != nil {
		return nil, err
	}
	known, err := s.add(key, p.UID)
	if err != nil {
		return nil, err
	}
	j.User = userName(p.UID)
	reply, err := s.hooks.Register(key, j)
	if err != nil {
		if !known {
			s.Forget(key)
		}
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.open[key]; open {
		s.named[key] = Named{j.ID, j.Name, j.User, j.Project}
	}
	return reply, nil
}

func (s *Server) list(r *http.Request, _ []byte) (any, error) {
	return s.jobsOf(peerOf(r.Context())), nil
}

// jobsOf returns the open jobs of a peer; to root those of all users.
func (s *Server) jobsOf(p Peer) []Named {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Named{}
	for key, n := range s.named {
		if p.UID == 0 || p.UID == s.open[key] {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b Named) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// add opens the job with a key, and reports whether it was open already. Root takes it over from a
// process in the job.
func (s *Server) add(key string, uid uint32) (known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, known := s.open[key]
	switch {
	case known && owner == uid:
		return true, nil
	case known && uid != 0:
		return true, fmt.Errorf("job %s is of another user: %w", key, fault.ErrConflict)
	case known:
		s.remove(key, owner)
	// A user other than root gets half of the room at most.
	case len(s.open) >= maxJobs || uid != 0 && s.jobsByUser[uid] >= maxJobs/2:
		return false, fmt.Errorf("%d jobs are open: %w", len(s.open), fault.ErrUnavailable)
	}
	s.open[key] = uid
	s.jobsByUser[uid]++
	return known, nil
}

// remove closes the job with a key. The caller holds mu.
func (s *Server) remove(key string, uid uint32) {
	delete(s.open, key)
	delete(s.named, key)
	if s.jobsByUser[uid]--; s.jobsByUser[uid] == 0 {
		delete(s.jobsByUser, uid)
	}
}

// ownJob returns the key of the job that a request names, if the job is open and of the peer; root
// may speak for every job.
func (s *Server) ownJob(r *http.Request) (string, error) {
	id, p := r.PathValue("id"), peerOf(r.Context())
	if err := validID(id); err != nil {
		return "", err
	}
	near := s.hooks.Key(p, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	err := fmt.Errorf("job %s: %w", id, fault.ErrNotFound)
	// The job's group may be gone.
	for _, key := range []string{near, workload.JobKey(id, p.UID), id} {
		switch owner, ok := s.open[key]; {
		case ok && (p.UID == 0 || p.UID == owner):
			return key, nil
		case ok:
			err = fmt.Errorf("job %s is of another user: %w", id, fault.ErrDenied)
		}
	}
	return "", err
}

func (s *Server) snapshot(r *http.Request, _ []byte) (any, error) {
	if _, err := s.ownJob(r); err != nil {
		return nil, err
	}
	return struct{}{}, s.hooks.Snapshot(r.Context())
}

func (s *Server) end(r *http.Request, body []byte) (any, error) {
	key, err := s.ownJob(r)
	if err != nil {
		return nil, err
	}
	var o Outcome
	if err := decode(body, &o); err != nil {
		return nil, err
	}
	if err := o.validate(time.Now()); err != nil {
		return nil, err
	}
	if err := s.hooks.End(r.Context(), key, o); err != nil {
		return nil, err
	}
	s.Forget(key)
	return struct{}{}, nil
}

// decode decodes a request. It ignores unknown fields, which are those of a newer mete run.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	return nil
}

// userName returns the name of a user, or the number of one without a name.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil && checkText("user", u.Username, maxText) == nil {
		return u.Username
	}
	return id
}

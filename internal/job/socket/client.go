package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
	"mete.dev/mete/internal/x/trusted"
)

const (
	callTimeout = 2 * time.Second
	// callPause is the time after a call that timed out in which the agent is not called.
	callPause = 10 * time.Second
	maxReply  = 1 << 20 // bytes
)

// A Client is mete run's side of the socket. Each call takes at most Timeout. After a call
// that timed out, calls fail at once for a while, so that an agent that hangs does not delay a
// job; only End is tried again. Several goroutines may use it.
type Client struct {
	Timeout time.Duration // of a call; Dial sets two seconds

	path  string
	http  *http.Client
	pause time.Duration

	mu         sync.Mutex
	retryAt    time.Time             // before which the agent is not called
	jobs       map[string]Job        // that have begun and not ended, by id
	selfAccess map[string]SelfAccess // by id of the job
}

// Dial returns a client of the agent that listens at path. The error is fault.ErrUnavailable if
// none listens there, and fault.ErrDenied if the listener is neither root nor this user, nor the user
// to whom root gave the socket's directory.
func Dial(path string) (*Client, error) {
	c := &Client{path: path, Timeout: callTimeout, pause: callPause, jobs: map[string]Job{}, selfAccess: map[string]SelfAccess{}}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, path) },
			// The calls of a job may be hours apart.
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 8 << 10,
		},
		CheckRedirect: httpx.NoRedirect,
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	conn, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	_ = conn.Close() // nothing was sent
	return c, nil
}

// connect connects to an agent that this process can trust: one of root, of this user, or of the user
// to whom root gave the socket's directory, as the agent's unit does.
func connect(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if err := classify(err); errors.Is(err, fault.ErrDenied) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	p, err := peerOfConn(c.(*net.UnixConn))
	if err == nil && !trusted.Agent(filepath.Dir(path), p.UID) {
		err = fmt.Errorf("%s: user %d listens there, neither root nor this user, and root did not give the directory to that user: %w", path, p.UID, fault.ErrDenied)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close closes the client's idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Register tells the agent of a job that begins. If it fails, the next calls for that job try it
// again.
func (c *Client) Register(ctx context.Context, j Job) error {
	c.mu.Lock()
	c.jobs[j.ID] = j
	c.mu.Unlock()
	var reply Registration
	if err := c.call(ctx, http.MethodPost, "/v1/jobs", j, &reply); err != nil {
		return err
	}
	if reply.Self != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.selfAccess[j.ID] = *reply.Self
	}
	return nil
}

// SelfAccess returns what a registered job needs to ask for its own use, or false if the agent
// gave it nothing.
func (c *Client) SelfAccess(id string) (SelfAccess, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.selfAccess[id]
	return s, ok && s.URL != "" && s.Token != ""
}

// Snapshot makes the agent take a tick, and returns when it is taken.
func (c *Client) Snapshot(ctx context.Context, id string) error {
	return c.callRegistered(ctx, id, func() error {
		return c.call(ctx, http.MethodPost, "/v1/jobs/"+id+"/snapshot", nil, nil)
	})
}

// End tells the agent how a job ended, and returns when the agent has the job's last values and its
// name on disk: then the job's groups may be removed. It calls the agent also after a call that timed
// out a moment ago. After fault.ErrUnavailable the caller may try again.
func (c *Client) End(ctx context.Context, id string, o Outcome) error {
	c.mu.Lock()
	c.retryAt = time.Time{}
	c.mu.Unlock()
	err := c.callRegistered(ctx, id, func() error {
		return c.call(ctx, http.MethodPut, "/v1/jobs/"+id+"/end", o, nil)
	})
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.jobs, id)
	}
	return err
}

// Jobs returns what this user's open jobs are called, or those of all users if this is root.
func (c *Client) Jobs(ctx context.Context) (list []Named, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/jobs", nil, &list)
	return list, err
}

// Status reads the agent's status.
func (c *Client) Status(ctx context.Context, into any) error {
	return c.call(ctx, http.MethodGet, "/v1/status", nil, into)
}

// callRegistered makes a call about a job. If the agent does not know the job, as it was
// restarted meanwhile or did not answer when the job began, it registers the job and calls again.
func (c *Client) callRegistered(ctx context.Context, id string, call func() error) error {
	err := call()
	if !errors.Is(err, fault.ErrNotFound) {
		return err
	}
	c.mu.Lock()
	j, ok := c.jobs[id]
	c.mu.Unlock()
	if !ok {
		return err
	}
	if err := c.Register(ctx, j); err != nil {
		return err
	}
	return call()
}

// call sends one request, unless a call timed out a moment ago.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if c.isBackingOff() {
		return fmt.Errorf("%s: the agent did not answer a moment ago: %w", c.path, fault.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := c.exchange(ctx, method, path, in, out)
	if errors.Is(err, context.DeadlineExceeded) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.retryAt = time.Now().Add(c.pause)
		return fmt.Errorf("%s: the agent does not answer: %w", c.path, fault.ErrUnavailable)
	}
	return err
}

func (c *Client) isBackingOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.retryAt)
}

// exchange sends one request with in as JSON, and decodes the answer into out; either may be
// nil.
func (c *Client) exchange(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	// The host stands for the socket, and is not resolved.
	r, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	a, err := httpx.Do(c.http, r, maxReply)
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		p, _ := a.Problem()
		return p.Err()
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(a.Body, out)
}

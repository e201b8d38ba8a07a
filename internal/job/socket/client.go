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
	"os"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
)

const (
	// clientLimit is how long a job waits for an agent.
	clientLimit = 2 * time.Second
	// sulk is for how long an agent that let a job wait is not asked again.
	sulk     = 10 * time.Second
	maxReply = 1 << 20
)

// A Client is the side of mete run. Each call takes two seconds at most, and
// after one that took so long the next ones fail at once for a while: an agent
// that hangs does not hold a job up. Several goroutines may use it.
type Client struct {
	path        string
	http        *http.Client
	limit, sulk time.Duration

	mu         sync.Mutex
	retryAt    time.Time      // not to be asked before
	jobs       map[string]Job // that have begun and not ended
	selfAccess map[string]SelfAccess
}

// Dial finds the agent that listens at path. It is fault.ErrUnavailable where
// none does, and fault.ErrDenied where who does is neither root nor this user.
func Dial(path string) (*Client, error) {
	c := &Client{path: path, limit: clientLimit, sulk: sulk, jobs: map[string]Job{}, selfAccess: map[string]SelfAccess{}}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, path) },
			// Two calls of a job are often hours apart.
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 8 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	conn, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	_ = conn.Close() // nothing was sent
	return c, nil
}

// connect connects to an agent that this process can believe.
func connect(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if err := classify(err); errors.Is(err, fault.ErrDenied) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	p, err := peerOfConn(c.(*net.UnixConn))
	if err == nil && p.UID != 0 && int(p.UID) != os.Geteuid() {
		err = fmt.Errorf("%s: user %d listens there, neither root nor this user: %w", path, p.UID, fault.ErrDenied)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close gives back what the client holds.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Register tells the agent of a job that begins. Where it fails, the calls that
// follow for that job try it again.
func (c *Client) Register(ctx context.Context, j Job) error {
	c.mu.Lock()
	c.jobs[j.ID] = j
	c.mu.Unlock()
	var told Registration
	if err := c.call(ctx, http.MethodPost, "/v1/jobs", j, &told); err != nil {
		return err
	}
	if told.Self != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.selfAccess[j.ID] = *told.Self
	}
	return nil
}

// SelfAccess is what a job that was registered needs to ask for its own use; false where
// the agent gave it nothing.
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

// End tells the agent how a job ended, and returns when it has read the job's
// last values: the job's groups may then be removed.
func (c *Client) End(ctx context.Context, id string, o Outcome) error {
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

// Status reads how the agent is doing.
func (c *Client) Status(ctx context.Context, into any) error {
	return c.call(ctx, http.MethodGet, "/v1/status", nil, into)
}

// callRegistered makes a call about a job and, where the agent does not know that one,
// registers it first: the agent was started anew meanwhile, or did not answer
// when the job began.
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

// call makes one request.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if c.isBackingOff() {
		return fmt.Errorf("%s: did not answer a moment ago: %w", c.path, fault.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	err := c.exchange(ctx, method, path, in, out)
	if errors.Is(err, context.DeadlineExceeded) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.retryAt = time.Now().Add(c.sulk)
		return fmt.Errorf("%s: does not answer: %w", c.path, fault.ErrUnavailable)
	}
	return err
}

func (c *Client) isBackingOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.retryAt)
}

func (c *Client) exchange(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	// The host stands for the socket, and is looked up nowhere.
	q, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	r, err := c.http.Do(q)
	if err != nil {
		return connectionError(err)
	}
	defer func() { _ = r.Body.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(r.Body, maxReply))
	if err != nil {
		return connectionError(err)
	}
	if r.StatusCode != http.StatusOK {
		p := fault.Problem{}
		if json.Unmarshal(b, &p) != nil || p.Status != r.StatusCode {
			p = fault.Problem{Status: r.StatusCode, Title: "status " + r.Status}
		}
		return p.Err()
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// connectionError gives an error of the connection its kind.
func connectionError(err error) error {
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}

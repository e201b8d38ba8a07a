package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

const (
	// listTimeout limits the list of containers.
	listTimeout = 30 * time.Second
	// maxList and maxEvent limit the bytes of a list and of an event. One container takes 1 to 4 KiB.
	maxList, maxEvent = 64 << 20, 1 << 20
)

// A client is a client of the Engine API at a unix socket. The two requests that it makes are the same since version
// 1.24 of the API, and Podman serves them: they name no version, so the daemon's own is used.
type client struct {
	socket string
	http   *http.Client
}

func newClient(socket string) *client {
	t := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		DisableCompression: true,
	}
	return &client{socket: socket, http: &http.Client{Transport: t}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// dial connects to a daemon of root or of this user: another one could name its containers as it likes.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: listTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		if errors.Is(err, syscall.EACCES) {
			err = fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrDenied), "docs/guide/docker.md says which right the agent needs")
		}
		return nil, err
	}
	uid, err := listenerUID(conn.(*net.UnixConn))
	if err == nil && uid != 0 && uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("%s: user %d listens there, neither root nor this user: %w", socket, uid, fault.ErrDenied)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// listenerUID returns the user who listens at the other end (SO_PEERCRED, unix(7)).
func listenerUID(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var u *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { u, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, os.NewSyscallError("getsockopt", failed)
	}
	return u.Uid, nil
}

// get requests a path; the caller closes the body.
func (c *client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "localhost", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, errors.Unwrap(err) // less the URL, which is none
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, errors.Join(fmt.Errorf("%s: %s: %s: %q", c.socket, path, resp.Status, text), resp.Body.Close())
	}
	return resp.Body, nil
}

// list returns all containers, stopped ones too.
func (c *client) list(ctx context.Context) (all []*Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := c.get(ctx, "/containers/json", url.Values{"all": {"1"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if all, err = readList(io.LimitReader(body, maxList)); err != nil {
		return nil, fmt.Errorf("%s: list of containers: %w", c.socket, err)
	}
	return all, nil
}

func readList(r io.Reader) (all []*Container, err error) {
	d := json.NewDecoder(r)
	switch begin, err := d.Token(); {
	case err != nil:
		return nil, err
	case begin != json.Delim('['):
		return nil, fmt.Errorf("it is not a list: %w", fault.ErrInvalid)
	}
	for d.More() {
		var one struct {
			ID     string `json:"Id"`
			Names  []string
			Image  string
			Labels map[string]string
		}
		if err = d.Decode(&one); err != nil {
			return nil, err
		}
		name := ""
		if len(one.Names) > 0 {
			name = one.Names[0]
		}
		if c := identify(one.ID, name, one.Image, one.Labels); c != nil {
			all = append(all, c)
		}
	}
	_, err = d.Token() // its end: a list that is cut is none
	return all, err
}

// An event is a change of a container. Its attributes are the labels, and name and image.
type event struct {
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
}

// Actions of events: the last one is Docker's word for what Podman calls remove.
var actions = []string{"create", "start", "rename", "update", "remove", "destroy"}

func (e *event) isRemoval() bool { return e.Action == "remove" || e.Action == "destroy" }

func (e *event) container() *Container {
	a := e.Actor.Attributes
	return identify(e.Actor.ID, a["name"], a["image"], a)
}

// An eventStream is a stream of events, one in a line.
type eventStream struct {
	body  io.Closer
	lines *bufio.Scanner
}

// events returns the events after an instant. Podman answers with the first of them, so this may take long.
func (c *client) events(ctx context.Context, since time.Time) (*eventStream, error) {
	filters, err := json.Marshal(map[string][]string{"type": {"container"}, "event": actions})
	if err != nil {
		return nil, err
	}
	body, err := c.get(ctx, "/events", url.Values{"since": {strconv.FormatInt(since.Unix(), 10)}, "filters": {string(filters)}})
	if err != nil {
		return nil, err
	}
	s := &eventStream{body: body, lines: bufio.NewScanner(body)}
	s.lines.Buffer(nil, maxEvent)
	return s, nil
}

// next waits for the next event. At the end of the stream the error is io.EOF.
func (s *eventStream) next() (e event, err error) {
	if !s.lines.Scan() {
		if err = s.lines.Err(); err == nil {
			err = io.EOF
		}
		return e, err
	}
	return e, json.Unmarshal(s.lines.Bytes(), &e)
}

func (s *eventStream) close() error { return s.body.Close() }

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
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/peercred"
)

const (
	// listTimeout limits the list of containers.
	listTimeout = 30 * time.Second
	// maxList and maxEvent limit the bytes of a list and of an event. One container takes 1 to 4 KiB.
	maxList, maxEvent = 64 << 20, 1 << 20
)

// A client is a client of the Engine API at a unix socket. The requests that it makes are the same since version
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
	who, err := peercred.Of(conn.(*net.UnixConn))
	if err == nil && who.Uid != 0 && who.Uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("%s: user %d listens there, neither root nor this user: %w", socket, who.Uid, fault.ErrDenied)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
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

// A listed container is one of a list.
type listed struct {
	ID     string `json:"Id"`
	Names  []string
	Image  string
	Labels map[string]string
}

// name returns the container's own name: with links of Docker there are others, as /other/alias.
func (l *listed) name() string {
	for _, n := range l.Names {
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return ""
}

// list returns all containers, stopped ones too.
func (c *client) list(ctx context.Context) (all []*Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := c.get(ctx, "/containers/json", url.Values{"all": {"1"}})
	if err != nil {
		return nil, err
	}
	list, err := readList(io.LimitReader(body, maxList))
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, fmt.Errorf("%s: list of containers: %w", c.socket, err)
	}
	for i := range list {
		l := &list[i]
		// Once a tag leads to another image, the list has the image's id.
		if strings.HasPrefix(l.Image, "sha256:") || workload.IsContainerID(l.Image) {
			l.Image = c.image(ctx, l.ID)
		}
		if one := identify(l.ID, l.name(), l.Image, l.Labels); one != nil {
			all = append(all, one)
		}
	}
	return all, nil
}

func readList(r io.Reader) (all []listed, err error) {
	d := json.NewDecoder(r)
	switch begin, err := d.Token(); {
	case err != nil:
		return nil, err
	case begin != json.Delim('['):
		return nil, fmt.Errorf("it is not a list: %w", fault.ErrInvalid)
	}
	for d.More() {
		var one listed
		if err = d.Decode(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	_, err = d.Token() // the end: without it the list is cut
	return all, err
}

// image returns the name of the image with which a container was created, "" if the daemon does not say.
func (c *client) image(ctx context.Context, id string) string {
	if !workload.IsContainerID(id) {
		return ""
	}
	body, err := c.get(ctx, "/containers/"+id+"/json", nil)
	if err != nil {
		return ""
	}
	var one struct{ Config struct{ Image string } }
	err = json.NewDecoder(io.LimitReader(body, maxEvent)).Decode(&one)
	if err = errors.Join(err, body.Close()); err != nil {
		return ""
	}
	return one.Config.Image
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

// follow sends the events after an instant to a channel, until ctx or the connection ends, for which it always returns
// a reason. Podman answers with the first event, so the answer may take long.
func (c *client) follow(ctx context.Context, since time.Time, to chan<- event) error {
	filters, err := json.Marshal(map[string][]string{"type": {"container"}, "event": actions})
	if err != nil {
		return err
	}
	body, err := c.get(ctx, "/events", url.Values{"since": {strconv.FormatInt(since.Unix(), 10)}, "filters": {string(filters)}})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it was only read
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		select {
		case to <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

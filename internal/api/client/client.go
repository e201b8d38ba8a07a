// Package client queries a server and administers the server of this machine. [Target]
// holds the flags by which commands name the server. Errors have the kinds and hints of
// the server's errors.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
	"mete.dev/mete/internal/x/text"
)

// Default is the URL of the server that mete up starts.
const Default = "http://127.0.0.1:9797"

const (
	// answerTimeout is how long an answer may take: longer than a server takes before it
	// gives up.
	answerTimeout = 45 * time.Second
	// maxAnswer is the largest answer that is read, in bytes: some ten times the largest
	// that servers give.
	maxAnswer = 256 << 20
)

// A Client queries one server.
type Client struct {
	base string
	http *http.Client
}

// New returns a client of the server at a URL. The token may be zero for a
// server of this machine. Nothing is sent yet.
func New(server string, t token.Token) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fault.WithHint(fmt.Errorf("server %q: %w", server, fault.ErrInvalid), "write it as "+Default+" or https://HOST:PORT")
	}
	base := strings.TrimSuffix(u.String(), "/")
	c, err := enroll.ReaderClient(base, t)
	if err != nil {
		return nil, err
	}
	return &Client{base, c}, nil
}

// Usage asks what was used. The scope of q is the server's to decide.
func (c *Client) Usage(ctx context.Context, q v1.UsageQuery) (*v1.Usage, error) {
	return read[v1.Usage](ctx, c, "/v1/usage", v1.FormatUsageQuery(q))
}

// Connections requests with whom the workloads that match the filters of q exchanged network traffic: its By and Limit apply too.
func (c *Client) Connections(ctx context.Context, q query.Query) (*v1.Connections, error) {
	return read[v1.Connections](ctx, c, "/v1/connections", v1.FormatQuery(query.Query{From: q.From, To: q.To, By: q.By, Where: q.Where, Limit: q.Limit}))
}

// Nodes asks which nodes a server has.
func (c *Client) Nodes(ctx context.Context) ([]v1.Node, error) {
	return list[v1.Node](ctx, c, "/v1/nodes", nil)
}

// Sources asks which servers below report their nodes to a server.
func (c *Client) Sources(ctx context.Context) ([]v1.Source, error) {
	return list[v1.Source](ctx, c, "/v1/sources", nil)
}

// Dimensions requests how many workloads have a value of each dimension that they may lack.
func (c *Client) Dimensions(ctx context.Context) ([]v1.Dimension, error) {
	return list[v1.Dimension](ctx, c, "/v1/dimensions", nil)
}

// Workloads requests the workloads that used something in the range of q and match its
// filters. q.By has no effect.
func (c *Client) Workloads(ctx context.Context, q query.Query) ([]v1.Workload, error) {
	return list[v1.Workload](ctx, c, "/v1/workloads", v1.FormatQuery(query.Query{From: q.From, To: q.To, Where: q.Where, Limit: q.Limit}))
}

// Runs requests the runs that used something in the range of q and match its filters, the latest first.
// q.By has no effect.
func (c *Client) Runs(ctx context.Context, q query.RunQuery) ([]v1.Run, error) {
	return list[v1.Run](ctx, c, "/v1/runs", v1.FormatRunQuery(q))
}

// Gaps requests the gaps and the clock corrections in a range. node is the id or name of one
// node; "" selects all nodes.
func (c *Client) Gaps(ctx context.Context, from, to time.Time, node string) ([]v1.Gap, error) {
	return list[v1.Gap](ctx, c, "/v1/gaps", ofNode(from, to, node))
}

// Uptimes requests for how long of a range machines were up. node is the id or name of one node; "" selects all
// nodes.
func (c *Client) Uptimes(ctx context.Context, from, to time.Time, node string) ([]v1.Uptime, error) {
	return list[v1.Uptime](ctx, c, "/v1/uptime", ofNode(from, to, node))
}

// ofNode are the parameters of a range and of one node, or of all if node is "".
func ofNode(from, to time.Time, node string) url.Values {
	given := v1.FormatQuery(query.Query{From: from, To: to})
	if node != "" {
		given[v1.ParamNode] = []string{node}
	}
	return given
}

// VMs asks which virtual machines hosts gave energy in a range, and how their reports
// compare with those of the guests.
func (c *Client) VMs(ctx context.Context, from, to time.Time) ([]v1.VM, error) {
	return list[v1.VM](ctx, c, "/v1/vms", v1.FormatQuery(query.Query{From: from, To: to}))
}

// Rates asks what every workload uses at present, by the latest window of its node.
func (c *Client) Rates(ctx context.Context) ([]live.NodeRates, error) {
	return pages[live.NodeRates](ctx, c, "/v1/rates", map[string][]string{v1.ParamLimit: {strconv.Itoa(v1.MaxGroups)}}, 0)
}

// list asks for a list: for its pages, if a server ends them before the limit that is given.
func list[T v1.Element](ctx context.Context, c *Client, path string, given map[string][]string) ([]T, error) {
	limit, err := v1.ParseLimit(given)
	if err != nil {
		return nil, err
	}
	return pages[T](ctx, c, path, given, limit)
}

// pages asks for the pages of a list, of limit elements in all; 0 is all of the list.
func pages[T v1.Element](ctx context.Context, c *Client, path string, given map[string][]string, limit int) (all []T, err error) {
	parameters := map[string][]string{}
	maps.Copy(parameters, given)
	for {
		page, err := get(ctx, c, path, parameters, decodePage[T])
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" || len(page.Items) == 0 || limit > 0 && len(all) >= limit {
			return all, nil
		}
		parameters[v1.ParamCursor] = []string{page.Next}
		if limit > 0 {
			parameters[v1.ParamLimit] = []string{strconv.Itoa(limit - len(all))}
		}
	}
}

// read asks for one object.
func read[T any](ctx context.Context, c *Client, path string, given map[string][]string) (*T, error) {
	return get(ctx, c, path, given, func(body []byte) (*T, error) { return decode[T]("answer", body) })
}

// decode reads an answer. The error wraps fault.ErrInvalid.
func decode[T any](what string, body []byte) (*T, error) {
	answer := new(T)
	err := json.Unmarshal(body, answer)
	if err != nil && !errors.Is(err, fault.ErrInvalid) {
		err = fmt.Errorf("%w %s: %w", fault.ErrInvalid, what, err)
	}
	return answer, err
}

// decodeList reads a list. The error wraps fault.ErrInvalid.
func decodeList[T v1.Element](body []byte) ([]T, error) {
	l, err := decodePage[T](body)
	return l.Items, err
}

// decodePage reads a page of a list. The error wraps fault.ErrInvalid.
func decodePage[T v1.Element](body []byte) (*v1.List[T], error) {
	return decode[v1.List[T]]("list of "+v1.List[T]{}.ListKey(), body)
}

// get asks for what is at a path, with parameters, and decodes the answer.
func get[T any](ctx context.Context, c *Client, path string, given map[string][]string, decode func([]byte) (T, error)) (answer T, err error) {
	target := c.base + path
	if len(given) > 0 {
		target += "?" + url.Values(given).Encode()
	}
	body, err := doTimeout(ctx, c.http, http.MethodGet, target, nil)
	if err != nil {
		return answer, c.explain(err)
	}
	if answer, err = decode(body); err != nil {
		return answer, fault.WithHint(fmt.Errorf("server %s: %w", c.base, err), "this mete may be older than the server's: see mete --version")
	}
	return answer, nil
}

// explain adds to an error the server, and a hint where no server answers.
func (c *Client) explain(err error) error {
	if _, ok := errors.AsType[*serverError](err); ok || errors.Is(err, context.Canceled) {
		return err // the server's text says enough
	}
	err = fmt.Errorf("server %s: %w", c.base, err)
	_, dialled := errors.AsType[*net.OpError](err)
	switch {
	case fault.Hint(err) != "":
		return err
	case errors.Is(err, http.ErrSchemeMismatch):
		return fault.WithHint(err, "it speaks plain HTTP, as mete up does: "+strings.Replace(c.base, "https:", "http:", 1))
	case errors.Is(err, syscall.ECONNREFUSED) && c.base == Default:
		return fault.WithHint(err, "start one with: mete up; one that listens elsewhere is named with --server or METE_SERVER")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault.WithHint(err, "start one with: mete up; or name another with --server or METE_SERVER")
	case dialled:
		return fault.WithHint(err, "check the address that --server or METE_SERVER names, and the way to it")
	}
	return err
}

// A serverError is an error that came from a server.
type serverError struct{ error }

func (r *serverError) Unwrap() error { return r.error }

// doTimeout is roundTrip with the timeout of answers.
func doTimeout(ctx context.Context, c *http.Client, method, target string, body []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return roundTrip(ctx, c, method, target, body)
}

// roundTrip sends a request and returns the body of its answer, which may take as long
// as ctx lets it.
func roundTrip(ctx context.Context, c *http.Client, method, target string, body []byte) (answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	a, err := httpx.Do(c, r, maxAnswer)
	switch {
	case err != nil:
		return nil, connectionError(ctx, err)
	case a.StatusCode/100 != 2:
		return nil, answerError(a)
	}
	return a.Body, nil
}

// connectionError explains an error of [httpx.Do].
func connectionError(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: %w", answerTimeout, fault.ErrUnavailable)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: no server listens there: %w: %w", op.Addr, syscall.ECONNREFUSED, fault.ErrUnavailable)
	}
	return err
}

// answerError makes an error of an answer whose status is not 2xx.
func answerError(a *httpx.Answer) error {
	if p, own := a.Problem(); own {
		if p.Status == http.StatusInternalServerError && p.Detail == "" {
			return &serverError{errors.New("the server failed; its log says why")}
		}
		p.Title, p.Detail, p.Hint = clean(p.Title), clean(p.Detail), clean(p.Hint)
		return &serverError{p.Err()}
	}
	if r := prometheusError(a); r != nil {
		return r
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(a.Body)), "\n")
	if len(text) > 200 {
		text = text[:200]
	}
	if a.StatusCode == http.StatusBadRequest && a.Request.URL.Scheme == "http" && strings.Contains(text, "HTTPS server") {
		// Go's own server says so before it calls a handler.
		https := *a.Request.URL
		https.Scheme, https.Path, https.RawQuery = "https", "", ""
		return fault.WithHint(&serverError{fmt.Errorf("server http://%s: it requires TLS, and the request was plain HTTP: %w", https.Host, fault.ErrInvalid)}, "use "+https.String())
	}
	refusal := &serverError{fault.Problem{Status: a.StatusCode, Detail: clean(a.Status + ": " + text)}.Err()}
	return fault.WithHint(refusal, "is this the address of a mete server, and no older one than this mete?")
}

// clean removes control characters from a server's text.
func clean(s string) string { return text.Clean(s) }

// Package client queries a server for what its ledger holds, and administers
// the server of this machine. [Target] holds the flags by which commands name
// the server. Errors have the kinds and hints of the server's.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/api/ask"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/text"
)

// Default is the server that mete up starts.
const Default = "http://127.0.0.1:9797"

const (
	// answerTimeout is how long an answer may take: more than a server takes for the
	// hardest question that it answers.
	answerTimeout = 45 * time.Second
	// maxAnswer is the most that an answer may be long, in bytes: some ten times
	// the longest that there is.
	maxAnswer = 256 << 20
)

// A Client asks one server.
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
func (c *Client) Usage(ctx context.Context, q query.Query) (*query.Answer, error) {
	given := v1.FormatQuery(q)
	p := &ask.UsageParams{From: optional[string](given, v1.ParamFrom), To: optional[string](given, v1.ParamTo), Where: optionalList(given, v1.ParamWhere),
		OmitOwn: optional[ask.UsageParamsOmitOwn](given, v1.ParamOmitOwn), Idle: optional[ask.UsageParamsIdle](given, v1.ParamIdle),
		Nested: optional[ask.UsageParamsNested](given, v1.ParamNested), Limit: limit(q)}
	if len(q.By) > 0 {
		var by []string
		for _, d := range q.By {
			by = append(by, string(d))
		}
		p.By = &by
	}
	return get(ctx, c, func() (*http.Request, error) { return ask.NewUsageRequest(c.base+"/", p) }, v1.Parse)
}

// Nodes asks which machines there are.
func (c *Client) Nodes(ctx context.Context) ([]query.Node, error) {
	return get(ctx, c, func() (*http.Request, error) { return ask.NewNodesRequest(c.base+"/", nil) }, v1.ParseNodes)
}

// Sources asks which servers tell of their machines there.
func (c *Client) Sources(ctx context.Context) ([]query.Source, error) {
	return get(ctx, c, func() (*http.Request, error) { return ask.NewSourcesRequest(c.base+"/", nil) }, v1.ParseSources)
}

// Workloads asks which workloads used something in the range of q and pass its
// filters, of which the dimensions mean nothing.
func (c *Client) Workloads(ctx context.Context, q query.Query) ([]query.Workload, error) {
	given := v1.FormatQuery(q)
	p := &ask.WorkloadsParams{From: optional[string](given, v1.ParamFrom), To: optional[string](given, v1.ParamTo), Where: optionalList(given, v1.ParamWhere), Limit: limit(q)}
	return get(ctx, c, func() (*http.Request, error) { return ask.NewWorkloadsRequest(c.base+"/", p) }, v1.ParseWorkloads)
}

// Gaps asks of which time in the range not all is known, and from when on in it a
// clock was corrected, of one node, by id or name, or of all where that is "".
func (c *Client) Gaps(ctx context.Context, from, to time.Time, node string) ([]query.Gap, error) {
	given := v1.FormatQuery(query.Query{From: from, To: to})
	p := &ask.GapsParams{From: optional[string](given, v1.ParamFrom), To: optional[string](given, v1.ParamTo)}
	if node != "" {
		p.Node = &node
	}
	return get(ctx, c, func() (*http.Request, error) { return ask.NewGapsRequest(c.base+"/", p) }, v1.ParseGaps)
}

// VMs asks which virtual machines hosts gave energy in the range, and how that
// compares with what these say.
func (c *Client) VMs(ctx context.Context, from, to time.Time) ([]query.VM, error) {
	given := v1.FormatQuery(query.Query{From: from, To: to})
	p := &ask.VmsParams{From: optional[string](given, v1.ParamFrom), To: optional[string](given, v1.ParamTo)}
	return get(ctx, c, func() (*http.Request, error) { return ask.NewVmsRequest(c.base+"/", p) }, v1.ParseVMs)
}

// optional is the value of a parameter, nil where it is not given.
func optional[T ~string](given map[string][]string, name string) *T {
	if len(given[name]) == 0 || given[name][0] == "" {
		return nil
	}
	v := T(given[name][0])
	return &v
}

// optionalList are the values of a parameter, nil where it is not given.
func optionalList(given map[string][]string, name string) *[]string {
	if list := given[name]; len(list) > 0 {
		return &list
	}
	return nil
}

// limit is how many elements an answer may have, nil where that is not said.
func limit(q query.Query) *int {
	if q.Limit <= 0 {
		return nil
	}
	return &q.Limit
}

// Rates asks what every workload uses at present, by the latest window of its node.
func (c *Client) Rates(ctx context.Context) ([]live.NodeRates, error) {
	return get(ctx, c, func() (*http.Request, error) { return ask.NewRatesRequest(c.base+"/", nil) }, v1.ParseRates)
}

// get asks a question and reads its answer.
func get[T any](ctx context.Context, c *Client, request func() (*http.Request, error), parse func([]byte) (T, error)) (answer T, err error) {
	r, err := request()
	if err != nil {
		return answer, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	body, err := doTimeout(ctx, c.http, r.Method, r.URL.String(), nil)
	if err != nil {
		return answer, c.explain(err)
	}
	if answer, err = parse(body); err != nil {
		return answer, fault.WithHint(fmt.Errorf("server %s: %w", c.base, err), "this mete may be older than the server's: see mete --version")
	}
	return answer, nil
}

// explain says which server an error is of, and what to do where none is there.
func (c *Client) explain(err error) error {
	if _, ok := errors.AsType[*serverError](err); ok || errors.Is(err, context.Canceled) {
		return err // in the server's own words
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

// A serverError is an error that a server answered with.
type serverError struct{ error }

func (r *serverError) Unwrap() error { return r.error }

// doTimeout sends a request and returns the body of its answer.
func doTimeout(ctx context.Context, c *http.Client, method, target string, body []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return roundTrip(ctx, c, method, target, body)
}

// roundTrip asks, and waits for the answer as long as ctx lets it.
func roundTrip(ctx context.Context, c *http.Client, method, target string, body []byte) (answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, networkError(ctx, err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, networkError(ctx, err)
	case len(answer) > maxAnswer:
		return nil, fmt.Errorf("answer of more than %d bytes: %w", maxAnswer, fault.ErrInvalid)
	case resp.StatusCode/100 != 2:
		return nil, responseError(resp, answer)
	}
	return answer, nil
}

// networkError says what went wrong on the way. What the standard library puts around
// it repeats the URL.
func networkError(ctx context.Context, err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: %w", answerTimeout, fault.ErrUnavailable)
	case errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrInvalid):
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: nobody listens there: %w: %w", op.Addr, syscall.ECONNREFUSED, fault.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
}

// responseError makes an error of an answer that is none.
func responseError(resp *http.Response, body []byte) error {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p fault.Problem
	if err == nil && kind == fault.ProblemType && json.Unmarshal(body, &p) == nil {
		if p.Status = resp.StatusCode; p.Status == http.StatusInternalServerError && p.Detail == "" {
			return &serverError{errors.New("the server failed; its log says why")}
		}
		p.Detail, p.Hint = clean(p.Detail), clean(p.Hint)
		return &serverError{p.Err()}
	}
	if r := prometheusError(resp.StatusCode, kind, body); r != nil {
		return r
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	if len(text) > 200 {
		text = text[:200]
	}
	if resp.StatusCode == http.StatusBadRequest && resp.Request.URL.Scheme == "http" && strings.Contains(text, "HTTPS server") {
		// The words of Go's own server, before it has a handler.
		https := *resp.Request.URL
		https.Scheme, https.Path, https.RawQuery = "https", "", ""
		return fault.WithHint(&serverError{fmt.Errorf("server http://%s: it speaks TLS, and was asked without: %w", https.Host, fault.ErrInvalid)}, "use "+https.String())
	}
	refusal := &serverError{fault.Problem{Status: resp.StatusCode, Detail: clean(resp.Status + ": " + text)}.Err()}
	return fault.WithHint(refusal, "is this the address of a mete server, and no older one than this mete?")
}

// clean makes a server's words fit for a terminal.
func clean(s string) string { return text.Clean(s) }

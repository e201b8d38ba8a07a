package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mete.dev/mete/internal/model/fault"
)

// version is the version of the API. Its major number changes when an answer loses a key.
const version = "1.0.0"

// An endpoint describes a path that answers GET.
type endpoint struct {
	path, id, tag string
	summary, text string
	schema        string // of its JSON, by the name of [schemas.lookup]
	csv           bool   // it can answer in CSV
	pages         bool   // it has pages, but no CSV
	notFound      bool   // it answers 404 for an unknown node
	forSelf       bool   // its callers are jobs and pods that ask for their own use
}

// A reply writes its own body, since huma would encode it in its own form.
type reply struct {
	Body func(huma.Context)
}

// A description registers the endpoints and collects their OpenAPI description.
type description struct {
	handler *handler
	mux     *http.ServeMux
	api     huma.API
	schemas *schemas
	paths   []string
}

// describe registers all endpoints, their OpenAPI description and the page that shows it. It
// returns the paths of the endpoints and of the description.
func (h *handler) describe(mux *http.ServeMux) []string {
	s := newSchemas()
	cfg := huma.Config{OpenAPI: &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "mete", Version: version,
			Description: "The use of resources by every workload of these machines; the parts sum to the whole. Amounts are in base units, which their keys name; an absent figure is null, never zero; each figure has a quality: measured, apportioned or modelled. Errors are problems of RFC 9457 with a hint."},
		Components: &huma.Components{Schemas: s.registry, SecuritySchemes: map[string]*huma.SecurityScheme{
			"token": {Type: "http", Scheme: "bearer", Description: "created by: mete token create --role viewer. The socket in the state directory of a server needs none."},
			"job":   {Type: "http", Scheme: "bearer", Description: "METE_SELF_TOKEN of a job of mete run, for its own use only."},
			"pod":   {Type: "http", Scheme: "bearer", BearerFormat: "JWT", Description: "service-account token of a pod of Kubernetes with the audience mete, for its own use only."},
		}},
		Security: []map[string][]string{{"token": {}}, {}},
		Tags: []*huma.Tag{
			{Name: "use", Description: "Use in a range of time, and use at present."},
			{Name: "who", Description: "Nodes, workloads, and servers below."},
			{Name: "trust", Description: "Health of the measurements."},
		},
	}}
	// A later server may add keys; readers skip those that they do not know.
	cfg.AllowAdditionalPropertiesByDefault = true
	d := &description{handler: h, mux: mux, schemas: s, api: humago.New(mux, cfg)}
	s.fill()
	d.registerUsage()
	d.registerSelf()
	d.registerInventory()
	d.registerHealth()
	d.registerHealthz()
	s.finish()
	const openAPIPath = "/openapi.json"
	d.registerFile(openAPIPath, "application/openapi+json", sync.OnceValue(d.encode))
	d.paths = append(d.paths, openAPIPath)
	d.registerDocs()
	return d.paths
}

// encode writes the description as JSON.
func (d *description) encode() []byte {
	text, err := json.Marshal(d.api.OpenAPI())
	if err != nil {
		panic("api: " + err.Error()) // it depends on nothing but the program
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", " "); err != nil {
		panic("api: " + err.Error())
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// register adds an endpoint whose parameters are the fields of I, and no others. ask computes its
// answer.
func register[I any, P interface {
	*I
	parameters
}](d *description, e endpoint, ask func(context.Context, P) (*response, error)) {
	op := huma.Operation{OperationID: e.id, Method: http.MethodGet, Path: e.path, Tags: []string{e.tag}, Summary: e.summary, Description: e.text,
		SkipValidateParams: true, Responses: d.responses(&e), Middlewares: huma.Middlewares{d.handler.admit(e.forSelf)}}
	if e.forSelf {
		op.Security = []map[string][]string{{"job": {}}, {"pod": {}}}
	}
	huma.Register(d.api, op, func(_ context.Context, in *I) (*reply, error) {
		return &reply{func(c huma.Context) {
			r, w := humago.Unwrap(c)
			p := P(in)
			d.handler.answer(w, r, e.id, p, func(ctx context.Context) (*response, error) { return ask(ctx, p) })
		}}, nil
	})
	d.paths = append(d.paths, e.path)
	d.rejectOtherMethods(e.path)
}

// rejectOtherMethods refuses all methods other than GET and HEAD at a path.
func (d *description) rejectOtherMethods(path string) {
	d.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { allowMethods(w, r, http.MethodGet, http.MethodHead) })
}

// responses describes the answers of an endpoint, by status.
func (d *description) responses(e *endpoint) map[string]*huma.Response {
	text := func(s string) *huma.Param {
		return &huma.Param{Description: s, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	ok := &huma.Response{Description: "the answer", Headers: map[string]*huma.Param{"ETag": text("for If-None-Match")},
		Content: map[string]*huma.MediaType{typeJSON: {Schema: d.schemas.lookup(e.schema)}}}
	if e.csv {
		ok.Content["text/csv"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Description: "a header and a row for each element, with the keys of the JSON form; absent is empty"}}
	}
	if e.csv || e.pages {
		ok.Headers["Link"] = text(`URL of the next page, with rel="next"; absent on the last page`)
	}
	out := map[string]*huma.Response{"200": ok, "304": {Description: "the answer has the ETag that If-None-Match names"}, "default": d.problem("the server failed, or does not support this")}
	for status, what := range map[int]string{400: "a parameter is unknown or invalid, or the answer would be too large", 401: "authentication is required", 403: "the caller may not ask this", 503: "it may work later: Retry-After says when"} {
		out[strconv.Itoa(status)] = d.problem(what)
	}
	if e.forSelf {
		out["404"] = d.problem("the server does not know the node or pod")
		out["429"] = d.problem("too many wrong tokens: Retry-After says when to try again")
	} else if e.notFound {
		out["404"] = d.problem("the node does not exist, or the caller may not see it")
	}
	return out
}

// problem describes an error answer.
func (d *description) problem(what string) *huma.Response {
	return &huma.Response{Description: what, Content: map[string]*huma.MediaType{fault.ProblemType: {Schema: d.schemas.lookup("problem")}}}
}

// registerHealthz registers a path that always answers.
func (d *description) registerHealthz() {
	const path = "/healthz"
	d.api.OpenAPI().AddOperation(&huma.Operation{OperationID: "healthz", Method: http.MethodGet, Path: path, Tags: []string{"trust"},
		Summary: "Whether the server answers", Security: []map[string][]string{{}},
		Responses: map[string]*huma.Response{"200": {Description: "it does", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}}}})
	d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte("ok\n")) // an error means that the client disconnected
	})
	d.paths = append(d.paths, path)
	d.rejectOtherMethods(path)
}

// registerFile registers a file that needs no authorization.
func (d *description) registerFile(path, mediaType string, body func() []byte) {
	d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		sendTagged(w, r, encoded(body()))
	})
	d.rejectOtherMethods(path)
}

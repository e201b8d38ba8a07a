package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mete.dev/mete/internal/model/fault"
)

// version is that of what can be asked: the first number changes when an answer
// loses something that it had.
const version = "1.0.0"

// An endpoint says what a question is.
type endpoint struct {
	path, id, tag string
	summary, text string
	schema        string // of its JSON, by the name of [schemas.lookup]
	csv, notFound bool   // it can be had as CSV; what it names may not be there
	forJobs       bool   // it is for jobs about themselves
}

// A reply is what a handler leaves to be written: it writes by itself, as the
// bytes are made already.
type reply struct {
	Body func(huma.Context)
}

// A description is what can be asked, and the handlers of that.
type description struct {
	handler *handler
	mux     *http.ServeMux
	api     huma.API
	schemas *schemas
	paths   []string
}

// describe registers all questions, their description, and its page, and returns
// their paths.
func (h *handler) describe(mux *http.ServeMux) []string {
	s := newSchemas()
	cfg := huma.Config{OpenAPI: &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "mete", Version: version,
			Description: "What every workload of these machines used, so that the parts sum to the whole. Amounts are in base units, which their keys name; what nobody saw is null, never zero; every figure says whether it was measured, apportioned or modelled. Errors are problems of RFC 9457 that say what to try next."},
		Components: &huma.Components{Schemas: s.registry, SecuritySchemes: map[string]*huma.SecurityScheme{
			"token": {Type: "http", Scheme: "bearer", Description: "made by: mete token create --role viewer. A server that listens on the loopback alone takes questions of its own machine without one."},
			"job":   {Type: "http", Scheme: "bearer", Description: "METE_SELF_TOKEN of a job of mete run: good for its own use alone."},
		}},
		Security: []map[string][]string{{"token": {}}, {}},
		Tags: []*huma.Tag{
			{Name: "use", Description: "What was used, and what is used now."},
			{Name: "who", Description: "Machines, workloads, and the servers that tell of them."},
			{Name: "trust", Description: "How well all that is measured."},
		},
	}}
	// A later server may tell more; who reads its answers skips what he does not know.
	cfg.AllowAdditionalPropertiesByDefault = true
	d := &description{handler: h, mux: mux, schemas: s, api: humago.New(mux, cfg)}
	s.fill()
	d.registerUsage()
	d.registerSelf()
	d.registerInventory()
	d.registerHealth()
	d.registerHealthz()
	s.finish()
	d.registerFile("/openapi.json", "application/openapi+json", sync.OnceValue(d.encode))
	d.registerDocs()
	return d.paths
}

// encode writes the description as JSON.
func (d *description) encode() []byte {
	text, err := json.Marshal(d.api.OpenAPI())
	if err != nil {
		panic("api: " + err.Error()) // it is made of the program alone
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", " "); err != nil {
		panic("api: " + err.Error())
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// register adds a question whose parameters are the fields of I, and no
// others: what is not described is refused.
func register[I any](d *description, a endpoint, ask queryFunc) {
	op := huma.Operation{OperationID: a.id, Method: http.MethodGet, Path: a.path, Tags: []string{a.tag}, Summary: a.summary, Description: a.text,
		SkipValidateParams: true, Responses: d.responses(&a)}
	if a.forJobs {
		op.Security = []map[string][]string{{"job": {}}}
	}
	var answer http.HandlerFunc
	huma.Register(d.api, op, func(context.Context, *I) (*reply, error) {
		return &reply{func(c huma.Context) {
			r, w := humago.Unwrap(c)
			answer(w, r)
		}}, nil
	})
	var allowed []string
	for _, p := range d.api.OpenAPI().Paths[a.path].Get.Parameters {
		if p.In == "query" {
			allowed = append(allowed, p.Name)
		}
	}
	answer = d.handler.queryHandler(a.id, allowed, a.forJobs, ask)
	d.rejectOtherMethods(a.path)
}

// rejectOtherMethods refuses all other methods at a path.
func (d *description) rejectOtherMethods(path string) {
	d.paths = append(d.paths, path)
	d.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { allowMethods(w, r, http.MethodGet, http.MethodHead) })
}

// responses describes the answers to a question.
func (d *description) responses(a *endpoint) map[string]*huma.Response {
	text := func(s string) *huma.Param {
		return &huma.Param{Description: s, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	ok := &huma.Response{Description: "the answer", Headers: map[string]*huma.Param{"ETag": text("of this answer, for If-None-Match")},
		Content: map[string]*huma.MediaType{typeJSON: {Schema: d.schemas.lookup(a.schema)}}}
	if a.csv {
		ok.Content["text/csv"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Description: "a header, and a row for each element, with the keys of the JSON form; absent is empty"}}
		ok.Headers["Link"] = text(`where the next page is, with rel="next"; absent on the last one`)
	}
	out := map[string]*huma.Response{"200": ok, "304": {Description: "the answer is what If-None-Match names"}, "default": d.problem("the server failed, or does not know of such things")}
	for status, what := range map[int]string{400: "a parameter means nothing, or too much was asked for", 401: "nothing says who asks", 403: "who asks may not", 503: "it may work later"} {
		out[strconv.Itoa(status)] = d.problem(what)
	}
	if a.forJobs {
		out["404"] = d.problem("the server does not know the machine any more")
		out["429"] = d.problem("too many wrong tokens: Retry-After says when to try again")
	} else if a.notFound {
		out["404"] = d.problem("there is no such node, or who asks may not see it")
	}
	return out
}

// problem describes a refusal.
func (d *description) problem(what string) *huma.Response {
	return &huma.Response{Description: what, Content: map[string]*huma.MediaType{fault.ProblemType: {Schema: d.schemas.lookup("problem")}}}
}

// registerHealthz registers the path by which is seen that the server answers at all.
func (d *description) registerHealthz() {
	const path = "/healthz"
	d.api.OpenAPI().AddOperation(&huma.Operation{OperationID: "healthz", Method: http.MethodGet, Path: path, Tags: []string{"trust"},
		Summary: "Whether the server answers", Security: []map[string][]string{{}},
		Responses: map[string]*huma.Response{"200": {Description: "it does", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}}}})
	d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte("ok\n")) // who has gone away needs no answer
	})
	d.rejectOtherMethods(path)
}

// registerFile registers a file that is for everybody.
func (d *description) registerFile(path, kind string, body func() []byte) {
	d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		sendTagged(w, r, body())
	})
	d.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { allowMethods(w, r, http.MethodGet, http.MethodHead) })
	if !slices.Contains(d.paths, path) {
		d.paths = append(d.paths, path)
	}
}

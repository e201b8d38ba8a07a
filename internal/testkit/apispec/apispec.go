// Package apispec checks handlers against the API description that they serve.
package apispec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"pgregory.net/rapid"
)

// A Document is the API description of a handler.
type Document struct {
	Paths map[string]struct{ Get Operation }

	valid validator.Validator
}

// An Operation is the operation of a path.
type Operation struct {
	OperationID, Summary string
	Parameters           []Parameter
	Security             []map[string][]string // overrides the default of the document
}

// isPublic reports whether the operation needs no token.
func (o *Operation) isPublic() bool {
	return o.Security == nil || slices.ContainsFunc(o.Security, func(s map[string][]string) bool { return len(s) == 0 || s["token"] != nil })
}

// A Parameter is a parameter of an operation.
type Parameter struct {
	Name, In, Description string
	Schema                Schema
}

// A Schema limits the values of a parameter.
type Schema struct {
	Type             string
	Enum, Examples   []any
	Minimum, Maximum *float64
	Items            *Schema
}

// Read reads the description that h serves, and fails the test if it is not valid OpenAPI
// 3.1. Answers are validated strictly: an unknown key is an error.
func Read(t *testing.T, h http.Handler) *Document {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(`"openapi": "3.1.`)) {
		t.Fatalf("/openapi.json: %d, %.300s", w.Code, w.Body)
	}
	d := &Document{}
	if err := json.Unmarshal(w.Body.Bytes(), d); err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) validator.Validator {
		doc, err := libopenapi.NewDocument(text)
		if err != nil {
			t.Fatal(err)
		}
		v, errs := validator.NewValidator(doc)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		t.Cleanup(v.Release)
		return v
	}
	if ok, errs := check(w.Body.Bytes()).ValidateDocument(); !ok {
		for _, e := range errs {
			t.Errorf("invalid description: %s: %s", e.Message, e.Reason)
			for _, s := range e.SchemaValidationErrors {
				t.Errorf("  %s: %s", s.FieldPath, s.Reason)
			}
		}
		t.FailNow()
	}
	d.valid = check(bytes.ReplaceAll(w.Body.Bytes(), []byte(`"additionalProperties": true`), []byte(`"additionalProperties": false`)))
	return d
}

// Check fails the test if the status, media type or body of an answer does not match the
// description.
func (d *Document) Check(t rapid.TB, r *http.Request, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code >= 500 {
		t.Fatalf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
	}
	if ok, errs := d.valid.ValidateHttpResponse(r, w.Result()); !ok {
		for _, e := range errs {
			t.Errorf("%s %s, %v: %d does not match the description: %s: %s", r.Method, r.URL, r.Header, w.Code, e.Message, e.Reason)
			for _, s := range e.SchemaValidationErrors {
				t.Errorf("  %s: %s", s.FieldPath, s.Reason)
			}
		}
		t.Fatalf("%.2000s", w.Body)
	}
}

// Fuzz sends requests to all paths of h that the description allows, and some that it does
// not. The former must be answered with 200 or 404, the latter may be refused with a
// problem; no answer may be a server error. String parameters take the values that words
// has for their names.
func (d *Document) Fuzz(t *testing.T, h http.Handler, words map[string][]string) {
	paths := slices.Sorted(maps.Keys(d.Paths))
	asked := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		for _, path := range paths {
			q, good := url.Values{}, true
			choices := []string{"none", "right"}
			if rapid.Bool().Draw(t, path) {
				choices = []string{"none", "right", "wrong", "twice"}
			}
			r := httptest.NewRequest(http.MethodGet, path, nil)
			for _, p := range d.Paths[path].Get.Parameters {
				how := rapid.SampledFrom(choices).Draw(t, p.Name)
				if how == "none" {
					continue
				}
				value := p.validValue(t, words)
				switch {
				case how == "wrong":
					value, good = invalidValues.Draw(t, p.Name+" wrong"), false
				case how == "twice" && p.In == "query":
					q.Add(p.Name, p.validValue(t, words))
					good = false
				}
				if p.In == "query" {
					q.Add(p.Name, value)
				} else if good {
					r.Header.Set(p.Name, value)
				}
			}
			if len(choices) > 2 && rapid.IntRange(0, 20).Draw(t, "unknown") == 0 {
				q.Add(invalidValues.Draw(t, "name"), invalidValues.Draw(t, "value"))
				good = false
			}
			r.URL.RawQuery = q.Encode()
			if len(choices) > 2 && rapid.IntRange(0, 20).Draw(t, "raw") == 0 {
				r.URL.RawQuery += rapid.SampledFrom([]string{"&%", "&a;b", "&=", "&%zz=1", "&from"}).Draw(t, "end")
				good = false
			}
			r.Header.Set("Accept", rapid.SampledFrom([]string{"", "*/*", "application/json", "text/csv", "text/csv;q=0.5, application/json;q=0.2", "text/html", ";;,q=", "text/csv;q=x"}).Draw(t, "Accept"))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			d.Check(t, r, w)
			question := d.Paths[path].Get
			if !question.isPublic() && (w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden) {
				asked[path+" 200"]++ // an operation that this caller may not use
				continue
			}
			if good && w.Code != http.StatusOK && w.Code != http.StatusNotModified && w.Code != http.StatusNotFound {
				t.Fatalf("GET %s: valid by the description, but the answer is %d %s", r.URL, w.Code, w.Body)
			}
			asked[fmt.Sprintf("%s %d", path, w.Code)]++
		}
	})
	for _, path := range paths {
		if asked[path+" 200"] == 0 {
			t.Errorf("%s was never answered: %v", path, asked)
		}
	}
	t.Logf("%v", asked)
}

// invalidValues are texts that are invalid for most parameters.
var invalidValues = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "0", "-1", "99999999999999999999", "1e400", "NaN", "null", "\x00", "'", `"`, "';DROP TABLE node;--", "<script>",
	"../../etc/passwd", "job", "job=", "=", "label:=x", "label:", ",", "job,job", "-", "--1h", "-1y", "9999-12-31T23:59:59Z", "0000-01-01", "2026-13-01", "%00", "\xff\xfe", strings.Repeat("9", 5000)}))

// validValue draws a value that the schema allows.
func (p *Parameter) validValue(t *rapid.T, words map[string][]string) string {
	s := &p.Schema
	if s.Type == "array" {
		s = s.Items
	}
	switch {
	case words[p.Name] != nil:
		return rapid.SampledFrom(words[p.Name]).Draw(t, p.Name)
	case s.Enum != nil:
		return fmt.Sprint(rapid.SampledFrom(s.Enum).Draw(t, p.Name))
	case s.Type == "integer" && s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprint(rapid.IntRange(int(*s.Minimum), int(*s.Maximum)).Draw(t, p.Name))
	case s.Type == "integer":
		return fmt.Sprint(rapid.Int().Draw(t, p.Name))
	case p.Schema.Examples != nil:
		return first(p.Schema.Examples[0])
	case s.Examples != nil:
		return first(s.Examples[0])
	}
	return rapid.String().Draw(t, p.Name)
}

func first(v any) string {
	if list, ok := v.([]any); ok && len(list) > 0 {
		v = list[0]
	}
	return fmt.Sprint(v)
}

package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const components = "#/components/schemas/"

// schemas are the schemas of what is answered, made of the types that it is written
// from.
type schemas struct {
	registry huma.Registry
	byName   map[string]*huma.Schema
}

// The types that stand in for others, of which only the text is known.
type (
	quality string
	kind    string
	decimal string
)

// Schema implements huma.SchemaProvider.
func (quality) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.Qualities()), Description: "how the figure came about"}
}

// Schema implements huma.SchemaProvider.
func (kind) Schema(huma.Registry) *huma.Schema {
	var all []string
	for k := workload.Unknown; !strings.HasPrefix(k.String(), "kind("); k++ {
		all = append(all, k.String())
	}
	return &huma.Schema{Type: huma.TypeString, Enum: words(all)}
}

// Schema implements huma.SchemaProvider.
func (decimal) Schema(huma.Registry) *huma.Schema { return oneOf("number", "null") }

func words(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// oneOf is the schema of a value of one of several types.
func oneOf(types ...string) *huma.Schema {
	return &huma.Schema{Extensions: map[string]any{"type": types}}
}

func newSchemas() *schemas {
	s := &schemas{byName: map[string]*huma.Schema{}}
	s.registry = huma.NewMapRegistry(components, func(t reflect.Type, hint string) string {
		return strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "JSON")
	})
	s.registry.RegisterTypeAlias(reflect.TypeFor[usage.Quality](), reflect.TypeFor[quality]())
	s.registry.RegisterTypeAlias(reflect.TypeFor[workload.Kind](), reflect.TypeFor[kind]())
	s.registry.RegisterTypeAlias(reflect.TypeFor[json.RawMessage](), reflect.TypeFor[decimal]())
	return s
}

// fill makes the schemas of all that is answered.
func (s *schemas) fill() {
	for name, value := range v1.DocumentTypes() {
		s.byName[name] = s.registry.Schema(reflect.TypeOf(value), true, name)
	}
	s.byName["problem"] = s.registry.Schema(reflect.TypeFor[fault.Problem](), true, "Problem")
	s.addFigures()
}

// lookup is the schema of an answer.
func (s *schemas) lookup(name string) *huma.Schema {
	if s.byName[name] == nil {
		panic("api: nothing is written as " + name)
	}
	return s.byName[name]
}

// add puts a schema that is of no type among the others.
func (s *schemas) add(name string, schema *huma.Schema) *huma.Schema {
	s.registry.Map()[name] = schema
	return &huma.Schema{Ref: components + name}
}

// addFigures makes the schemas of what has figures, whose keys depend on the question.
func (s *schemas) addFigures() {
	str, num := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} },
		func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeNumber, Description: doc} }
	when := func(doc string) *huma.Schema {
		return &huma.Schema{Type: huma.TypeString, Format: "date-time", Description: doc}
	}
	count := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger, Description: doc} }
	figures := func() map[string]*huma.Schema {
		out := map[string]*huma.Schema{
			"covered_seconds": num("summed over workloads, for how long each was measured"),
			"quality":         {Type: huma.TypeObject, Description: "of each figure, by its key", AdditionalProperties: quality("").Schema(nil)},
		}
		for _, f := range v1.Figures() {
			schema := oneOf("number", "null")
			if f.LargeAsText {
				schema = oneOf("number", "string", "null")
			}
			schema.Description = f.Help
			out[f.Key] = schema
		}
		return out
	}
	total := figures()
	group := figures()
	group["nodes"] = count("how many nodes it ran on")
	for key, doc := range map[string]string{"first_at": "start of the first minute with use", "last_at": "end of the last one"} {
		group[key] = when(doc)
		group[key].Nullable = true
	}
	group["wall_seconds"] = oneOf("number", "null")
	both := []string{"covered_seconds", "quality"}
	g := s.add("Group", &huma.Schema{Type: huma.TypeObject, Properties: group, Required: append([]string{"nodes", "first_at", "last_at", "wall_seconds"}, both...),
		Description:          "what one group used; beside its figures it has a key for each dimension by which was asked, empty for what has none",
		AdditionalProperties: str("the group's name in that dimension")})
	t := s.add("Total", &huma.Schema{Type: huma.TypeObject, Properties: total, Required: both, Description: "a sum of figures", AdditionalProperties: true})
	orNone := func(doc string) *huma.Schema {
		return &huma.Schema{AnyOf: []*huma.Schema{t, {Type: "null"}}, Description: doc}
	}
	groups := func(doc string) *huma.Schema {
		return &huma.Schema{Type: huma.TypeArray, Items: g, Description: doc}
	}
	next := str("where the next page begins: give it as cursor; absent on the last page")
	over := num("over which averages are taken: for how long in the range the node that was measured longest was")
	s.byName["usage"] = s.add("Usage", object(map[string]*huma.Schema{
		"format": count("of this form: a reader must not guess at a higher one"), "from": when("of the sums: earlier than asked where only whole hours or days are kept"), "to": when(""),
		"averages_over_seconds": over, "by": {Type: huma.TypeArray, Items: str("a dimension")}, "gaps": count("that touch the range"),
		"idle": str("by what idle energy is divided"), "nested": str("what became of nodes that are guests of others"),
		"nested_nodes": count("how many nodes the groups are without"), "groups": groups("by falling CPU time, or by what was asked"),
		"nested_groups": groups("of guests, which are in no sum"), "nested_more": count("of them beyond the limit"),
		"rest_groups": count("beyond the limit"), "rest": orNone("what those used together"), "total": orNone("the sum of groups and rest"),
		"whole": orNone("what the machines had: without filters, the total"),
	}))
	self := s.registry.Map()["Self"]
	self.Properties["usage"] = orNone("what it used in all its life, as far as that is booked; averages are over covered_seconds; null where nothing is booked yet")
	self.Required = append(self.Required, "usage")
	s.byName["jobs"] = s.add("Jobs", object(map[string]*huma.Schema{"from": when(""), "to": when(""), "averages_over_seconds": over,
		"jobs": groups("by cluster and name"), "next_cursor": next}, "next_cursor"))
}

// object is one whose properties are all there, apart from some.
func object(properties map[string]*huma.Schema, optional ...string) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeObject, Properties: properties, AdditionalProperties: true}
	for name := range properties {
		if len(optional) == 0 || name != optional[0] {
			s.Required = append(s.Required, name)
		}
	}
	slices.Sort(s.Required)
	return s
}

// finish says of the schemas what their types do not: that a pointer to a struct
// may be null, and that a number may be written as a string.
func (s *schemas) finish() {
	all := s.registry.Map()
	// What huma writes as an error, which here is a problem of our own.
	delete(all, "ErrorModel")
	delete(all, "ErrorDetail")
	for name, schema := range all {
		t := s.registry.TypeFromRef(components + name)
		if t == nil {
			continue
		}
		for _, f := range reflect.VisibleFields(t) {
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := schema.Properties[key]
			switch {
			case p == nil:
			case strings.Contains(options, "string"):
				p.Type, p.Format, p.Minimum = huma.TypeString, "", nil
			case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct && f.Type.Elem() != reflect.TypeFor[time.Time]():
				if p.Ref == "" {
					panic(fmt.Sprintf("api: %s.%s has no schema", name, key))
				}
				schema.Properties[key] = &huma.Schema{AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}, Description: p.Description}
			}
		}
	}
}

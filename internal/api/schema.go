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

// schemas are the schemas of all answers, made of the types that they are written from.
type schemas struct {
	registry huma.Registry
	byName   map[string]*huma.Schema
}

// The types that stand for others in the description.
type (
	quality string // of [usage.Quality]
	kind    string // of [workload.Kind]
	decimal string // of [json.Number]
	group   string // of [v1.Group]
	figures string // of [v1.Figures]
)

// Schema implements huma.SchemaProvider.
func (quality) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: words(v1.Qualities()), Description: "how the figure was obtained"}
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
func (decimal) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeNumber} }

// Schema implements huma.SchemaProvider.
func (group) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Ref: components + "Group"} }

// Schema implements huma.SchemaProvider.
func (figures) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Ref: components + "Total"} }

func words(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// oneOf returns the schema of a value that has one of several types.
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
	s.registry.RegisterTypeAlias(reflect.TypeFor[json.Number](), reflect.TypeFor[decimal]())
	s.registry.RegisterTypeAlias(reflect.TypeFor[v1.Seconds](), reflect.TypeFor[float64]())
	s.registry.RegisterTypeAlias(reflect.TypeFor[v1.Group](), reflect.TypeFor[group]())
	s.registry.RegisterTypeAlias(reflect.TypeFor[v1.Figures](), reflect.TypeFor[figures]())
	return s
}

// fill makes the schemas of all answers.
func (s *schemas) fill() {
	for name, value := range v1.DocumentTypes() {
		s.byName[name] = s.registry.Schema(reflect.TypeOf(value), true, name)
	}
	for name, value := range v1.ElementTypes() {
		items := &huma.Schema{Type: huma.TypeArray, Items: s.registry.Schema(reflect.TypeOf(value), true, name)}
		properties := map[string]*huma.Schema{value.ListKey(): items, "next_cursor": {Type: huma.TypeString, Description: "start of the next page, for the parameter cursor; absent on the last page"}}
		s.byName[name] = s.add(strings.ToUpper(name[:1])+name[1:], object(properties, "next_cursor"))
	}
	s.byName["problem"] = s.registry.Schema(reflect.TypeFor[fault.Problem](), true, "Problem")
	s.addFigures()
}

// lookup returns the schema of an answer.
func (s *schemas) lookup(name string) *huma.Schema {
	if s.byName[name] == nil {
		panic("api: nothing is written as " + name)
	}
	return s.byName[name]
}

// add adds a schema that no type has.
func (s *schemas) add(name string, schema *huma.Schema) *huma.Schema {
	s.registry.Map()[name] = schema
	return &huma.Schema{Ref: components + name}
}

// addFigures adds the schemas of what has figures, which have a key each.
func (s *schemas) addFigures() {
	figures := func() map[string]*huma.Schema {
		out := map[string]*huma.Schema{
			"covered_seconds": {Type: huma.TypeNumber, Description: "for how long each workload was measured, summed over workloads"},
			"quality":         {Type: huma.TypeObject, Description: "quality of each figure, by its key", AdditionalProperties: quality("").Schema(nil)},
		}
		for _, f := range v1.ListFigures() {
			schema := oneOf("number", "null")
			if f.LargeAsText {
				schema = oneOf("number", "string", "null")
			}
			schema.Description = f.Help
			out[f.Key] = schema
		}
		return out
	}
	group := figures()
	group["nodes"] = &huma.Schema{Type: huma.TypeInteger, Description: "number of nodes that it ran on"}
	for key, doc := range map[string]string{"first_at": "start of the first minute with use", "last_at": "end of the last minute with use"} {
		group[key] = &huma.Schema{Type: huma.TypeString, Format: "date-time", Description: doc, Nullable: true}
	}
	group["wall_seconds"] = oneOf("number", "null")
	both := []string{"covered_seconds", "quality"}
	s.add("Group", &huma.Schema{Type: huma.TypeObject, Properties: group, Required: append([]string{"nodes", "first_at", "last_at", "wall_seconds"}, both...),
		Description:          "use of one group. It also has a key for each dimension of the query, with an empty value if the group has none",
		AdditionalProperties: &huma.Schema{Type: huma.TypeString, Description: "the group's name in that dimension"}})
	s.add("Total", &huma.Schema{Type: huma.TypeObject, Properties: figures(), Required: both, Description: "a sum of figures", AdditionalProperties: true})
}

// object is the schema of an object that has all of its properties, apart from the
// optional ones.
func object(properties map[string]*huma.Schema, optional ...string) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeObject, Properties: properties, AdditionalProperties: true}
	for name := range properties {
		if !slices.Contains(optional, name) {
			s.Required = append(s.Required, name)
		}
	}
	slices.Sort(s.Required)
	return s
}

// finish adds to the schemas what huma does not read off their types: that a pointer to
// a struct or a decimal may be null, and that a number may be written as a string.
func (s *schemas) finish() {
	all := s.registry.Map()
	// huma's own form of errors is not in use.
	delete(all, "ErrorModel")
	delete(all, "ErrorDetail")
	all["Edge"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Description: "the name of its group in a dimension of the query, which is the key; empty if the group has none"}
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
			case f.Type == reflect.TypeFor[*json.Number]():
				p.Type, p.Nullable, p.Extensions = "", false, oneOf("number", "null").Extensions
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

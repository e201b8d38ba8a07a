package external

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A Spec is a meter as the file of meters has it: what it is and how it is read.
type Spec struct {
	Meter `yaml:"-"`

	Name string `yaml:"name"` // unique in the file
	Type string `yaml:"type"` // one of Types
	// URL is the address of the meter: http or https, for MQTT tcp or ssl (mqtt, mqtts).
	URL     string `yaml:"url"`
	Query   string `yaml:"query"`   // of Prometheus: its result is one value
	Topic   string `yaml:"topic"`   // of MQTT, without wildcards
	File    string `yaml:"file"`    // holds the value
	Chassis string `yaml:"chassis"` // of Redfish: its id; "" selects the only chassis with a reading
	// Path leads to the value in JSON; "" means that the whole text is the number.
	Path Path `yaml:"path"`
	Unit Unit `yaml:"unit"`
	// KindName is power or energy; "" selects the kind of the unit.
	KindName     string        `yaml:"kind"`
	WrapAt       float64       `yaml:"wrap"` // in Unit; 0 is never
	ErrorPercent *float64      `yaml:"error_percent"`
	Interval     time.Duration `yaml:"interval"`
	StaleAfter   time.Duration `yaml:"stale"`
	WaitFor      time.Duration `yaml:"wait"`
	MaxWatts     float64       `yaml:"max_watts"`
	Nodes        []string      `yaml:"nodes"`

	User     string `yaml:"user"`
	Password Secret `yaml:",inline"`
	Token    Token  `yaml:",inline"`
	CA       string `yaml:"ca_file"`      // certificates to believe, in PEM, beside the system's
	Insecure bool   `yaml:"tls_insecure"` // believe any certificate

	line int
}

// A Secret is a password, or where it is: the name of a variable of the
// environment, or of a file.
type Secret struct {
	Clear string `yaml:"password"`
	Env   string `yaml:"password_env"`
	File  string `yaml:"password_file"`
}

// A Token is the same of a bearer token.
type Token struct {
	Clear string `yaml:"token"`
	Env   string `yaml:"token_env"`
	File  string `yaml:"token_file"`
}

// The types of meter.
const (
	Redfish    = "redfish"
	Prometheus = "prometheus"
	HTTP       = "http"
	MQTT       = "mqtt"
	File       = "file"
)

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *Spec) UnmarshalYAML(n ast.Node) error {
	type plain Spec
	err := yaml.NodeToValue(n, (*plain)(s), yaml.Strict())
	s.line = n.GetToken().Position.Line
	if _, placed := errors.AsType[yaml.Error](err); err != nil && !placed {
		return fmt.Errorf("line %d: meter %q: %w", s.line, s.Name, err)
	}
	return err
}

// Parse reads a file of meters, in YAML or JSON: a list below the key meters. The file may hold a
// secret only if private is true: no other user can read the file. An error wraps fault.ErrInvalid
// and names the line.
func Parse(text []byte, private bool) ([]Spec, error) {
	var file struct {
		Meters []Spec `yaml:"meters"`
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSpace(yaml.FormatError(err, false, false)), fault.ErrInvalid)
	}
	var errs []error
	names := map[string]bool{}
	for i := range file.Meters {
		s := &file.Meters[i]
		err := s.check(private)
		if names[s.Name] && err == nil {
			err = errors.New("name: there is another meter of this name")
		}
		names[s.Name] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: meter %q: %w: %w", s.line, s.Name, err, fault.ErrInvalid))
		}
	}
	if len(file.Meters) == 0 {
		errs = append(errs, fmt.Errorf("there is no list of meters below the key meters: %w", fault.ErrInvalid))
	}
	return file.Meters, errors.Join(errs...)
}

// typeKeys are the keys that each type must and may have, beside those of all.
var typeKeys = map[string]struct{ must, may []string }{
	Redfish:    {[]string{"url"}, []string{"chassis", "user", "password", "ca_file", "tls_insecure"}},
	Prometheus: {[]string{"url", "query"}, []string{"user", "password", "token", "ca_file", "tls_insecure"}},
	HTTP:       {[]string{"url"}, []string{"path", "user", "password", "token", "ca_file", "tls_insecure"}},
	MQTT:       {[]string{"url", "topic"}, []string{"path", "user", "password", "ca_file", "tls_insecure"}},
	File:       {[]string{"file"}, []string{"path"}},
}

// check says what is wrong with s, and makes its Meter.
func (s *Spec) check(private bool) error {
	want, ok := typeKeys[s.Type]
	switch {
	case s.Name == "":
		return errors.New("name: it has none")
	case !ok:
		return fmt.Errorf("type %q is none of redfish, prometheus, http, mqtt and file", s.Type)
	case s.Unit == (Unit{}):
		return errors.New("unit: it has none: W, kW, mW, J, kJ, Wh or kWh")
	case s.KindName != "" && s.KindName != s.Unit.Kind.String():
		return fmt.Errorf("kind %q: %s is a unit of %s", s.KindName, s.Unit.Name, s.Unit.Kind)
	case len(s.Nodes) == 0:
		return errors.New("nodes: it feeds none")
	case s.Type == MQTT && strings.ContainsAny(s.Topic, "#+"):
		return fmt.Errorf("topic %q: a meter is one topic, without wildcards", s.Topic)
	case !private && (s.Password.Clear != "" || s.Token.Clear != ""):
		return errors.New("password, token: others can read this file: take away their rights (chmod 600), or use password_env, password_file, token_env or token_file")
	}
	for key, set := range s.givenKeys() {
		switch {
		case set && !slices.Contains(want.must, key) && !slices.Contains(want.may, key):
			return fmt.Errorf("%s: a meter of type %s has none", key, s.Type)
		case !set && slices.Contains(want.must, key):
			return fmt.Errorf("%s: it has none", key)
		}
	}
	return s.checkNumbers()
}

// givenKeys says which of the keys are there that not all types have.
func (s *Spec) givenKeys() map[string]bool {
	return map[string]bool{
		"url": s.URL != "", "query": s.Query != "", "topic": s.Topic != "", "file": s.File != "", "chassis": s.Chassis != "",
		"path": len(s.Path) > 0, "user": s.User != "", "password": s.Password != Secret{}, "token": s.Token != Token{},
		"ca_file": s.CA != "", "tls_insecure": s.Insecure,
	}
}

const (
	defaultInterval     = 10 * time.Second
	stalePower          = 2 * time.Minute
	staleEnergy         = 15 * time.Minute
	maxAge              = 26 * time.Hour // how old what an agent sends can be
	defaultErrorPercent = 5.
	defaultMaxWatts     = 100e3 // no machine draws as much
	maxWatts            = 1e9
)

// checkNumbers checks the numbers, fills in those that are not given, and makes the
// Meter.
func (s *Spec) checkNumbers() error {
	stale := stalePower
	if s.Unit.Kind == power.Energy {
		stale = staleEnergy
	}
	s.Interval = cmp.Or(s.Interval, defaultInterval)
	stale = max(stale, 3*s.Interval)
	percent := defaultErrorPercent
	if s.ErrorPercent != nil {
		percent = *s.ErrorPercent
	}
	watts := cmp.Or(s.MaxWatts, defaultMaxWatts*float64(len(s.Nodes)))
	s.StaleAfter, s.WaitFor = cmp.Or(s.StaleAfter, stale), cmp.Or(s.WaitFor, maxAge)
	wrap := s.WrapAt * float64(s.Unit.Micro)
	switch {
	case s.Interval < time.Second || s.Interval > time.Hour:
		return fmt.Errorf("interval %v: from 1s to 1h", s.Interval)
	case s.StaleAfter < s.Interval || s.StaleAfter > maxAge:
		return fmt.Errorf("stale %v: from the interval (%v) to 26h", s.StaleAfter, s.Interval)
	case s.WaitFor < settleTime || s.WaitFor > maxAge:
		return fmt.Errorf("wait %v: from 2m to 26h", s.WaitFor)
	case !(percent >= 0 && percent <= 100):
		return fmt.Errorf("error_percent %v: from 0 to 100", percent)
	case !(watts > 0 && watts <= maxWatts):
		return fmt.Errorf("max_watts %v: from 0 to %v", watts, maxWatts)
	case !(wrap >= 0 && wrap < math.MaxInt64/2):
		return fmt.Errorf("wrap %v: it is negative or too large", s.WrapAt)
	case wrap > 0 && s.Unit.Kind != power.Energy:
		return errors.New("wrap: only a counter of energy wraps")
	case wrap > 0 && watts*s.Interval.Seconds()*1e6 >= wrap:
		return fmt.Errorf("wrap: at %v W it could wrap unseen between two readings: give a lower max_watts, or a shorter interval", watts)
	}
	s.Meter = Meter{
		Name: s.Name, Kind: s.Unit.Kind, Wrap: int64(wrap), ErrorPPM: int64(percent * power.PPM / 100), MaxPower: int64(watts * 1e6),
		Stale: s.StaleAfter, Wait: s.WaitFor, Nodes: s.Nodes,
	}
	return nil
}

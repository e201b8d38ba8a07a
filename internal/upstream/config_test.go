package upstream_test

import (
	"errors"
	"testing"
	"time"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/states"
	"mete.dev/mete/internal/upstream"
)

func TestValidate(t *testing.T) {
	good := upstream.Default()
	good.URL, good.Dir = "https://core:9797", "/d"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*upstream.Config){
		"no URL":                    func(c *upstream.Config) { c.URL = "" },
		"no directory":              func(c *upstream.Config) { c.Dir = "" },
		"days":                      func(c *upstream.Config) { c.Finest = states.Hour + 1 },
		"no rows":                   func(c *upstream.Config) { c.Rows = 0 },
		"more rows than are taken":  func(c *upstream.Config) { c.Rows = 1 << 30 },
		"without a pause":           func(c *upstream.Config) { c.Every = 0 },
		"trying without a pause":    func(c *upstream.Config) { c.MinBackoff = 0 },
		"longer at first than then": func(c *upstream.Config) { c.MaxBackoff = c.MinBackoff - time.Millisecond },
	} {
		c := good
		change(&c)
		if err := c.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

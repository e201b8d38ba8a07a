package replicate_test

import (
	"errors"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/replicate"
)

func TestValidate(t *testing.T) {
	good := replicate.Default()
	good.URL, good.Dir = "https://core:9797", "/d"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*replicate.Config){
		"no URL":                    func(c *replicate.Config) { c.URL = "" },
		"no directory":              func(c *replicate.Config) { c.Dir = "" },
		"days":                      func(c *replicate.Config) { c.Finest = replica.Hour + 1 },
		"no rows":                   func(c *replicate.Config) { c.PageRows = 0 },
		"more rows than are taken":  func(c *replicate.Config) { c.PageRows = 1 << 30 },
		"without a pause":           func(c *replicate.Config) { c.Interval = 0 },
		"trying without a pause":    func(c *replicate.Config) { c.MinBackoff = 0 },
		"longer at first than then": func(c *replicate.Config) { c.MaxBackoff = c.MinBackoff - time.Millisecond },
	} {
		c := good
		change(&c)
		if err := c.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/charmbracelet/x/term"

	"mete.dev/mete/internal/ui/top"
)

// batch prints c.count ticks, or all until ctx ends. The first failed tick ends it, because a
// script cannot detect a missing one.
func batch(ctx context.Context, c *config, m Meter, out io.Writer) error {
	for n := 0; c.count == 0 || n < c.count; n++ {
		machine, err := m.Next(ctx)
		if err != nil {
			return err
		}
		if c.output == "json" {
			// No HTML escapes: the reader is not a browser.
			enc := json.NewEncoder(out)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(top.Arrange(machine, c.view).Shown(machine)); err != nil {
				return err
			}
			continue
		}
		text := top.Text(machine, columns(out), c.view)
		if n > 0 {
			text = "\n" + text
		}
		if _, err := fmt.Fprint(out, text); err != nil {
			return err
		}
	}
	return nil
}

// columns returns the width of a terminal, else 0: unlimited.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !isTerminal(out) {
		return 0
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return width
}

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/charmbracelet/x/term"

	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
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
			var line bytes.Buffer
			enc := json.NewEncoder(&line)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(top.Arrange(machine, c.view).Shown(machine)); err != nil {
				return err
			}
			if _, err := out.Write(text.JSON(line.Bytes())); err != nil {
				return err
			}
			continue
		}
		page := top.Text(machine, columns(out), c.view)
		if n > 0 {
			page = "\n" + page
		}
		if _, err := fmt.Fprint(out, page); err != nil {
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

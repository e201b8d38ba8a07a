package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
)

// tickMsg is a new state of the machine.
type tickMsg struct{ machine *live.Machine }

// errorMsg is a failed tick.
type errorMsg struct{ err error }

// show runs the screen until the user quits, c.count ticks have passed, ctx ends, or a read fails
// permanently.
func show(ctx context.Context, c *config, m Meter, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f, ok := in.(*os.File); ok && !term.IsTerminal(f.Fd()) {
		tty, _, err := tea.OpenTTY() // mete top < file: read the keyboard from the terminal
		if err != nil {
			return fmt.Errorf("no keyboard: standard input is not a terminal: %w", err)
		}
		defer func() { _ = tty.Close() }() // read only
		in = tty
	}
	screen := newModel(screenView(c), top.NewPainter(out))
	screen.history = newHistory(c.tick)
	if w, ok := m.(watcher); ok {
		screen.watch = w.Watch
	}
	p := tea.NewProgram(screen, tea.WithInput(in), tea.WithOutput(out), tea.WithContext(ctx), tea.WithoutSignalHandler())
	done := make(chan error, 1)
	go func() {
		err := pump(ctx, c, m, p.Send)
		p.Quit()
		done <- err
	}()
	_, err := p.Run()
	stopped := ctx.Err() != nil
	cancel()
	// Close the meter only after its last reading has returned.
	err = errors.Join(<-done, ignoreKilled(err, stopped))
	return err
}

// A watcher is a meter that can break down one workload by process, from the next tick on. Watch
// may be called during Next.
type watcher interface{ Watch(id workload.ID) }

// ignoreKilled drops the error that the end of the context causes.
func ignoreKilled(err error, stopped bool) error {
	if stopped && errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}

// pump sends every tick to the screen. It keeps the meter's pace even while the screen is paused.
func pump(ctx context.Context, c *config, m Meter, send func(tea.Msg)) error {
	for n := 0; c.count == 0 || n < c.count; n++ {
		machine, err := m.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && fatal(err):
			return err
		case err != nil:
			send(errorMsg{err})
			// Do not retry at once: a broken meter may fail immediately.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(c.tick):
			}
		default:
			send(tickMsg{machine})
		}
	}
	return nil
}

// screenView returns the options with which the screen begins.
func screenView(c *config) top.Options {
	o := c.view
	o.HideIdle = !c.all
	return o
}

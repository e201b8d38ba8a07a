package top

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"mete.dev/mete/internal/ui/top"
)

// find returns the cell at which a text of the screen begins.
func (s *screen) find(text string) (x, y int) {
	s.t.Helper()
	for y, l := range strings.Split(s.text(), "\n") {
		if before, _, ok := strings.Cut(l, text); ok {
			return ansi.StringWidth(before), y
		}
	}
	s.t.Fatalf("the screen lacks %q:\n%s", text, s.text())
	return 0, 0
}

// click clicks on a text of the screen.
func (s *screen) click(text string) {
	s.t.Helper()
	x, y := s.find(text)
	s.m.Update(tea.MouseClickMsg{X: x, Y: y, Button: tea.MouseLeft})
}

func (s *screen) wheel(b tea.MouseButton, n int) {
	for range n {
		s.m.Update(tea.MouseWheelMsg{Button: b})
	}
}

func TestMouseIsOn(t *testing.T) {
	if v := open(t, 80, 24).m.View(); v.MouseMode != tea.MouseModeCellMotion || !v.AltScreen {
		t.Errorf("mouse mode %v, want clicks and the wheel", v.MouseMode)
	}
}

func TestWheel(t *testing.T) {
	s := open(t, 120, 24)
	s.wheel(tea.MouseWheelDown, 1) // before the first reading
	s.tick(0)
	s.wheel(tea.MouseWheelDown, 2)
	if s.m.at != 6 {
		t.Errorf("two steps down select row %d, want 6", s.m.at)
	}
	s.wheel(tea.MouseWheelUp, 1)
	s.wheel(tea.MouseWheelLeft, 1)
	if s.m.at != 3 {
		t.Errorf("a step up selects row %d, want 3", s.m.at)
	}
	s.wheel(tea.MouseWheelUp, 9)
	if s.m.at != 0 {
		t.Errorf("many steps up select row %d, want the first", s.m.at)
	}
	for _, page := range []string{"?", "i"} {
		s.press(page)
		first := func() string { line, _, _ := strings.Cut(s.text(), "\n"); return line }
		before := first()
		s.wheel(tea.MouseWheelDown, 1)
		if s.m.scroll != 3 || s.m.at != 0 || first() == before {
			t.Errorf("a step down in %s scrolls to line %d and selects row %d, want 3 and 0", page, s.m.scroll, s.m.at)
		}
		s.wheel(tea.MouseWheelUp, 2)
		if first() != before {
			t.Errorf("two steps up in %s begin with %q, want %q", page, first(), before)
		}
		s.press("esc")
	}
}

func TestClickOnRow(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.click("user.slice")
	if got := s.selected(); !strings.HasPrefix(got, "user.slice") {
		t.Errorf("a click on user.slice selects %q", got)
	}
	s.expect(false, "▸")
	s.click("user.slice")
	s.expect(true, "▸ user.slice +3")
	s.click("user.slice")
	s.expect(false, "▸")
	s.click("kubelet.service")
	s.click("kubelet.service") // nothing is below it
	if got := s.selected(); !strings.HasPrefix(got, "kubelet.service") {
		t.Errorf("two clicks on kubelet.service select %q", got)
	}
	x, y := s.find("user.slice")
	s.m.Update(tea.MouseClickMsg{X: x, Y: y, Button: tea.MouseRight})
	if got := s.selected(); !strings.HasPrefix(got, "kubelet.service") {
		t.Errorf("a click of the right button selects %q", got)
	}
}

// A click selects the row under it, whatever part of the table is on the screen, and no row
// elsewhere.
func TestClickWhereRowsAre(t *testing.T) {
	for _, height := range []int{5, 8, 12, 20, 31, 60} {
		for _, key := range []string{"home", "end"} {
			for y := range height {
				s := open(t, 120, height)
				s.tick(0)
				s.press(key)
				line := strings.TrimRight(strings.Split(s.text(), "\n")[y], " ")
				want := s.m.at
				for i := range s.m.table.Rows {
					if label := s.m.table.Line(&s.m.table.Rows[i], 120, s.m.opt).String(); strings.TrimRight(label, " ") == line {
						want = i
					}
				}
				s.m.Update(tea.MouseClickMsg{X: 35, Y: y, Button: tea.MouseLeft})
				if s.m.opt.Sort == top.ByCPU && s.m.at != want {
					t.Errorf("height %d, %s: a click on line %d, %q, selects row %d, want %d", height, key, y, line, s.m.at, want)
				}
			}
		}
	}
}

func TestClickOnTitle(t *testing.T) {
	s := open(t, 160, 50)
	s.tick(0)
	for _, c := range []struct{ click, want string }{{"MEMORY", "▼MEMORY"}, {"MEMORY", "▲MEMORY"}, {"MEMORY", "▼MEMORY"}, {"TX/s", "▼TX/s"},
		{"RX/s", "▲RX/s"}, {"KIND", "▲RX/s"}, {"WORKLOAD", "▲WORKLOAD"}, {"WORKLOAD", "▼WORKLOAD"}, {"  CPU", "▼CPU"}} {
		s.click(c.click)
		s.expect(true, c.want)
	}
}

// Help and details take no clicks.
func TestClickOnPages(t *testing.T) {
	for _, page := range []string{"?", "i"} {
		s := open(t, 120, 40)
		s.m.Update(tea.MouseClickMsg{X: 1, Y: 1, Button: tea.MouseLeft}) // before the first reading
		s.tick(0)
		s.press(page)
		for y := range 40 {
			s.m.Update(tea.MouseClickMsg{X: 50, Y: y, Button: tea.MouseLeft})
		}
		s.press("esc")
		if s.m.at != 0 || s.m.opt.Sort != top.ByCPU || s.m.opt.Reverse || len(s.m.opt.Folded) > 0 {
			t.Errorf("clicks in %s change the table", page)
		}
	}
}

func TestMouseInHelp(t *testing.T) {
	s := open(t, 80, 60)
	s.tick(0)
	s.press("?")
	s.expect(true, "wheel          move by three rows; scroll", "click          select a row", "With Shift\n", "the mouse selects text in the terminal as usual")
}

package top

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/ui/top"
)

// screen is a model driven by key presses.
type screen struct {
	t *testing.T
	m *model
}

func open(t *testing.T, width, height int) *screen {
	s := &screen{t, newModel(top.Options{}, top.NewPainter(&bytes.Buffer{}))}
	s.m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return s
}

var special = map[string]tea.Key{"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown},
	"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "pgup": {Code: tea.KeyPgUp},
	"pgdown": {Code: tea.KeyPgDown}, "backspace": {Code: tea.KeyBackspace}, " ": {Code: tea.KeySpace, Text: " "},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl}}

// press types keys, either special names or text, and reports whether the last one quits.
func (s *screen) press(keys ...string) bool {
	var cmd tea.Cmd
	for _, k := range keys {
		if key, ok := special[k]; ok {
			_, cmd = s.m.Update(tea.KeyPressMsg(key))
			continue
		}
		for _, r := range k {
			_, cmd = s.m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
	return cmd != nil
}

func (s *screen) tick(step int) { s.m.Update(tickMsg{toptest.Machine(step)}) }

// text returns the screen without styles.
func (s *screen) text() string { return ansi.Strip(s.m.screen()) }

// selected returns the text of the row under the cursor.
func (s *screen) selected() string {
	s.t.Helper()
	_, after, ok := strings.Cut(s.m.screen(), "\x1b[7m")
	if !ok {
		s.t.Fatalf("no row is selected:\n%s", s.text())
	}
	return strings.Trim(strings.Join(strings.Fields(after[:strings.IndexByte(after, '\x1b')])[:3], " "), "├─└│▸ ")
}

func (s *screen) expect(present bool, words ...string) {
	s.t.Helper()
	for _, w := range words {
		if got := strings.Contains(s.text(), w); got != present {
			s.t.Errorf("screen shows %q: %v, want %v:\n%s", w, got, present, s.text())
		}
	}
}

func TestScreenBeforeTheFirstTick(t *testing.T) {
	s := open(t, 80, 24)
	s.expect(true, "Waiting for the first reading")
	s.press("j", "i", " ", "left", "-", "*", "f", "f", "t", "/", "x", "enter")
	s.m.Update(errorMsg{errors.New("proc: stat: gone\x1b[2J")})
	s.expect(true, "reading: proc: stat: gone\uFFFD[2J")
	s.press("esc")
	s.tick(0)
	s.expect(false, "gone")
	s.expect(true, "node-7.example", "postgres")
}

func TestFold(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.expect(true, "istio-proxy", "TOTAL = the machine")
	s.press(" ")
	s.expect(true, "▸ kubepods.slice +16")
	s.expect(false, "istio-proxy")
	s.tick(1)
	s.expect(false, "istio-proxy")
	s.press("right")
	s.expect(true, "istio-proxy")
	s.press("-")
	s.expect(true, "▸ system.slice +8", "▸ user.slice +3")
	s.press("*")
	s.expect(false, "▸")
	s.press("down", "down", "down", "left", "left", "left")
	if got := s.selected(); !strings.HasPrefix(got, "burstable") {
		t.Errorf("left three times from a container selects %q, want the slice: to its pod, folding that, up", got)
	}
}

// TestCursorFollows checks that the cursor follows its workload when the order changes.
func TestCursorFollows(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.press("t", "down", "down", "down")
	before := s.selected()
	s.press("m")
	if got := s.selected(); strings.Fields(got)[0] != strings.Fields(before)[0] {
		t.Errorf("after sorting the cursor is on %q, want %q", got, before)
	}
	s.press("home", "c")
	first := s.selected()
	s.press("r")
	if got := s.selected(); got == first {
		t.Errorf("the first row is still %q, want the cursor to stay on top", got)
	}
	s.press("end")
	if got := s.selected(); !strings.HasPrefix(got, "idle") {
		t.Errorf("the last row is %q, want idle", got)
	}
	s.press("up")
	gone := toptest.Machine(1)
	gone.Rows = gone.Rows[:len(gone.Rows)-2]
	s.m.Update(tickMsg{gone})
	s.selected() // somewhere
}

func TestFilter(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.press("/", "istx", "backspace", "i")
	s.expect(true, "filter: isti", "istio-proxy", "burstable", "not shown: 26 workloads")
	s.expect(false, "sshd")
	s.press("enter")
	s.tick(1)
	s.expect(true, "filter isti")
	s.expect(false, "sshd")
	s.press("esc")
	s.expect(true, "sshd")
	s.press("/", "nothing like it")
	s.expect(true, "Nothing matches")
	s.press("ctrl+u", "q", "\x1b", "\u202e")
	s.expect(true, "filter: q_")
	s.press("esc")
	s.expect(true, "sshd")
}

func TestPauseKeepsTheScreen(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.press("f")
	s.tick(5)
	s.expect(true, "PAUSED", "12:00:00")
	s.press("t")
	s.expect(true, "12:00:00")
	s.press("f")
	s.expect(true, "12:00:05")
	s.expect(false, "PAUSED")
}

func TestHelpAndDetails(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	s.press("?")
	s.expect(true, "freeze or go on", "network of 3 groups")
	s.press("esc", "down", "down", "i")
	s.expect(true, "SINCE FIRST SEEN", "kubepods.slice / burstable", "pod")
	s.tick(1)
	s.expect(true, "SINCE FIRST SEEN")
	empty := toptest.Machine(2)
	empty.Rows = empty.Rows[len(empty.Rows)-2:]
	s.m.Update(tickMsg{empty})
	s.expect(true, "SINCE FIRST SEEN", "ended: these are its last figures")
	s.press("esc")
	s.expect(true, "idle")
}

func TestViewKeys(t *testing.T) {
	for key, want := range map[string]string{"m": "▼MEMORY", "d": "▼READ/s", "n": "▼RX/s", "p": "▼PIDS", "P": "▼P.CPU", "N": "▲WORKLOAD",
		"r": "▲CPU", "%": "▼CPU%", "s": "WITH ALL BELOW", "z": "not shown"} {
		s := open(t, 140, 50)
		s.tick(0)
		s.expect(false, want)
		s.press(key)
		s.expect(true, want)
	}
	s := open(t, 140, 50)
	s.tick(0)
	s.press("t")
	s.expect(false, "├─")
	for _, k := range []string{"q", "ctrl+c"} {
		if !s.press(k) {
			t.Errorf("%s does not quit", k)
		}
	}
	if s.press("/", "q") {
		t.Errorf("q quits while the filter is typed")
	}
	if !s.press("ctrl+c") {
		t.Errorf("ctrl+c does not quit while the filter is typed")
	}
}

// TestPaste checks that pasted text only goes into the filter.
func TestPaste(t *testing.T) {
	s := open(t, 120, 50)
	s.tick(0)
	if _, cmd := s.m.Update(tea.PasteMsg{Content: "tq"}); cmd != nil || s.m.opt.Flat {
		t.Errorf("pasted text presses keys")
	}
	s.press("/")
	s.m.Update(tea.PasteMsg{Content: "ssh\x1b[31md\n"})
	if s.press("x", "backspace"); !strings.HasPrefix(s.m.opt.Filter, "ssh") || strings.ContainsAny(s.m.opt.Filter, "\x1b\n") {
		t.Errorf("the filter is %q", s.m.opt.Filter)
	}
}

// TestAnyKeysAnyScreen checks that for any keys and any screen size each line fits and the number
// of lines is the height.
func TestAnyKeysAnyScreen(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	keys := []string{"j", "k", "g", "G", "c", "m", "d", "n", "p", "P", "N", "r", "t", "s", "z", "%", "/", "f", "?", "i", " ", "-", "*", "x",
		"enter", "esc", "up", "down", "left", "right", "home", "end", "pgup", "pgdown", "backspace"}
	for range 40 {
		s := open(t, 1+rng.IntN(150), 1+rng.IntN(50))
		var pressed []string
		for range 40 {
			if rng.IntN(6) == 0 {
				m := toptest.Machine(rng.IntN(9))
				m.Rows = m.Rows[rng.IntN(len(m.Rows)+1):]
				m.Rows = append([]live.Row(nil), m.Rows...)
				for i := range m.Rows {
					if rng.IntN(8) == 0 {
						m.Rows[i].Name = []string{"\x1b[31m", "名前名前", "\r\n", strings.Repeat("x", 300), "👩‍👩‍👧"}[rng.IntN(5)]
					}
				}
				s.m.Update(tickMsg{m})
			}
			if rng.IntN(20) == 0 {
				s.m.Update(tea.WindowSizeMsg{Width: rng.IntN(150), Height: rng.IntN(50)})
			}
			switch rng.IntN(10) {
			case 0:
				s.m.Update(errorMsg{errors.New("gone")})
			case 1:
				s.m.Update(tea.MouseClickMsg{X: rng.IntN(150), Y: rng.IntN(50), Button: tea.MouseLeft})
			case 2:
				s.m.Update(tea.MouseWheelMsg{Button: []tea.MouseButton{tea.MouseWheelUp, tea.MouseWheelDown}[rng.IntN(2)]})
			}
			k := keys[rng.IntN(len(keys))]
			pressed = append(pressed, k)
			s.press(k)
			if s.m.width == 0 || s.m.height == 0 {
				continue
			}
			lines := strings.Split(s.m.screen(), "\n")
			if len(lines) != s.m.height {
				t.Fatalf("%d x %d, keys %q: %d lines", s.m.width, s.m.height, pressed, len(lines))
			}
			for _, l := range lines {
				if w := ansi.StringWidth(l); w > s.m.width {
					t.Fatalf("%d x %d, keys %q: line of %d cells: %q", s.m.width, s.m.height, pressed, w, l)
				}
			}
		}
	}
}

// TestPainter checks that a writer without colors gets none, and that the cursor is always visible.
func TestPainter(t *testing.T) {
	s := open(t, 100, 30)
	s.tick(0)
	if v := s.m.screen(); strings.Contains(v, "\x1b[38") || strings.Contains(v, "\x1b[3") {
		t.Errorf("colors on a writer that is not a terminal: %q", v)
	}
	s.selected()
}

// TestPosition checks that the status line shows the visible range of rows.
func TestPosition(t *testing.T) {
	s := open(t, 140, 20)
	s.tick(1)
	rows := len(s.m.table.Rows)
	s.expect(true, fmt.Sprintf("1-%d of %d", s.m.body(), rows))
	s.press("end")
	s.m.screen()
	s.expect(true, fmt.Sprintf("%d-%d of %d", rows-s.m.body()+1, rows, rows))
	s.m.Update(tea.WindowSizeMsg{Width: 140, Height: 100})
	s.expect(false, fmt.Sprintf("of %d", rows))
}

// A workload that is no longer busy stays on the screen for ten readings, then the key z shows it.
func TestIdleIsHidden(t *testing.T) {
	s := open(t, 200, 60)
	s.m.opt.HideIdle, s.m.opt.Flat = true, true
	m := toptest.Machine(0)
	var still *live.Row
	for i := range m.Rows {
		if r := &m.Rows[i]; strings.Contains(r.Name, "sshd") {
			still = r
		}
	}
	if still == nil {
		t.Fatal("no sshd")
	}
	set := func(cores float64, memory int64) {
		none := 0.0
		still.CPU, still.Memory, still.DiskRead, still.DiskWritten, still.NetworkRx, still.NetworkTx = &cores, &memory, &none, &none, &none, &none
		s.m.Update(tickMsg{m})
	}
	set(0.5, 0)
	s.expect(true, still.Name)
	for range recent - 1 {
		set(0, 0)
	}
	s.expect(true, still.Name)
	set(0, 0)
	s.expect(false, still.Name)
	s.expect(true, "not shown")
	s.press("z")
	s.expect(true, still.Name)
	s.press("z")
	s.expect(false, still.Name)
	// Much memory counts as busy.
	set(0, m.Memory.Whole/50)
	s.expect(true, still.Name)
}

// Details stay on the screen when the workload has ended.
func TestDetailsOfTheEnded(t *testing.T) {
	s := open(t, 100, 40)
	s.tick(0)
	s.press("t", "/", "postgres", "enter", "i")
	s.expect(true, "postgres", "SINCE FIRST SEEN")
	m := toptest.Machine(1)
	m.Rows = slices.DeleteFunc(m.Rows, func(r live.Row) bool { return r.ID == s.m.inspected.id })
	s.m.Update(tickMsg{m})
	s.expect(true, "postgres", "SINCE FIRST SEEN", "ended: these are its last figures")
	s.tick(2)
	s.expect(false, "ended: these")
	s.press("esc")
	s.expect(true, "WORKLOAD")
}

// The key v hides and shows columns.
func TestColumns(t *testing.T) {
	s := open(t, 160, 30)
	s.tick(0)
	s.expect(true, "MEMORY", "POWER", "P.CPU")
	s.press("v", "2", "7")
	s.expect(true, "memory (hidden)", "3 power", "pressure (hidden)")
	s.press("esc")
	s.expect(false, "MEMORY", "P.CPU", "hidden")
	s.expect(true, "POWER")
	s.press("v", "2", "8", "x")
	s.expect(true, "MEMORY")
	for _, bad := range []string{"name", "x", ""} {
		if _, err := top.ParseColumns([]string{"cpu", bad}); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	hidden, err := top.ParseColumns([]string{"cpu", "mem"})
	if err != nil {
		t.Fatal(err)
	}
	s.m.opt.Hidden = hidden
	s.expect(true, "CPU", "MEMORY")
	s.expect(false, "POWER", "PIDS", "READ/s")
}

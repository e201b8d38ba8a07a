package top

import (
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// A mode says what keys apply to.
type mode uint8

const (
	list     mode = iota // the table
	filter               // text of the filter
	help                 // keys and notes
	details              // one workload
	choosing             // which columns are shown
)

// A model is the state of the screen. Only the goroutine of bubbletea uses it.
type model struct {
	paint         *top.Painter
	width, height int

	shown  *live.Machine // on screen
	latest *live.Machine // newer than shown while paused
	missed error         // error of the latest tick; nil if it succeeded
	paused bool

	opt   top.Options
	table *top.Table
	mode  mode

	// cursor is the selected workload, which the cursor follows; "" is the first row, whatever it
	// is. at is its row in table.
	cursor workload.ID
	at     int
	top    int // first row on the screen
	scroll int // first line of help or details

	// inspected is the workload of details, as of the latest reading that has it.
	inspected inspected
	// seen holds the reading, counted in ticks, in which a workload was busy last.
	seen  map[workload.ID]int
	ticks int

	// watch requests the processes of a workload; nil if the meter has none.
	watch func(workload.ID)

	history history
	frozen  *history // of the reading on screen while paused
}

// An inspected is a workload of which details are shown.
type inspected struct {
	id      workload.ID
	row     *live.Row
	machine *live.Machine
	past    *top.Past
	ended   bool // the present reading does not have it
}

// recent is how many readings a workload stays on the screen that is no longer busy: rows that come
// and go each second cannot be read.
const recent = 10

func newModel(o top.Options, p *top.Painter) *model {
	o.Folded, o.Recent = map[workload.ID]bool{}, map[workload.ID]bool{}
	// The default size until the terminal reports its own.
	return &model{paint: p, opt: o, width: 80, height: 24, seen: map[workload.ID]int{}, history: newHistory(time.Second)}
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		m.latest, m.missed = msg.machine, nil
		m.history.add(msg.machine, m.opened())
		if !m.paused {
			if m.shown == nil {
				m.foldNodes(m.latest)
			}
			m.shown = m.latest
			m.remember()
			m.arrange()
		}
	case errorMsg:
		m.missed = msg.err
		m.history.fail()
		m.arrange()
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.MouseWheelMsg:
		m.wheel(msg.Button)
		m.arrange()
	case tea.MouseClickMsg:
		if msg.Button == tea.MouseLeft {
			m.click(msg.X, msg.Y)
			m.arrange()
		}
	case tea.PasteMsg:
		m.paste(msg.Content)
	}
	return m, nil
}

// paste appends to the filter. Elsewhere it ignores the text, which would press keys.
func (m *model) paste(text string) {
	if m.mode == filter {
		m.opt.Filter += cleanInput(text)
		m.arrange()
	}
}

// cleanInput removes control characters.
func cleanInput(words string) string { return strings.ReplaceAll(text.Clean(words), "\uFFFD", "") }

// arrange rebuilds the table and finds the cursor in it.
func (m *model) arrange() {
	if m.shown == nil {
		return
	}
	m.table = top.Arrange(m.shown, m.opt)
	if m.mode == details {
		m.inspect(m.inspected.id)
	}
	if m.cursor == "" {
		m.at = 0
		return
	}
	for i := range m.table.Rows {
		if m.table.Rows[i].Row.ID == m.cursor {
			m.at = i
			return
		}
	}
	m.move(0) // the workload is gone: select the row in its place
}

// remember notes the workloads that are busy in this reading, and those that were lately.
func (m *model) remember() {
	m.ticks++
	for i := range m.shown.Rows {
		r := &m.shown.Rows[i]
		if a := r.Figures(); top.IsBusy(m.shown, &a) {
			m.seen[r.ID] = m.ticks
		}
	}
	clear(m.opt.Recent)
	for id, at := range m.seen {
		if m.ticks-at < recent {
			m.opt.Recent[id] = true
		} else {
			delete(m.seen, id)
		}
	}
}

// inspect updates the details of a workload. Those of one that has ended stay as they were.
func (m *model) inspect(id workload.ID) {
	for i := range m.shown.Rows {
		if r := &m.shown.Rows[i]; r.ID == id {
			m.inspected = inspected{id, r, m.shown, m.past().of(id), false}
			return
		}
	}
	m.inspected.ended = true
}

// opened returns the workload of details; "" if they are not on the screen.
func (m *model) opened() workload.ID {
	if m.mode == details {
		return m.inspected.id
	}
	return ""
}

// past returns the history up to the reading on the screen.
func (m *model) past() *history {
	if m.frozen != nil {
		return m.frozen
	}
	return &m.history
}

// move moves the cursor by n rows.
func (m *model) move(n int) {
	if m.table == nil || len(m.table.Rows) == 0 {
		m.at, m.cursor = 0, ""
		return
	}
	m.at = min(max(m.at+n, 0), len(m.table.Rows)-1)
	m.cursor = m.table.Rows[m.at].Row.ID
	if m.at == 0 {
		m.cursor = ""
	}
}

// row returns the row under the cursor, or nil.
func (m *model) row() *top.Row {
	if m.table == nil || m.at >= len(m.table.Rows) {
		return nil
	}
	return &m.table.Rows[m.at]
}

// key handles a key and rebuilds the table.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	defer m.arrange()
	switch m.mode {
	case filter:
		m.filterKey(k)
		return nil
	case choosing:
		return m.columnKey(k.String())
	case help, details:
		return m.pageKey(k.String())
	}
	if m.moveKey(k.String()) || m.orderKey(k.String()) {
		return nil
	}
	return m.listKey(k.String())
}

// filterKey edits the filter; the table follows every character.
func (m *model) filterKey(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.mode = list
	case "esc":
		m.mode, m.opt.Filter = list, ""
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.opt.Filter)
		m.opt.Filter = m.opt.Filter[:len(m.opt.Filter)-n]
	case "ctrl+u":
		m.opt.Filter = ""
	case "up", "down", "pgup", "pgdown", "home", "end":
		m.moveKey(k.String())
	default:
		if !k.Mod.Contains(tea.ModAlt) {
			m.opt.Filter += cleanInput(k.Text)
		}
	}
}

// pageKey handles a key in help and details.
func (m *model) pageKey(k string) tea.Cmd {
	switch k {
	case "up", "k":
		m.scroll = max(0, m.scroll-1)
	case "down", "j":
		m.scroll++
	case "pgup":
		m.scroll = max(0, m.scroll-m.body())
	case "pgdown", "space":
		m.scroll += m.body()
	case "home", "g":
		m.scroll = 0
	case "q":
		return tea.Quit
	default:
		m.mode, m.scroll = list, 0
		m.look("")
	}
	return nil
}

// columnKey hides or shows the column of a digit.
func (m *model) columnKey(k string) tea.Cmd {
	i := strings.Index("123456789", k)
	switch {
	case k == "q":
		return tea.Quit
	case len(k) == 1 && i >= 0 && i < len(top.Optional):
		m.opt.Hidden = m.opt.Hidden.Toggle(top.Optional[i])
	default:
		m.mode = list
	}
	return nil
}

// moveKey moves the cursor and reports whether the key does that.
func (m *model) moveKey(k string) bool {
	switch k {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-m.body())
	case "pgdown", "ctrl+f":
		m.move(m.body())
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(1 << 30)
	default:
		return false
	}
	return true
}

// orderKey changes the order and reports whether the key does that.
func (m *model) orderKey(k string) bool {
	by, ok := map[string]top.Sort{"c": top.ByCPU, "m": top.ByMemory, "d": top.ByDisk, "n": top.ByNetwork,
		"w": top.ByPower, "p": top.ByPIDs, "P": top.ByPressure, "N": top.ByName}[k]
	switch {
	case k == "r":
		m.opt.Reverse = !m.opt.Reverse
	case ok:
		m.opt.Sort, m.opt.Reverse = by, false
	default:
		return false
	}
	return true
}

// look requests the processes of a workload; "" is none.
func (m *model) look(id workload.ID) {
	if m.watch != nil {
		m.watch(id)
	}
}

// listKey handles a key in the table.
func (m *model) listKey(k string) tea.Cmd {
	switch k {
	case "q":
		return tea.Quit
	case "t":
		m.opt.Flat = !m.opt.Flat
	case "s":
		m.opt.Sums = !m.opt.Sums
	case "z":
		m.opt.HideIdle = !m.opt.HideIdle
	case "%":
		m.opt.Percent = !m.opt.Percent
	case "v":
		m.mode = choosing
	case "/":
		m.mode = filter
	case "esc":
		m.opt.Filter = ""
	case "f":
		m.paused = !m.paused
		m.shown, m.frozen = m.latest, nil
		if m.paused {
			m.frozen = m.history.clone()
		}
	case "?", "h", "f1":
		m.mode, m.scroll = help, 0
	case "i":
		if r := m.row(); r != nil {
			m.mode, m.scroll, m.cursor = details, 0, r.Row.ID
			m.inspect(r.Row.ID)
			m.look(r.Row.ID)
		}
	default:
		m.foldKey(k)
	}
	return nil
}

// foldKey folds or unfolds rows.
func (m *model) foldKey(k string) {
	r := m.row()
	if r == nil || m.opt.Flat {
		return
	}
	id := r.Row.ID
	switch k {
	case "space", "enter":
		if r.Below > 0 {
			m.opt.Folded[id] = !m.opt.Folded[id]
			m.cursor = id
		}
	case "right":
		delete(m.opt.Folded, id)
	case "left":
		if r.Below > 0 && !r.Folded {
			m.opt.Folded[id] = true
			m.cursor = id
		} else {
			m.toParent(r.Row.Parent)
		}
	case "*":
		clear(m.opt.Folded)
	case "-":
		for i := range m.shown.Rows {
			if row := &m.shown.Rows[i]; row.Parent == "" {
				m.opt.Folded[row.ID] = true
			}
		}
		m.cursor = ""
	}
}

// foldNodes folds the machines of a fleet of several, so that all fit on the screen.
func (m *model) foldNodes(first *live.Machine) {
	if first.Fleet == nil || first.Fleet.Nodes < 2 {
		return
	}
	for i := range first.Rows {
		if r := &first.Rows[i]; r.Group == live.Node {
			m.opt.Folded[r.ID] = true
		}
	}
}

// toParent moves the cursor to the row of a workload.
func (m *model) toParent(id workload.ID) {
	for i := range m.table.Rows {
		if m.table.Rows[i].Row.ID == id {
			m.move(i - m.at)
			return
		}
	}
}

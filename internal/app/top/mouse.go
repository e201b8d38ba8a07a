package top

import tea "charm.land/bubbletea/v2"

// wheelRows is the number of rows by which a step of the wheel moves.
const wheelRows = 3

// wheel moves the cursor, or scrolls help and details.
func (m *model) wheel(b tea.MouseButton) {
	n := 0
	switch b {
	case tea.MouseWheelUp:
		n = -wheelRows
	case tea.MouseWheelDown:
		n = wheelRows
	default:
		return
	}
	if m.mode == help || m.mode == details {
		m.scroll = max(0, m.scroll+n)
	} else {
		m.move(n)
	}
}

// click selects the row at a cell of the screen, folds or unfolds it if it is selected already, or
// sorts by the column of a title.
func (m *model) click(x, y int) {
	if m.table == nil || m.mode == help || m.mode == details || y >= m.height-1-m.feet() {
		return
	}
	head := len(m.head())
	if y == head {
		m.sortAt(x)
	}
	i := m.first() + y - head - 1
	switch {
	case y <= head || i >= len(m.table.Rows):
	case i == m.at:
		m.foldKey("space")
	default:
		m.move(i - m.at)
	}
}

// sortAt sorts by the column of a title, or reverses the order if it is that one.
func (m *model) sortAt(x int) {
	by, ok := m.table.SortAt(x, m.width, m.opt)
	switch {
	case !ok:
	case by == m.opt.Sort:
		m.opt.Reverse = !m.opt.Reverse
	default:
		m.opt.Sort, m.opt.Reverse = by, false
	}
}

package chart

import (
	"math"
	"strings"

	"mete.dev/mete/internal/ui/top"
)

// A canvas is a grid of cells. In Braille each cell is two dots wide and four high.
type canvas struct {
	width, height int // cells
	cells         []cell
}

type cell struct {
	dots rune     // of Braille, or 0
	char rune     // in place of dots, or 0
	role top.Role // of the last drawing
}

func newCanvas(width, height int) *canvas {
	return &canvas{width, height, make([]cell, width*height)}
}

// dotBits are the bits of Braille patterns by column and row of a cell, in Unicode's order
// from U+2800.
var dotBits = [2][4]rune{{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}

// dot sets a dot, counted from the upper left.
func (c *canvas) dot(x, y int, role top.Role) {
	if x < 0 || y < 0 || x >= 2*c.width || y >= 4*c.height {
		return
	}
	at := &c.cells[y/4*c.width+x/2]
	at.dots |= dotBits[x%2][y%4]
	at.role = role
}

// put sets a character in a cell.
func (c *canvas) put(x, y int, char rune, role top.Role) {
	if x < 0 || y < 0 || x >= c.width || y >= c.height {
		return
	}
	c.cells[y*c.width+x] = cell{char: char, role: role}
}

// drawLine calls set for each point of a line between two points.
func drawLine(x0, y0, x1, y1 int, set func(x, y int)) {
	n := max(abs(x1-x0), abs(y1-y0))
	if n == 0 {
		set(x0, y0)
		return
	}
	for i := range n + 1 {
		f := float64(i) / float64(n)
		set(x0+int(math.Round(f*float64(x1-x0))), y0+int(math.Round(f*float64(y1-y0))))
	}
}

func abs(n int) int { return max(n, -n) }

// line returns a row of the canvas.
func (c *canvas) line(y int) (l top.Line) {
	var text strings.Builder
	role := top.Plain
	flush := func() {
		if text.Len() > 0 {
			l = append(l, top.Span{Text: text.String(), Role: role})
			text.Reset()
		}
	}
	for _, at := range c.cells[y*c.width : (y+1)*c.width] {
		char := ' '
		switch {
		case at.char != 0:
			char = at.char
		case at.dots != 0:
			char = 0x2800 + at.dots
		}
		if at.role != role {
			flush()
			role = at.role
		}
		text.WriteRune(char)
	}
	flush()
	return l
}

// Package chart draws bar charts as SVG, with a panel for each comparison.
package chart

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Chart is a chart with its title and panels.
type Chart struct {
	Title  string
	Below  string // smaller text under the title
	Panels []Panel
}

// Panel has its own axis, which begins at 0.
type Panel struct {
	Title string
	Unit  string // unit of the axis
	Bars  []Bar
	Lines []Line
}

// Bar is a figure and its range.
type Bar struct {
	Label      string
	Value      float64
	Least      float64
	Most       float64
	Subject    bool // highlighted as the subject of the panel
	Annotation string
}

// Line is a value for comparison with all bars.
type Line struct {
	Label string
	Value float64
}

// The sizes, in pixels.
const (
	width   = 860
	labels  = 210 // start of the axis
	right   = 110 // space after the axis
	barStep = 26
	barHigh = 16
	head    = 64 // height of the chart's title
	above   = 44 // space above a panel's bars
	below   = 52 // space below a panel's bars
)

// Write writes the chart as SVG.
func (c *Chart) Write(w io.Writer) error {
	high := head
	for i := range c.Panels {
		high += c.Panels[i].height()
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" role="img">`+"\n", width, high, width, high)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, high)
	text(&b, 20, 30, 18, "#1d2733", "start", c.Title)
	text(&b, 20, 50, 12, "#5a6675", "start", c.Below)
	y := head
	for i := range c.Panels {
		c.Panels[i].draw(&b, y)
		y += c.Panels[i].height()
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *Panel) height() int { return above + barStep*len(p.Bars) + below }

func (p *Panel) draw(b *strings.Builder, y int) {
	top, bottom := y+above, y+above+barStep*len(p.Bars)
	text(b, 20, y+24, 14, "#1d2733", "start", p.Title)
	step, end := axis(p.most())
	at := func(v float64) float64 { return labels + v/end*(width-labels-right) }
	for i := 0; float64(i)*step <= end*1.0001; i++ {
		x := at(float64(i) * step)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e3e8ee"/>`+"\n", x, top-4, x, bottom+4)
		text(b, x, bottom+19, 11, "#5a6675", "middle", Number(float64(i)*step))
	}
	fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#8593a3"/>`+"\n", labels, bottom+4, width-right, bottom+4)
	text(b, float64(width-right), bottom+36, 11, "#5a6675", "end", p.Unit)
	for i := range p.Bars {
		p.Bars[i].draw(b, top+i*barStep, at)
	}
	for _, l := range p.Lines {
		x := at(l.Value)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#c2410c" stroke-width="1.5" stroke-dasharray="5 3"/>`+"\n", x, top-8, x, bottom+4)
		text(b, x, top-12, 11, "#c2410c", "middle", l.Label+" "+Number(l.Value))
	}
}

func (a *Bar) draw(b *strings.Builder, y int, at func(float64) float64) {
	colour := "#93a4b8"
	if a.Subject {
		colour = "#1f6feb"
	}
	middle := y + barHigh/2
	text(b, labels-10, middle+4, 12, "#1d2733", "end", a.Label)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", labels, y, max(1, at(a.Value)-labels), barHigh, colour)
	end := a.Value
	if a.Most > a.Least {
		end = max(end, a.Most)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#1d2733"/>`+"\n", at(a.Least), middle, at(a.Most), middle)
	}
	said := Number(a.Value)
	if a.Annotation != "" {
		said += "  " + a.Annotation
	}
	text(b, at(end)+6, middle+4, 11, "#1d2733", "start", said)
}

func text(b *strings.Builder, x float64, y, size int, colour, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="%d" fill="%s" text-anchor="%s">%s</text>`+"\n", x, y, size, colour, anchor, html.EscapeString(s))
}

func (p *Panel) most() float64 {
	most := 0.0
	for _, b := range p.Bars {
		most = max(most, b.Value, b.Most)
	}
	for _, l := range p.Lines {
		most = max(most, l.Value)
	}
	return most
}

// axis returns a round step and the end of an axis. The axis has four to ten steps, and room for a
// figure.
func axis(most float64) (step, end float64) {
	if most <= 0 || math.IsInf(most, 0) || math.IsNaN(most) {
		return 1, 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most))-1)
	for _, of := range []float64{1, 2, 2.5, 5, 10, 20} {
		if step = of * unit; most/step <= 8 {
			break
		}
	}
	return step, step * math.Ceil(most/step)
}

// Number formats a figure with thousands separators and without needless digits.
func Number(v float64) string {
	if math.Abs(v) < 100 {
		return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
	}
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v < 0 {
		return "-" + s
	}
	return s
}

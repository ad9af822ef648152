package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

// point is one value of a curve. X is a step, or a Unix time in seconds.
type point struct{ X, Y float64 }

// curve is a named line of a chart. Each point has an interval if there are bounds.
type curve struct {
	Name   string
	Points []point
	Bounds []bounds // one for each point, or none
}

// bounds is the interval around a value. It is empty if both are 0.
type bounds struct{ Low, High float64 }

// known reports whether the interval is known.
func (b bounds) known() bool { return b != bounds{} }

// graph is a chart with its curves. The sentence says what the chart shows, for people who cannot
// see it.
type graph struct {
	Title    string
	Sentence string
	Unit     string
	Times    bool   // whether X is a time
	X        string // the unit of X, such as step; empty for a time
	Curves   []curve
	Marks    []mark // moments to draw on the curves
}

// mark is a moment on a chart, such as a swap of a model.
type mark struct {
	X    float64
	Name string
}

const (
	chartWidth, chartHeight = 640, 200
	chartLeft, chartRight   = 56, 8
	chartTop, chartBottom   = 8, 22
	tableRows               = 200
	chartColours            = 6
)

// box is the range of a chart's values.
type box struct{ minX, maxX, minY, maxY float64 }

func boundsOf(curves []curve) (b box, any bool) {
	b = box{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
	for _, c := range curves {
		for i, p := range c.Points {
			if !p.known() {
				continue
			}
			any = true
			b.minX, b.maxX = min(b.minX, p.X), max(b.maxX, p.X)
			b.minY, b.maxY = min(b.minY, p.Y), max(b.maxY, p.Y)
			if i < len(c.Bounds) && c.Bounds[i].known() {
				b.minY, b.maxY = min(b.minY, c.Bounds[i].Low), max(b.maxY, c.Bounds[i].High)
			}
		}
	}
	if b.minX == b.maxX {
		b.maxX++
	}
	if b.minY == b.maxY { // the line is in the middle, and 0 at an edge, because most values cannot be negative
		b.minY, b.maxY = min(0, 2*b.minY), max(0, 2*b.maxY)
	}
	if b.minY == b.maxY {
		b.maxY++
	}
	return b, any
}

func (b box) place(p point, left, top, width, height float64) (x, y float64) {
	return left + (p.X-b.minX)/(b.maxX-b.minX)*width, top + height - (p.Y-b.minY)/(b.maxY-b.minY)*height
}

// polylines draws a curve. A value that is not known is a gap, because a line across it would claim values. A value between two gaps is a dot.
func polylines(class string, points []point, b box, left, top, width, height float64) string {
	var all, s strings.Builder
	n := 0
	end := func() {
		if n == 1 {
			s.WriteString(s.String())
		}
		if n > 0 {
			fmt.Fprintf(&all, `<polyline class="%s" points="%s"/>`, class, strings.TrimSpace(s.String()))
		}
		s.Reset()
		n = 0
	}
	for _, p := range points {
		if !p.known() {
			end()
			continue
		}
		x, y := b.place(p, left, top, width, height)
		fmt.Fprintf(&s, "%.1f,%.1f ", x, y)
		n++
	}
	end()
	return all.String()
}

func (p point) known() bool { return !math.IsNaN(p.Y) && !math.IsInf(p.Y, 0) }

// lineChart draws a chart as SVG, with a sentence and a table of its values. The script adds a
// cursor that reads the values from the table.
func lineChart(g graph) markup {
	b, any := boundsOf(g.Curves)
	var s strings.Builder
	fmt.Fprintf(&s, `<figure class="chart"><figcaption><strong>%s</strong> <span>%s</span></figcaption>`, esc(word(g.Title)), esc(titled(g.Sentence)))
	if !any {
		s.WriteString(`<p class="empty">No values yet.</p></figure>`)
		return markup(s.String())
	}
	const width, height = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
	fmt.Fprintf(&s, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s" data-box="%g %g %d %d">`, chartWidth, chartHeight, esc(word(g.Title)+": "+titled(g.Sentence)), b.minX, b.maxX, chartLeft, width)
	for i := range 3 {
		value := b.minY + (b.maxY-b.minY)*float64(i)/2
		_, y := b.place(point{b.minX, value}, chartLeft, chartTop, width, height)
		fmt.Fprintf(&s, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			chartLeft, chartWidth-chartRight, y, y, chartLeft-6, y+4, esc(number(value)))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`,
		chartLeft, chartHeight-6, esc(g.xWord(b.minX)), chartWidth-chartRight, chartHeight-6, esc(strings.TrimSpace(g.X+" "+g.xWord(b.maxX))))
	for i, c := range g.Curves {
		s.WriteString(polylines(fmt.Sprintf("curve c%d", i%chartColours), c.Points, b, chartLeft, chartTop, width, height))
		c.writeBounds(&s, b, i%chartColours)
	}
	for _, m := range g.marksIn(b) {
		x, _ := b.place(point{m.X, b.minY}, chartLeft, chartTop, width, height)
		fmt.Fprintf(&s, `<line class="mark" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>%s at %s</title></line>`, x, x, chartTop, chartTop+height, esc(word(m.Name)), g.xWord(m.X))
	}
	s.WriteString(`</svg>`)
	g.writeLegend(&s)
	g.writeTable(&s)
	s.WriteString(`</figure>`)
	return markup(s.String())
}

// writeBounds draws each point with its interval.
func (c curve) writeBounds(s *strings.Builder, b box, colour int) {
	const width, height = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
	for i, p := range c.Points[:min(len(c.Points), len(c.Bounds))] {
		x, y := b.place(p, chartLeft, chartTop, width, height)
		fmt.Fprintf(s, `<circle class="dot c%d" cx="%.1f" cy="%.1f" r="3"/>`, colour, x, y)
		if c.Bounds[i].known() {
			_, low := b.place(point{p.X, c.Bounds[i].Low}, chartLeft, chartTop, width, height)
			_, high := b.place(point{p.X, c.Bounds[i].High}, chartLeft, chartTop, width, height)
			fmt.Fprintf(s, `<path class="bound c%d" d="M%.1f,%.1fV%.1fM%.1f,%.1fh8M%.1f,%.1fh8"/>`, colour, x, low, high, x-4, low, x-4, high)
		}
	}
}

func (g graph) xWord(x float64) string {
	if !g.Times {
		return number(x)
	}
	return time.Unix(int64(x), 0).UTC().Format("15:04:05")
}

// mostMarks limits the marks of a chart: more would hide its curves.
const mostMarks = 100

// marksIn returns the newest marks within the range of the values.
func (g graph) marksIn(b box) (marks []mark) {
	for _, m := range g.Marks {
		if m.X >= b.minX && m.X <= b.maxX && len(marks) < mostMarks {
			marks = append(marks, m)
		}
	}
	return marks
}

func (g graph) writeLegend(s *strings.Builder) {
	if len(g.Curves) < 2 {
		return
	}
	s.WriteString(`<ul class="legend">`)
	for i, c := range g.Curves {
		fmt.Fprintf(s, `<li class="c%d">%s</li>`, i%chartColours, text(c.Name))
	}
	s.WriteString(`</ul>`)
}

// writeTable writes the values as a table, at most tableRows of them.
func (g graph) writeTable(s *strings.Builder) {
	s.WriteString(`<details class="values"><summary>Values</summary><table><thead><tr><th scope="col">Line</th><th scope="col">At</th><th scope="col" class="num">Value</th></tr></thead><tbody>`)
	left := tableRows
	for _, c := range g.Curves {
		c.Points = slices.DeleteFunc(slices.Clone(c.Points), func(p point) bool { return !p.known() })
		step := max(1, (len(c.Points)*len(g.Curves)+tableRows-1)/tableRows)
		for i := 0; i < len(c.Points) && left > 0; i += step {
			left--
			fmt.Fprintf(s, `<tr><th scope="row">%s</th><td data-x="%g">%s</td><td class="num">%s %s</td></tr>`,
				text(c.Name), c.Points[i].X, esc(g.xWord(c.Points[i].X)), esc(number(c.Points[i].Y)), esc(cmp.Or(c.interval(i), g.Unit)))
		}
	}
	s.WriteString(`</tbody></table></details>`)
}

// interval writes the interval of a point; empty if it is not known.
func (c curve) interval(i int) string {
	if i >= len(c.Bounds) || !c.Bounds[i].known() {
		return ""
	}
	return "(" + number(c.Bounds[i].Low) + " to " + number(c.Bounds[i].High) + ")"
}

// bar shows a part of a whole. The progress element needs no style attribute.
func bar(label string, part, whole float64) markup {
	if whole <= 0 || math.IsNaN(part) {
		return ""
	}
	return markup(fmt.Sprintf(`<progress aria-label="%s" value="%g" max="%g">%s</progress>`, esc(label), min(part, whole), whole, percent(part, whole)))
}

// history draws the numbers of one thing over the last two hours.
type history struct{ api.History }

// askHistory returns the history of a thing; nil if this gateway keeps none.
func askHistory(v *visit, of string) (*history, error) {
	h, err := get[api.History](v, "/api/v1/history", url.Values{"of": {of}})
	if isNotFound(err) {
		return nil, nil
	}
	return &history{h}, err
}

// loadStreamHistory draws the history of a stream.
func loadStreamHistory(v *visit) ([]graph, error) {
	h, err := askHistory(v, "stream:"+v.PathValue("stream"))
	if err != nil || h == nil {
		return nil, err
	}
	return []graph{h.graph("Events", "events a second", "1/s", nil, "rate"), h.graph("Lag", "events that its readers have not read yet", "", nil, "lag")}, nil
}

// loadTriggerHistory draws the history of a trigger.
func loadTriggerHistory(v *visit) ([]graph, error) {
	h, err := askHistory(v, "trigger:"+v.PathValue("trigger"))
	if err != nil || h == nil {
		return nil, err
	}
	return []graph{h.graph("Deliveries", "a second; failed attempts are dashed", "1/s", nil, "delivered", "failed"), h.graph("Waiting", "events that wait for their subscriber", "", nil, "parked")}, nil
}

// mostPoolsDrawn is the number of pools whose histories a page draws.
const mostPoolsDrawn = 4

// loadPoolHistory draws the histories of the pools with the most runs.
func loadPoolHistory(v *visit) (all []graph, err error) {
	pools, err := get[api.Pools](v, "/api/v1/pools", nil)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(pools.Pools, func(a, b api.Pool) int { return cmp.Compare(b.Running+b.Waiting, a.Running+a.Waiting) })
	for _, p := range pools.Pools[:min(len(pools.Pools), mostPoolsDrawn)] {
		h, err := askHistory(v, "pool:"+p.Name)
		if err != nil {
			return nil, err
		}
		if h != nil {
			all = append(all, h.graph("Pool "+word(p.Name), "runs; waiting ones are dashed", "", nil, "running", "waiting", "slots"))
		}
	}
	return all, nil
}

// showPoolHistory keeps the charts closed, because the runs are what most people look for.
func showPoolHistory(v *visit, all []graph) Node {
	if len(all) == 0 {
		return nil
	}
	return details("Pools in the last two hours", h.Div(h.Class("charts"), each(all, func(one *graph) Node { return lineChart(*one) })))
}

func showHistory(_ *visit, all []graph) Node {
	if len(all) == 0 {
		return list(h.H2(say("Last two hours")), nothing(say("There is no history here. This gateway keeps none, or Redis does not answer.")))
	}
	return list(h.H2(say("Last two hours")), h.Div(h.Class("charts"), each(all, func(one *graph) Node { return lineChart(*one) })))
}

// graph makes a chart of some series. The chart says since when it has values.
func (h *history) graph(title, sentence, unit string, marks []mark, series ...string) graph {
	g := graph{Title: title, Sentence: sentence, Unit: unit, Times: true, Marks: marks}
	for _, name := range series {
		c := curve{Name: name}
		values := h.Series[name]
		for i, value := range values {
			at := h.Until.Add(-time.Duration(len(values)-1-i) * time.Duration(h.Every) * time.Second)
			y := math.NaN()
			if value != nil {
				y = *value
			}
			c.Points = append(c.Points, point{float64(at.Unix()), y})
		}
		g.Curves = append(g.Curves, c)
	}
	return g
}

// swaps returns the swaps of a scorer's history as marks.
func (h *history) swaps() (marks []mark) {
	for _, s := range h.Events {
		marks = append(marks, mark{float64(s.At.Unix()), "swap to " + tidemill.VersionName(s.Model, s.Version)})
	}
	return marks
}

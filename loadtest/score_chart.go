package main

import (
	"fmt"
	"io"

	"tidemill.dev/loadtest/internal/chart"
)

// draw writes the chart.
func (r *scoreReport) draw(w io.Writer) error {
	c := chart.Chart{Title: "Scorers: events a second",
		Below: fmt.Sprintf("%s · %d cores · %s · medians of %d rounds, thin lines are least and most · %s", r.Machine.Processor, r.Machine.Cores, r.Machine.Go, r.Rounds, r.At.Format("2006-01-02"))}
	for i := range r.Scenarios {
		if o := &r.Scenarios[i]; len(o.Rows) > 0 {
			c.Panels = append(c.Panels, o.panel())
		} else {
			c.Panels = append(c.Panels, o.milliseconds())
		}
	}
	return c.Write(w)
}

func (o *scoreOutcome) panel() chart.Panel {
	p := chart.Panel{Title: o.Name + ": " + o.About, Unit: "events/s"}
	for _, row := range o.Rows {
		if row.Part {
			continue
		}
		p.Bars = append(p.Bars, chart.Bar{Label: row.Name, Value: row.PerSecond, Least: row.Least, Most: row.Most, Subject: row.Ours, Annotation: fmt.Sprintf("%.1f µs", row.CPU)})
	}
	for _, q := range o.Quotes {
		p.Bars = append(p.Bars, chart.Bar{Label: q.What, Value: (q.Least + q.Most) / 2, Least: q.Least, Most: q.Most, Annotation: "published"})
	}
	if ceiling := o.Figures[figureCeiling]; ceiling > 0 {
		p.Lines = append(p.Lines, chart.Line{Label: "ceiling", Value: ceiling})
	}
	return p
}

// milliseconds draws the figures that are times, next to their bars.
func (o *scoreOutcome) milliseconds() chart.Panel {
	p := chart.Panel{Title: o.Name + ": " + o.About, Unit: "ms"}
	for _, v := range o.Budgets {
		if v.Unit == " ms" && v.Absent == "" {
			p.Bars = append(p.Bars, chart.Bar{Label: v.Figure, Value: v.Value, Subject: true, Annotation: "(" + v.Bar + ")"})
		}
	}
	return p
}

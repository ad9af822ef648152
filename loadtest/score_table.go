package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"tidemill.dev/loadtest/internal/chart"
)

// print writes a scenario's part of the table.
func (o *scoreOutcome) print(to io.Writer) {
	fmt.Fprintf(to, "%s: %s\n", o.Name, o.About)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(o.Rows) > 0 {
		fmt.Fprintf(w, "\tevents/s\tleast\tmost\tCPU µs/event\tbroker\tallocs/event\tMiB\t\n")
	}
	for _, r := range o.Rows {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t%s\t\n", r.Name, chart.Number(r.PerSecond), chart.Number(r.Least), chart.Number(r.Most), r.CPU, r.Broker, orDash(r.Mallocs, 4), orDash(r.Memory, 0))
	}
	w.Flush()
	for _, q := range o.Quotes {
		fmt.Fprintf(to, "  published: %s %s to %s events/s (%s)\n", q.What, chart.Number(q.Least), chart.Number(q.Most), q.Source)
	}
	for _, n := range o.Notes {
		fmt.Fprintf(to, "  %s\n", n)
	}
	w = tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, v := range o.Budgets {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", v.Figure, v.said(), v.Bar, v.word())
	}
	w.Flush()
	fmt.Fprintln(to)
}

func (v verdict) said() string {
	if v.Absent != "" {
		return "-"
	}
	return fmt.Sprintf("%.4g%s", v.Value, v.Unit)
}

func (v verdict) word() string {
	switch {
	case v.Absent != "":
		return "not measured: " + v.Absent
	case v.Met:
		return "met"
	}
	return "missed"
}

// orDash returns a number, or a dash for zero: the figure was not measured.
func orDash(v float64, digits int) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

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

package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestAxis(t *testing.T) {
	for _, c := range []struct{ most, step, end float64 }{
		{0, 1, 1}, {math.NaN(), 1, 1}, {1, 0.2, 1}, {7, 1, 7}, {93, 20, 100}, {190_000, 25_000, 200_000}, {238_123, 50_000, 250_000}, {0.31, 0.05, 0.35},
	} {
		step, end := axis(c.most)
		if math.Abs(step-c.step) > 1e-9 || math.Abs(end-c.end) > 1e-9 {
			t.Errorf("up to %v: steps of %v to %v", c.most, step, end)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.8: "0.8", 3.14159: "3.14", 99.5: "99.5", 1234.4: "1,234", 190_000: "190,000", 1_000_000: "1,000,000", -2500: "-2,500"} {
		if got := Number(v); got != want {
			t.Errorf("%v is written %s", v, got)
		}
	}
}

// The chart is well-formed, contains every figure and label, and stays within its bounds.
func TestChart(t *testing.T) {
	c := Chart{Title: "Scorers <&>", Below: "below", Panels: []Panel{
		{Title: "bots", Unit: "events/s", Bars: []Bar{{Label: "exactly once", Value: 140_000, Least: 120_000, Most: 150_000, Subject: true}, {Label: "plain Go", Value: 31_000, Annotation: "28 µs"}},
			Lines: []Line{{Label: "ceiling", Value: 180_000}}},
		{Title: "nothing", Unit: "ms"},
	}}
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"Scorers &lt;&amp;&gt;", "exactly once", "140,000", "31,000  28 µs", "ceiling 180,000", "events/s"} {
		if !strings.Contains(b.String(), said) {
			t.Errorf("it does not say %q", said)
		}
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			within(t, e)
		}
	}
}

func within(t *testing.T, e xml.StartElement) {
	for _, a := range e.Attr {
		if strings.HasPrefix(a.Value, "-") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
			t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
		}
	}
}

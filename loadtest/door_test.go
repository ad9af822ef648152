package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"tidemill.dev/loadtest/internal/load"
)

const exposition = `# TYPE own histogram
own_bucket{route="publish",le="0.001"} 90
own_bucket{route="publish",le="0.01"} 100
own_bucket{route="publish",le="+Inf"} 100
own_bucket{route="batch",le="0.001"} 10
own_bucket{route="batch",le="0.01"} 20
own_bucket{route="batch",le="+Inf"} 20
own_sum 3
other_bucket{le="1"} 7
`

func TestHistogramsAreReadAndAddedUp(t *testing.T) {
	m, err := parseMetrics(strings.NewReader(exposition), []string{"own", "missing"})
	if err != nil {
		t.Fatal(err)
	}
	own := m["own"]
	if len(own) != 3 || own[0.001] != 100 || own[0.01] != 120 || own[math.Inf(1)] != 120 || len(m["missing"]) != 0 {
		t.Errorf("%v", m)
	}
	if d := own.difference(histogram{0.001: 60, 0.01: 80, math.Inf(1): 80}); d[0.001] != 40 || d[0.01] != 40 {
		t.Errorf("%v", d)
	}
	if _, err := parseMetrics(strings.NewReader(`own_bucket{le="x"} 1`), []string{"own"}); err == nil {
		t.Error("a bound that is no number was read")
	}
}

func TestHistogramQuantile(t *testing.T) {
	h := histogram{0.001: 50, 0.002: 50, 0.003: 100, math.Inf(1): 100}
	for _, c := range []struct {
		h    histogram
		q    float64
		want time.Duration
	}{
		{h, 0.25, 500 * time.Microsecond},
		{h, 0.5, time.Millisecond},
		{h, 0.75, 2500 * time.Microsecond},
		{nil, 0.5, 0},
		{histogram{1: 0, math.Inf(1): 0}, 0.5, 0},
	} {
		if got := c.h.quantile(c.q).Round(time.Microsecond); got != c.want {
			t.Errorf("%v of %v is %v, want %v", c.q, c.h, got, c.want)
		}
	}
	if got := (histogram{0.001: 0, math.Inf(1): 10}).quantile(0.99); got <= time.Millisecond {
		t.Errorf("what is above every bound is %v", got)
	}
}

func TestRedisTellsItsCPUTime(t *testing.T) {
	got, err := sumCPU([]byte("# CPU\r\nused_cpu_sys:0.25\r\nused_cpu_user:1.5\r\nused_cpu_sys_children:9\r\n"))
	if err != nil || got != 1750*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := sumCPU([]byte("# CPU\r\n")); err == nil {
		t.Error("an INFO without CPU times was read")
	}
}

func TestDoorsAreComparedWithinARound(t *testing.T) {
	at := func(events int, wall time.Duration) serverMeasurement {
		return serverMeasurement{load: load.Result{Events: events, Wall: wall}}
	}
	ours := []serverMeasurement{at(10, time.Second), at(40, 2*time.Second)}
	bare := []serverMeasurement{at(20, time.Second), at(40, time.Second)}
	for i := range ours {
		ours[i].server.CPU, ours[i].broker.CPU = time.Duration(i+1)*time.Second, time.Second
		bare[i].load.CPU = time.Second
	}
	if r := compareRates(ours, bare); r[0] != 0.5 || r[1] != 0.5 {
		t.Errorf("rates: %v", r)
	}
	if r := compareCPU(ours, bare); r[0] != 0.25 || math.Abs(r[1]-1.0/3) > 1e-9 {
		t.Errorf("CPU: %v", r)
	}
}

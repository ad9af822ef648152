package main

import (
	"context"
	"testing"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		all  []float64
		want spread
	}{
		{nil, spread{}},
		{[]float64{2}, spread{2, 2, 2}},
		{[]float64{3, 1, 2}, spread{1, 2, 3}},
		{[]float64{4, 1, 2, 3}, spread{1, 2.5, 4}},
	} {
		if got := spreadOf(c.all); got != c.want {
			t.Errorf("%v: %v, want %v", c.all, got, c.want)
		}
	}
}

func TestRatiosAreTakenWithinARound(t *testing.T) {
	d := clientComparison{
		ours:  []task.Result{{Records: 10, CPU: 10}, {Records: 10, CPU: 40}},
		franz: []task.Result{{Records: 10, CPU: 20}, {Records: 20, CPU: 160}},
	}
	for i, r := range d.ratios() {
		if r != 0.5 {
			t.Errorf("round %d: %v", i, r)
		}
	}
}

func TestQuantile(t *testing.T) {
	all := sample{3, 1, 2, 4}.sorted()
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 4, 1: 4} {
		if got := task.Quantile(all, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
}

// Late messages are still sent.
func TestPaceLeavesNothingOut(t *testing.T) {
	next := 0
	err := callAtRate(context.Background(), 50, func(i int) error {
		if i != next {
			t.Errorf("message %d, want %d", i, next)
		}
		next++
		return nil
	})
	if err != nil || next != 50 {
		t.Errorf("%d messages, %v", next, err)
	}
}

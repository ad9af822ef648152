package main

import "time"

func (s stretch) eventsPerSecond() float64 { return float64(s.load.Events) / s.load.Wall.Seconds() }

// rates returns events per second, round by round.
func rates(all []stretch) []float64 { return figures(all, stretch.eventsPerSecond) }

func figures(all []stretch, figure func(stretch) float64) []float64 {
	f := make([]float64, len(all))
	for i, s := range all {
		f[i] = figure(s)
	}
	return f
}

// faster compares rates within a round.
func faster(a, b []stretch) []float64 {
	return within(a, b, func(a, b stretch) float64 { return a.eventsPerSecond() / b.eventsPerSecond() })
}

// cheaper compares the whole machine's CPU time per event within a round.
func cheaper(a, b []stretch) []float64 {
	return within(a, b, func(a, b stretch) float64 { return b.allPerEvent() / a.allPerEvent() })
}

func within(a, b []stretch, ratio func(a, b stretch) float64) []float64 {
	f := make([]float64, min(len(a), len(b)))
	for i := range f {
		f[i] = ratio(a[i], b[i])
	}
	return f
}

// perEvent returns a process's CPU time per event, in microseconds.
func (s stretch) perEvent(cpu time.Duration) float64 {
	return float64(cpu) / 1e3 / float64(max(1, s.load.Events))
}

// allPerEvent returns the CPU time of all processes per event.
func (s stretch) allPerEvent() float64 {
	return s.perEvent(s.server.CPU + s.broker.CPU + s.cache.CPU + s.load.CPU)
}

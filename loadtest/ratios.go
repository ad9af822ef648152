package main

import "time"

func (s serverMeasurement) eventsPerSecond() float64 {
	return float64(s.load.Events) / s.load.Wall.Seconds()
}

// roundRates returns events per second, round by round.
func roundRates(all []serverMeasurement) []float64 {
	return figures(all, serverMeasurement.eventsPerSecond)
}

func figures(all []serverMeasurement, figure func(serverMeasurement) float64) []float64 {
	f := make([]float64, len(all))
	for i, s := range all {
		f[i] = figure(s)
	}
	return f
}

// compareRates compares rates within a round.
func compareRates(a, b []serverMeasurement) []float64 {
	return within(a, b, func(a, b serverMeasurement) float64 { return a.eventsPerSecond() / b.eventsPerSecond() })
}

// compareCPU compares the whole machine's CPU time per event within a round.
func compareCPU(a, b []serverMeasurement) []float64 {
	return within(a, b, func(a, b serverMeasurement) float64 { return b.allPerEvent() / a.allPerEvent() })
}

func within(a, b []serverMeasurement, ratio func(a, b serverMeasurement) float64) []float64 {
	f := make([]float64, min(len(a), len(b)))
	for i := range f {
		f[i] = ratio(a[i], b[i])
	}
	return f
}

// perEvent returns a process's CPU time per event, in microseconds.
func (s serverMeasurement) perEvent(cpu time.Duration) float64 {
	return float64(cpu) / 1e3 / float64(max(1, s.load.Events))
}

// allPerEvent returns the CPU time of all processes per event.
func (s serverMeasurement) allPerEvent() float64 {
	return s.perEvent(s.server.CPU + s.broker.CPU + s.cache.CPU + s.load.CPU)
}

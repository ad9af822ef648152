package gate

import (
	"maps"
	"slices"
)

// shape is what lies beneath a name: fields that are known, or anything that is
// alike, or whatever a trainer has written. A shape without any is a number.
type shape struct {
	fields map[string]*shape
	each   *shape
	free   bool
}

func (s *shape) isNumber() bool { return s.fields == nil && s.each == nil && !s.free }

// below is the shape of a name within one; nil if there is none of that name.
func (s *shape) below(name string) *shape {
	switch {
	case s.free:
		return s
	case s.each != nil:
		return s.each
	}
	return s.fields[name]
}

// The names that clauses begin with.
const (
	ofMetrics   = "metrics"
	ofChampion  = "champion"
	ofConfusion = "confusion"
	ofData      = "data"
	ofRun       = "run"
)

func variables() []string { return slices.Sorted(maps.Keys(world().fields)) }

func of(names ...string) *shape {
	s := &shape{fields: map[string]*shape{}}
	for _, name := range names {
		s.fields[name] = &shape{}
	}
	return s
}

func (s *shape) with(name string, below *shape) *shape {
	s.fields[name] = below
	return s
}

// world is all that a clause may name.
func world() *shape {
	classes := &shape{each: of("precision", "recall", "f1", "support", "predicted")}
	matrix := &shape{each: &shape{each: &shape{}}}
	confusion := of("examples", "accuracy", "macroF1").with("classes", classes).with("matrix", matrix)
	metrics := &shape{free: true}
	return of().
		with(ofMetrics, metrics).
		with(ofConfusion, confusion).
		with(ofChampion, of("version").with(ofMetrics, metrics).with(ofConfusion, confusion).with("lead", of("value", "low", "high"))).
		with(ofData, &shape{each: of("files", "bytes")}).
		with(ofRun, of("attempt", "seconds", "gpuSeconds", "peakMemory", "bytes", "files", "causes"))
}

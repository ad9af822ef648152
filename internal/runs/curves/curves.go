package curves

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"maps"
	"math"
	"slices"

	"tidemill.dev/api"
	"tidemill.dev/internal/runs/agent"
)

const (
	// MaxCurves is the number of metrics that have a curve.
	MaxCurves = 20
	// MaxName is the number of bytes in the longest name of a metric that has a curve.
	MaxName = 1 << 10

	maxLine = 256 << 10 // bytes of the longest line that is read, as by the agent
)

// Set is the curves of one run.
type Set struct {
	points int
	first  []string // metrics that come first, and always have a curve
	of     map[string]*curve
	others int // curves of metrics that are not in first
	steps  int
	left   bool
}

// New returns a set without steps. A curve gets at most the given number of points, which is at
// least 10. The metrics in first come first in the result.
func New(points int, first []string) *Set {
	return &Set{points: points, first: first[:min(len(first), MaxCurves)], of: map[string]*curve{}}
}

// Steps returns the number of steps that were added.
func (s *Set) Steps() int { return s.steps }

// LeftOut reports whether some metrics have no curve, because there were too many or their names were
// too long.
func (s *Set) LeftOut() bool { return s.left }

// Add adds the metrics of a step. The metrics in gaps were reported without a number.
func (s *Set) Add(step float64, metrics map[string]float64, gaps []string) {
	s.steps++
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if c := s.curve(name); c != nil {
			c.add(step, metrics[name])
		}
	}
	for _, name := range gaps {
		if c := s.of[name]; c != nil { // a gap before the first value shows nothing
			c.add(step, math.NaN())
		}
	}
}

// curve returns the curve of a metric; nil if there are too many.
func (s *Set) curve(name string) *curve {
	if c := s.of[name]; c != nil {
		return c
	}
	if !slices.Contains(s.first, name) {
		if len(name) > MaxName || s.others == MaxCurves-len(s.first) {
			s.left = true
			return nil
		}
		s.others++
	}
	c := &curve{most: s.points - 1, width: 1} // one point is reserved for the last value
	s.of[name] = c
	return c
}

// Read adds the lines of a metrics.jsonl. If every is greater than 1, it adds only one line in so many and the
// last one, because to parse a line takes longer than to skip it. It reads at most that many bytes, and reports
// whether the file has more. As for the agent, a line that is unreadable or too long is skipped.
func (s *Set) Read(from io.Reader, every int, most int64) (more bool, err error) {
	limited := &io.LimitedReader{R: from, N: most + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	var skipped []byte // line before, if it was not added
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if limited.N == 0 && err != nil {
			return true, nil // the line may be incomplete
		}
		ended := errors.Is(err, io.EOF)
		switch {
		case ended && (long || !s.addLine(line, n)): // it is empty, half written or no step
			s.addLine(skipped, n-1)
		case !ended && !long && isChosen(n, every):
			s.addLine(line, n)
			skipped = skipped[:0]
		case long:
			skipped = skipped[:0]
		case !ended:
			skipped = append(skipped[:0], line...)
		}
		if ended {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// addLine adds a line of a metrics.jsonl, and reports whether it has a step.
func (s *Set) addLine(line []byte, number int) bool {
	step, gaps, ok := agent.ReadStep(line, number)
	if ok {
		s.Add(step.Step, step.Metrics, gaps)
	}
	return ok
}

// isChosen chooses one line in so many, at irregular distances. With regular ones, a metric that the
// trainer writes on every second line could have no curve.
func isChosen(n, every int) bool {
	const spread = 0x9E3779B97F4A7C15 // an odd number with its bits well mixed
	return uint64(n)*spread>>33%uint64(every) == 0
}

// Curves returns the curves with the metrics of first, in their order, and then the others by name.
func (s *Set) Curves() []api.Curve {
	all := []api.Curve{}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.of)), func(name string) bool { return slices.Contains(s.first, name) })
	for _, name := range slices.Concat(s.first, names) {
		if c := s.of[name]; c != nil {
			all = append(all, api.Curve{Name: name, Gate: slices.Contains(s.first, name), Points: c.shown()})
		}
	}
	return all
}

// point is a value at a step. A value that is not a number is a gap.
type point struct{ step, value float64 }

func (p point) isGap() bool { return math.IsNaN(p.value) || math.IsInf(p.value, 0) }

// bucket has the least and the greatest value of neighbouring points. So the peak of a curve survives, and two buckets can be merged without the points.
type bucket struct {
	from      float64 // first step
	n         int     // points, with gaps
	some      bool    // whether there are values
	low, high point   // extremes of the values
	gap       bool
	gapAt     float64 // last step without a value
}

func (b *bucket) add(p point) {
	if b.n == 0 {
		b.from = p.step
	}
	b.n++
	if p.isGap() {
		b.gap, b.gapAt = true, p.step
		return
	}
	b.include(p)
}

func (b *bucket) include(p point) {
	if !b.some || p.value < b.low.value {
		b.low = p
	}
	if !b.some || p.value > b.high.value {
		b.high = p
	}
	b.some = true
}

// merge adds the next bucket of the curve.
func (b *bucket) merge(next bucket) {
	if next.some {
		b.include(next.low)
		b.include(next.high)
	}
	if next.gap {
		b.gap, b.gapAt = true, next.gapAt
	}
	b.n += next.n
}

// size returns the number of points by which the bucket is shown.
func (b *bucket) size() int { return len(b.shown(nil)) }

func (b *bucket) shown(to []point) []point {
	at := len(to)
	if b.some {
		to = append(to, b.low)
		if b.high != b.low {
			to = append(to, b.high)
		}
	}
	if b.gap {
		to = append(to, point{b.gapAt, math.NaN()})
	}
	slices.SortFunc(to[at:], func(x, y point) int { return cmp.Compare(x.step, y.step) })
	return to
}

// before removes what the bucket has at or after a step.
func (b *bucket) before(step float64) {
	switch low, high := b.low.step < step, b.high.step < step; {
	case low && !high:
		b.high = b.low
	case high && !low:
		b.low = b.high
	case !low && !high:
		b.some = false
	}
	b.gap = b.gap && b.gapAt < step
}

// curve is the points of one metric, in at most most points.
type curve struct {
	most, width int // width is the number of points in a full bucket
	size        int
	buckets     []bucket
	last        point
}

// add adds a point. A step that is not greater than the one before replaces the values from that step
// on, because a resumed trainer makes its last steps again.
func (c *curve) add(step, value float64) {
	p := point{step, value}
	if len(c.buckets) > 0 && step <= c.last.step {
		c.rewind(step)
	}
	c.last = p
	end := len(c.buckets) - 1
	if end < 0 || c.buckets[end].n >= c.width {
		c.buckets = append(c.buckets, bucket{})
		end++
	}
	c.size -= c.buckets[end].size()
	c.buckets[end].add(p)
	c.size += c.buckets[end].size()
	for c.size > c.most {
		c.merge()
	}
}

func (c *curve) rewind(step float64) {
	for end := len(c.buckets) - 1; end >= 0; end-- {
		b := &c.buckets[end]
		c.size -= b.size()
		if b.from < step {
			b.before(step)
			c.size += b.size()
			return
		}
		c.buckets = c.buckets[:end]
	}
}

// merge merges each two buckets into one.
func (c *curve) merge() {
	c.width *= 2
	c.size = 0
	kept := c.buckets[:0]
	for i := 0; i < len(c.buckets); i += 2 {
		b := c.buckets[i]
		if i+1 < len(c.buckets) {
			b.merge(c.buckets[i+1])
		}
		c.size += b.size()
		kept = append(kept, b)
	}
	c.buckets = kept
}

// shown returns the points as the API has them: a gap has no value. The last point is the last value.
func (c *curve) shown() [][2]*float64 {
	var all []point
	for i := range c.buckets {
		all = c.buckets[i].shown(all)
	}
	if n := len(all); n > 0 && all[n-1].step < c.last.step && !c.last.isGap() {
		all = append(all, c.last)
	}
	shown := make([][2]*float64, len(all))
	for i := range all {
		shown[i][0] = &all[i].step
		if !all[i].isGap() {
			shown[i][1] = &all[i].value
		}
	}
	return shown
}

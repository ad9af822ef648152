package curves

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// set reads lines into a set, and returns its curves as JSON.
func set(t *testing.T, points int, first []string, lines ...string) (string, *Set) {
	t.Helper()
	s := New(points, first)
	if more, err := s.Read(strings.NewReader(strings.Join(lines, "\n")), 1, 1<<20); more || err != nil {
		t.Fatal(more, err)
	}
	text, err := json.Marshal(s.Curves())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), s
}

func TestCurves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"nothing":                           {nil, `[]`},
		"steps of the trainer":              {[]string{`{"step":10,"loss":2}`, `{"step":20,"total":30,"loss":1}`}, `[{"name":"loss","points":[[10,2],[20,1]]}]`},
		"lines are steps":                   {[]string{`{"loss":2}`, ``, `{"loss":1}`}, `[{"name":"loss","points":[[1,2],[3,1]]}]`},
		"the gate's metric is first":        {[]string{`{"a":1,"f1":2}`}, `[{"name":"f1","gate":true,"points":[[1,2]]},{"name":"a","points":[[1,1]]}]`},
		"unreadable lines are skipped":      {[]string{`{"loss":2`, `nonsense`, `[1]`, `{"loss":1}`}, `[{"name":"loss","points":[[4,1]]}]`},
		"no number is a gap":                {[]string{`{"a":1}`, `{"a":NaN}`, `{"a":null}`, `{"a":-Infinity}`, `{"a":2}`}, `[{"name":"a","points":[[1,1],[2,null],[3,null],[4,null],[5,2]]}]`},
		"a gap before the first value":      {[]string{`{"a":NaN}`, `{"a":2}`}, `[{"name":"a","points":[[2,2]]}]`},
		"a resumed trainer replaces values": {[]string{`{"step":1,"a":1}`, `{"step":2,"a":9}`, `{"step":3,"a":9}`, `{"step":2,"a":2}`}, `[{"name":"a","points":[[1,1],[2,2]]}]`},
		"nested metrics":                    {[]string{`{"by":{"x":{"f1":1},"y":null}}`}, `[{"name":"by.x.f1","points":[[1,1]]}]`},
	} {
		if got, _ := set(t, 100, []string{"f1", "missing"}, c.lines...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A long curve keeps its peaks, its last value and its order, in at most the given number of points.
func TestLongCurves(t *testing.T) {
	t.Parallel()
	for _, points := range []int{10, 200, 1000} {
		s := New(points, nil)
		for i := range 100_000 {
			value, gaps := map[string]float64{"loss": 1 / float64(i+1)}, []string(nil)
			switch i {
			case 54_321:
				value["loss"] = 77
			case 60_000:
				value, gaps = nil, []string{"loss"}
			}
			s.Add(float64(i), value, gaps)
		}
		for i, value := range []float64{0.2, 0.1, 0.123} { // the last value is no extreme
			s.Add(float64(100_000+i), map[string]float64{"loss": value}, nil)
		}
		c := s.Curves()[0]
		if n := len(c.Points); n > points || n < points/3 {
			t.Errorf("%d points, at most %d are wanted", n, points)
		}
		mustAscend(t, c)
		seen, before := map[float64]bool{}, -1.0
		gap := false
		for _, p := range c.Points {
			if p[1] == nil {
				gap = true
				continue
			}
			if *p[0] <= before {
				t.Fatalf("step %g is after step %g", *p[0], before)
			}
			before = *p[0]
			seen[*p[1]] = true
		}
		if !seen[77] || !seen[1] || !seen[0.123] || !gap || before != 100_002 {
			t.Errorf("%d points: peak %v, first %v, last %v (step %g), gap %v", points, seen[77], seen[1], seen[0.123], before, gap)
		}
	}
}

// A trainer that goes back to an early step leaves only the steps up to there, also if they were merged.
func TestLongCurvesAreReplaced(t *testing.T) {
	t.Parallel()
	s := New(20, nil)
	for i := range 10_000 {
		s.Add(float64(i), map[string]float64{"a": 5}, nil)
	}
	s.Add(100, map[string]float64{"a": 1}, nil)
	points := s.Curves()[0].Points
	if last := points[len(points)-1]; *last[0] != 100 || *last[1] != 1 {
		t.Errorf("the last point is %g, %g", *last[0], *last[1])
	}
	for i := range 10_000 {
		s.Add(float64(i-1), map[string]float64{"a": float64(i)}, []string{"a"})
	}
	if n := len(s.Curves()[0].Points); n > 20 {
		t.Errorf("%d points", n)
	}
}

func TestCurvesAreBounded(t *testing.T) {
	t.Parallel()
	line := map[string]float64{"zz": 1, strings.Repeat("n", MaxName+1): 1}
	for i := range 50 {
		line[fmt.Sprintf("m%02d", i)] = float64(i)
	}
	s := New(100, []string{"zz"})
	s.Add(1, line, []string{"never"})
	all := s.Curves()
	if len(all) != MaxCurves || all[0].Name != "zz" || all[1].Name != "m00" || !s.LeftOut() {
		t.Errorf("%d curves, left out %v", len(all), s.LeftOut())
	}
	if s = New(100, nil); s.LeftOut() {
		t.Error("an empty set leaves something out")
	}
}

// endless is a file that never ends.
type endless struct{ at int }

func (e *endless) Read(b []byte) (int, error) {
	const line = `{"loss": 0.5, "text": "abc"}` + "\n"
	for i := range b {
		b[i] = line[e.at%len(line)]
		e.at++
	}
	return len(b), nil
}

func TestReadStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	e, s := &endless{}, New(100, nil)
	if more, err := s.Read(e, 1, 1<<20); !more || err != nil || e.at > 1<<20+1 || s.Steps() < 30_000 {
		t.Errorf("more %v, error %v, %d bytes, %d steps", more, err, e.at, s.Steps())
	}
	long := `{"loss":1}` + "\n" + `{"x":"` + strings.Repeat("x", 2*maxLine) + `","loss":9}` + "\n" + `{"loss":2}`
	s = New(100, nil)
	if more, err := s.Read(strings.NewReader(long), 1, int64(len(long))); more || err != nil {
		t.Fatal(more, err)
	}
	if text, _ := json.Marshal(s.Curves()); string(text) != `[{"name":"loss","points":[[1,1],[3,2]]}]` {
		t.Errorf("%s", text)
	}
}

// Of a large file some lines are parsed. A metric that is on every second line is among them.
func TestLargeFilesAreSampled(t *testing.T) {
	t.Parallel()
	text := strings.Repeat(`{"loss":1}`+"\n"+`{"accuracy":1}`+"\n", 10_000)
	for _, every := range []int{1, 2, 4, 7, 100} {
		s := New(1000, nil)
		if more, err := s.Read(strings.NewReader(text), every, 1<<20); more || err != nil {
			t.Fatal(more, err)
		}
		if want := 20_000 / every; s.Steps() < want*8/10 || s.Steps() > want*12/10 || len(s.Curves()) != 2 {
			t.Errorf("one line in %d: %d steps, %d curves", every, s.Steps(), len(s.Curves()))
		}
	}
}

// The last value is the present one, also if only some lines are parsed. The last line may be half written.
func TestTheLastLineIsRead(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"", "\n", "\n" + `{"loss":`} {
		for n := range 9 {
			s := New(1000, nil)
			text := strings.Repeat(`{"loss":1}`+"\n", 100+n) + `{"loss":7}` + end
			if more, err := s.Read(strings.NewReader(text), 3, 1<<20); more || err != nil {
				t.Fatal(more, err)
			}
			points := s.Curves()[0].Points
			if last := points[len(points)-1]; *last[0] != float64(101+n) || *last[1] != 7 {
				t.Errorf("after %d lines and %q: the last point is %g, %g", 100+n, end, *last[0], *last[1])
			}
		}
	}
}

// Any lines give curves that can be written as JSON.
func FuzzCurves(f *testing.F) {
	f.Add([]byte(`{"step":1e308,"a":1}` + "\n" + `{"step":-1,"a":null}`))
	f.Add([]byte(`{"a":{"a":NaN},"":1}` + "\n\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := New(10, []string{"a"})
		if _, err := s.Read(strings.NewReader(string(text)), 1, 1<<16); err != nil {
			t.Fatal(err)
		}
		all := s.Curves()
		if _, err := json.Marshal(all); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			mustAscend(t, c)
		}
	})
}

func mustAscend(t *testing.T, c api.Curve) {
	t.Helper()
	before := math.Inf(-1)
	for _, p := range c.Points {
		if *p[0] < before {
			t.Fatalf("curve %q: step %g is after %g", c.Name, *p[0], before)
		}
		before = *p[0]
	}
}

package agent

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"time"

	"tidemill.dev/internal/api"
)

const (
	stepsName   = "metrics.jsonl"
	maxStepLine = 256 << 10
	maxBehind   = 512 << 10 // what is more is passed over: only the newest counts
	stepMetrics = 200
	stepNames   = 8 << 10 // bytes of the names of a step's metrics
)

// steps reads a file that grows by a line a step. It may be cut and begun again,
// end amid a line, and have lines that say nothing.
type steps struct {
	folder string
	was    os.FileInfo // the file of the last look
	at     int64       // behind what was read
	open   []byte      // of a line that has not ended
	skip   bool        // to the end of a line
	lines  int
}

// read looks for new lines, and tells whether there was a step among them: the
// newest value of each metric.
func (s *steps) read() (newest api.Progress, found bool) {
	f, err := openFile(s.folder, stepsName)
	if err != nil {
		return newest, false // there is none yet, or none any more
	}
	defer f.Close()
	if err := s.seek(f); err != nil {
		return newest, false
	}
	data, err := io.ReadAll(io.LimitReader(f, 2*maxBehind))
	if err != nil {
		return newest, false // what could not be read now can be the next time
	}
	s.at += int64(len(data))
	s.each(data, func(line []byte) {
		s.lines++
		if step, ok := readStep(line, s.lines); ok {
			found = true
			merge(&newest, step)
		}
	})
	return newest, found
}

// seek goes to where there is something new.
func (s *steps) seek(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if s.was != nil && (!os.SameFile(s.was, info) || info.Size() < s.at) {
		s.at, s.open, s.skip = 0, nil, false
	}
	s.was = info
	if behind := info.Size() - s.at; behind > maxBehind {
		s.at, s.open, s.skip = info.Size()-maxBehind/2, nil, true
	}
	_, err = f.Seek(s.at, io.SeekStart)
	return err
}

// each calls fn with each whole line.
func (s *steps) each(data []byte, fn func(line []byte)) {
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			break
		}
		if !s.skip {
			fn(append(s.open, data[:i]...))
		}
		s.open, s.skip, data = nil, false, data[i+1:]
	}
	if s.open = append(s.open, data...); len(s.open) > maxStepLine {
		s.open, s.skip = nil, true
	}
}

// rest takes a last line that does not end, when nobody writes any more.
func (s *steps) rest() (api.Progress, bool) {
	step, found := s.read()
	if last, ok := readStep(s.open, s.lines+1); ok && !s.skip {
		merge(&step, last)
		found = true
	}
	return step, found
}

// readStep reads a line. What is no number is left out, and so is what JSON
// knows no number for.
func readStep(line []byte, n int) (api.Progress, bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' {
		return api.Progress{}, false
	}
	var o map[string]any
	if json.Unmarshal(line, &o) != nil && json.Unmarshal(withoutAliens(line), &o) != nil {
		return api.Progress{}, false
	}
	p := api.Progress{Step: float64(n), Metrics: map[string]float64{}}
	numbers(p.Metrics, "", o)
	if step, ok := p.Metrics["step"]; ok {
		p.Step = step
	}
	p.Total = p.Metrics["total"]
	delete(p.Metrics, "step")
	delete(p.Metrics, "total")
	return p, true
}

// merge takes a later step over. Those that measure a thing only now and then
// keep its value.
func merge(to *api.Progress, later api.Progress) {
	if later.Total == 0 {
		later.Total = to.Total
	}
	for name, v := range to.Metrics {
		if _, ok := later.Metrics[name]; !ok {
			later.Metrics[name] = v
		}
	}
	atMost(later.Metrics, stepMetrics, stepNames)
	*to = later
}

// stepLine is how a step is told.
func stepLine(p api.Progress, attempt int, at time.Time) ([]byte, error) {
	p.Attempt, p.Time = attempt, at
	line, err := json.Marshal(p)
	return append(line, '\n'), err
}

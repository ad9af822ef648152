package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"tidemill.dev/api"
)

// stepEvery is the shortest time between two reports of progress.
const stepEvery = 500 * time.Millisecond

// progress reports the command's progress.
type progress struct {
	client  *client
	steps   steps
	attempt int
	now     func() time.Time
	log     *logbook
	measure func()       // called as often as the file is read
	next    api.Progress // newest step, not yet sent to the gateway
	some    bool
	stopped bool // whether the gateway has refused progress
}

// watch reports progress while the command runs.
func (p *progress) watch(ctx context.Context) {
	t := time.NewTicker(stepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			p.measure()
			p.look(ctx, p.steps.read)
		}
	}
}

// finish reports the last progress after the command has ended.
func (p *progress) finish(ctx context.Context) { p.look(ctx, p.steps.readLastLine) }

func (p *progress) look(ctx context.Context, read func() (api.Progress, bool)) {
	step, found := read()
	if found {
		merge(&p.next, step)
		p.some = true
	}
	if !p.some || p.stopped {
		return
	}
	line, err := stepLine(p.next, p.attempt, p.now())
	if err == nil {
		err = p.client.send(ctx, request{"/progress", linesType, line}, nil)
	}
	if err == nil {
		p.next, p.some = api.Progress{}, false
	} else if ctx.Err() == nil {
		p.stopped = true
		p.log.note("%v", fmt.Errorf("progress can no longer be read: %w", err))
	}
}

const (
	stepsName   = "metrics.jsonl"
	maxStepLine = 256 << 10
	maxBehind   = 512 << 10 // largest unread part; a larger one is skipped, because only the newest step counts
	stepMetrics = 200
	stepNames   = 8 << 10 // largest size of the names of a step's metrics
)

// steps reads a file to which the command adds a line a step. The file may be truncated and begun
// again, may end in the middle of a line, and may have unreadable lines.
type steps struct {
	folder string
	was    os.FileInfo // file of the last read
	at     int64       // offset after the last read byte
	open   []byte      // text of a line that has not ended
	skip   bool        // whether to skip to the end of the line
	lines  int
}

// read reads the new lines, and returns the newest value of each metric. It returns false if no new
// line was a step.
func (s *steps) read() (newest api.Progress, found bool) {
	f, err := openFile(s.folder, stepsName)
	if err != nil {
		return newest, false // the file does not exist, or cannot be opened
	}
	defer f.Close()
	if err := s.seek(f); err != nil {
		return newest, false
	}
	data, err := io.ReadAll(io.LimitReader(f, 2*maxBehind))
	if err != nil {
		return newest, false // the next read tries again
	}
	s.at += int64(len(data))
	s.eachLine(data, func(line []byte) {
		s.lines++
		if step, _, ok := ReadStep(line, s.lines); ok {
			found = true
			merge(&newest, step)
		}
	})
	return newest, found
}

// seek sets the offset of the next new byte.
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

// eachLine calls fn with each whole line.
func (s *steps) eachLine(data []byte, fn func(line []byte)) {
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

// readLastLine also reads an unfinished last line, after the command has ended.
func (s *steps) readLastLine() (api.Progress, bool) {
	step, found := s.read()
	if last, _, ok := ReadStep(s.open, s.lines+1); ok && !s.skip {
		merge(&step, last)
		found = true
	}
	return step, found
}

// ReadStep reads a line of metrics.jsonl, which is the line number n. Values that are not numbers are
// left out. The metrics in gaps have null, NaN or Infinity instead of a number.
func ReadStep(line []byte, n int) (p api.Progress, gaps []string, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' {
		return p, nil, false
	}
	var o map[string]any
	if json.Unmarshal(line, &o) != nil && json.Unmarshal(withoutInvalidNumbers(line), &o) != nil {
		return p, nil, false
	}
	p = api.Progress{Step: float64(n), Metrics: map[string]float64{}}
	numbers(p.Metrics, "", o)
	if step, ok := p.Metrics["step"]; ok {
		p.Step = step
	}
	p.Total = p.Metrics["total"]
	delete(p.Metrics, "step")
	delete(p.Metrics, "total")
	return p, nulls(nil, "", o), true
}

// nulls appends the paths of an object that have null.
func nulls(to []string, prefix string, from map[string]any) []string {
	for name, value := range from {
		switch v := value.(type) {
		case nil:
			to = append(to, prefix+name)
		case map[string]any:
			to = nulls(to, prefix+name+".", v)
		}
	}
	return to
}

// merge merges a later step into an earlier one. A metric that the later step does not have keeps
// its value.
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

// stepLine returns a step as the gateway reads it.
func stepLine(p api.Progress, attempt int, at time.Time) ([]byte, error) {
	p.Attempt, p.Time = attempt, at
	line, err := json.Marshal(p)
	return append(line, '\n'), err
}

const (
	metricsName    = "metrics.json"
	maxMetricsFile = 4 << 20
	maxMetrics     = 1000
	maxMetricNames = 64 << 10 // largest size of all names, because they become part of a fact
)

// ReadMetrics reads the metrics.json of a folder. Without the file there are no metrics.
func ReadMetrics(folder string) (map[string]float64, error) {
	all, _, err := metricsOf(folder)
	return all, err
}

// metricsOf reads the command's metrics. Without the file there are no metrics.
func metricsOf(out string) (all map[string]float64, left int, err error) {
	text, err := readFile(out, metricsName, maxMetricsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, permanent("read %s: %w", metricsName, err)
	}
	o, err := object(text)
	if err != nil {
		return nil, 0, permanent("%s %w", metricsName, err)
	}
	all = map[string]float64{}
	numbers(all, "", o)
	return all, atMost(all, maxMetrics, maxMetricNames), nil
}

// readFile reads a file of the command, which may be of any kind.
func readFile(folder, name string, most int64) ([]byte, error) {
	f, err := openFile(folder, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it is larger than %d MiB: put large data into another file", most>>20)
	}
	return text, err
}

// openFile opens a regular file beneath a folder. It refuses pipes and does not wait for their
// writers.
func openFile(folder, name string) (*os.File, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Metrics are the numbers of a JSON object, by their paths with dots. Numbers in a list do not
// count: a list is a curve or a matrix, and no gate judges a number by its index.

// numbers adds the numbers of an object.
func numbers(to map[string]float64, prefix string, from map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		switch v := from[name].(type) {
		case float64:
			to[prefix+name] = v
		case map[string]any:
			numbers(to, prefix+name+".", v)
		}
	}
}

// atMost keeps the first metrics by name within both limits, and returns how many it removed.
func atMost(all map[string]float64, most, letters int) (left int) {
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if letters -= len(name); i >= most || letters < 0 {
			delete(all, name)
			left++
		}
	}
	return left
}

// invalidNumber finds the first number that JSON does not allow but many libraries write, such as
// NaN. It returns the text and its index.
func invalidNumber(text []byte) (word string, at int) {
	inside := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == 'N' || c == 'I' || c == '-' || c == 'n' || c == 'i':
			if word := invalidNumberAt(text[i:]); word != "" {
				return word, i
			}
		}
	}
	return "", -1
}

func invalidNumberAt(text []byte) string {
	for _, word := range []string{"NaN", "-Infinity", "Infinity", "nan", "-inf", "inf", "-NaN", "-nan"} {
		if bytes.HasPrefix(text, []byte(word)) {
			return word
		}
	}
	return ""
}

// withoutInvalidNumbers replaces all such numbers by null.
func withoutInvalidNumbers(text []byte) []byte {
	var clean []byte
	for {
		word, at := invalidNumber(text)
		if at < 0 {
			return append(clean, text...)
		}
		clean = append(append(clean, text[:at]...), "null"...)
		text = text[at+len(word):]
	}
}

// object reads a JSON object. The error names the fault and its line.
func object(text []byte) (map[string]any, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, explain(text, err)
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is not an object: write, for example, {\"accuracy\": 0.9}")
	}
	return o, nil
}

func explain(text []byte, err error) error {
	if word, at := invalidNumber(text); at >= 0 {
		return fmt.Errorf("line %d: %s is not JSON, and nothing can be judged by it: write null, or leave it out", lineOf(text, at), word)
	}
	var wrong *json.SyntaxError
	var number *json.UnmarshalTypeError
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("it is empty: write an object, at its end and at once")
	case errors.As(err, &number):
		return fmt.Errorf("line %d: %s is too large for a number", lineOf(text, int(number.Offset)), number.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("line %d: that is not JSON: %w", lineOf(text, int(wrong.Offset)), err)
	}
	return err
}

func lineOf(text []byte, at int) int { return 1 + bytes.Count(text[:min(at, len(text))], []byte("\n")) }

package infer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/infer/tensor"
)

// Answer is what a model says of one event. It points into the outputs.
type Answer struct {
	Label  string   // of a classifier
	Labels []string // beside Scores; nil if the model has none
	Scores []float32
	Values []float32 // of a model that is no classifier
}

// reading says how the outputs of a model are read. An index of -1 is none.
type reading struct {
	label  int // output with the label that the model has chosen
	scores int
	values int
	labels []string
}

// metadataLabels are where a file may list its labels, with commas between them.
var metadataLabels = [...]string{"labels", "intents"}

// newReading chooses, once a model, what Answer reads.
func newReading(p Program, c *card) (*reading, error) {
	r := &reading{label: -1, scores: -1, values: -1, labels: labelsOf(p, c)}
	outputs := p.Outputs()
	if c.labelOutput != "" {
		if r.label = index(outputs, c.labelOutput); r.label < 0 || !tells(outputs[r.label]) {
			return nil, fmt.Errorf("%w: %s: labels.output %q must be an output of texts or whole numbers; the model has %s", ErrUnfit, CardFile, c.labelOutput, names(outputs))
		}
	} else if r.labels == nil {
		r.label = slices.IndexFunc(outputs, tells)
	}
	numbers, err := r.numbers(outputs, c.output)
	switch {
	case err != nil:
		return nil, err
	case r.labels != nil || r.label >= 0:
		r.scores = numbers
	case numbers < 0:
		return nil, fmt.Errorf("%w: it has no output of 32-bit floating-point numbers, nor one of labels; it has %s", ErrUnfit, names(outputs))
	default:
		r.values = numbers
	}
	if r.labels != nil && r.scores < 0 && r.label < 0 {
		return nil, fmt.Errorf("%w: it has %d labels, and no output of as many 32-bit floating-point numbers; name it in %s: output: NAME", ErrUnfit, len(r.labels), CardFile)
	}
	return r, r.fits(outputs)
}

// numbers is the output with scores: the one that is named, else the only one
// that has a number for each label, else the first.
func (r *reading) numbers(outputs []tensor.Spec, name string) (int, error) {
	if name != "" {
		i := index(outputs, name)
		if i == r.label && i >= 0 {
			return -1, nil // a label and no scores
		}
		if i < 0 || outputs[i].Type != tensor.Float {
			return -1, fmt.Errorf("%w: %s: output %q must be an output of 32-bit floating-point numbers; the model has %s", ErrUnfit, CardFile, name, names(outputs))
		}
		return i, nil
	}
	fit := -1
	for i, o := range outputs {
		if o.Type != tensor.Float {
			continue
		}
		if last(o) == len(r.labels) && r.labels != nil {
			return i, nil
		}
		if fit < 0 && (r.labels == nil || last(o) == tensor.Any) {
			fit = i
		}
	}
	return fit, nil
}

// fits makes sure that there is a label for each score, as far as the model says
// how many there are.
func (r *reading) fits(outputs []tensor.Spec) error {
	if r.labels == nil || r.scores < 0 {
		return nil
	}
	if n := last(outputs[r.scores]); n != tensor.Any && n != len(r.labels) {
		return fmt.Errorf("%w: it has %d labels, and its output %q has %d numbers", ErrUnfit, len(r.labels), outputs[r.scores].Name, n)
	}
	return nil
}

func labelsOf(p Program, c *card) []string {
	if c.labels != nil {
		return c.labels
	}
	meta := p.Metadata()
	for _, name := range metadataLabels {
		if list := meta[name]; list != "" {
			labels := strings.Split(list, ",")
			for i := range labels {
				labels[i] = strings.TrimSpace(labels[i])
			}
			return labels
		}
	}
	return nil
}

// tells reports whether an output is one label a row.
func tells(s tensor.Spec) bool {
	width := 1
	for _, size := range s.Shape[min(1, len(s.Shape)):] {
		width *= size
	}
	return width == 1 && (s.Type == tensor.String || s.Type == tensor.Int64 || s.Type == tensor.Int32)
}

func last(s tensor.Spec) int {
	if len(s.Shape) < 2 {
		return 1
	}
	return s.Shape[len(s.Shape)-1]
}

func index(specs []tensor.Spec, name string) int {
	return slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == name })
}

// whole makes sure that there is an answer for each of several rows. That the trial
// request was answered, which has one row mostly, says nothing of that.
func (r *reading) whole(out []tensor.Tensor, rows int) error {
	for _, i := range [...]int{r.scores, r.values} {
		if i >= 0 && rows > 1 && (len(out[i].Shape) == 0 || out[i].Shape[0] != rows) {
			return fmt.Errorf("it answers %d rows with an output of shape %v; export it with a first dimension that is open in its outputs too, or set limits.rows to 1 in %s", rows, out[i].Shape, CardFile)
		}
	}
	if r.label >= 0 && rows > 1 && length(&out[r.label]) != rows {
		return fmt.Errorf("it answers %d rows with %d labels; export it with a first dimension that is open in its outputs too, or set limits.rows to 1 in %s", rows, length(&out[r.label]), CardFile)
	}
	return nil
}

// answer reads a row.
func (r *reading) answer(out []tensor.Tensor, row int) (a Answer) {
	if r.values >= 0 {
		a.Values = rowOf(&out[r.values], row)
		return a
	}
	if r.scores >= 0 {
		a.Scores, a.Labels = rowOf(&out[r.scores], row), r.labels
	}
	if r.label >= 0 {
		a.Label = r.told(&out[r.label], row)
	} else if best := highest(a.Scores); best < len(r.labels) {
		a.Label = r.labels[best]
	}
	return a
}

// told is the label that a model has chosen itself: a text, or the number of one.
func (r *reading) told(t *tensor.Tensor, row int) string {
	if t.Type == tensor.String {
		if row < len(t.Strings) {
			return t.Strings[row]
		}
		return ""
	}
	if row >= len(t.Ints) {
		return ""
	}
	if n := t.Ints[row]; n < 0 || n >= int64(len(r.labels)) {
		return strconv.FormatInt(n, 10) // allocates nothing below 100
	} else {
		return r.labels[n]
	}
}

func rowOf(t *tensor.Tensor, row int) []float32 {
	if len(t.Shape) == 0 || t.Shape[0] < 1 {
		return t.Floats
	}
	width := len(t.Floats) / t.Shape[0]
	return t.Floats[row*width : (row+1)*width]
}

// highest is where the highest score is; what is not a number is none.
func highest(scores []float32) int {
	best := 0
	for i, s := range scores {
		if s > scores[best] || scores[best] != scores[best] {
			best = i
		}
	}
	return best
}

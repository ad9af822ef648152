package infer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Ref names a version of a model and the tree with its files.
type Ref struct {
	Model    string // such as intent/bot-42
	Version  int
	Artifact string // tree in the store
	Engine   string // EngineAuto, EngineGo or EngineONNXRuntime; empty is EngineAuto
}

// Names of the engines.
const (
	EngineAuto        = "auto" // Go's where it takes the graph, else ONNX Runtime
	EngineGo          = "go"
	EngineONNXRuntime = "onnxruntime"
)

// ErrUnfit means that a version cannot be loaded anywhere, so a retry is useless: no
// engine supports its files, or its golden request fails.
var ErrUnfit = errors.New("cannot serve")

// ErrClosed says that the cache has been closed.
var ErrClosed = errors.New("the cache of models is closed")

func (r *Ref) String() string { return r.Model + " version " + strconv.Itoa(r.Version) }

// key identifies files that are in memory once, even if several versions and models
// share them: after a rollback, or if a model starts as another's copy.
type key struct{ artifact, engine string }

func (r *Ref) key() key {
	if r.Engine == "" {
		return key{r.Artifact, EngineAuto}
	}
	return key{r.Artifact, r.Engine}
}

// popularity returns the hash under which uses are counted. It depends on the model
// only, so that a new version inherits the uses of the one before.
func (r *Ref) popularity() uint64 {
	h := uint64(14695981039346656037)
	for i := range len(r.Model) {
		h = (h ^ uint64(r.Model[i])) * 1099511628211
	}
	return mix(h)
}

// mix spreads a hash over all of its bits.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Model is a version that can answer. It is safe for concurrent use until it is released.
type Model struct {
	ref     Ref
	popular uint64 // hash under which its uses are counted
	held    *entry
}

// Ref returns the reference by which the model was loaded. It must not be changed.
func (m *Model) Ref() *Ref { return &m.ref }

// Engine returns the name of the engine that runs the model.
func (m *Model) Engine() string { return m.held.engine }

// Inputs returns the specs of Run's inputs, in their order.
func (m *Model) Inputs() []tensor.Spec { return m.held.inputs }

// Outputs returns the specs of Run's outputs.
func (m *Model) Outputs() []tensor.Spec { return m.held.outputs }

// Labels returns the labels of model.yaml, of the file's metadata or of its graph; nil if there are
// none.
func (m *Model) Labels() []string {
	if m.held.labels != nil {
		return m.held.labels
	}
	return m.held.names
}

// Golden returns the first answers to the golden request of model.yaml; nil if there is no golden
// request. They must not be changed.
func (m *Model) Golden() []Answer { return m.held.golden }

// MaxRows returns the largest number of rows in one run; 0 means no limit.
func (m *Model) MaxRows() int { return m.held.rows }

// Run computes the outputs; see native.Program.
func (m *Model) Run(in, out []tensor.Tensor) error { return m.held.program.Run(in, out) }

// RunWithin is Run, and takes the memory of its tables from a budget before it makes them.
func (m *Model) RunWithin(b tensor.Budget, in, out []tensor.Tensor) error {
	return m.held.program.RunWithin(b, in, out)
}

// ErrNoRoom is wrapped by the errors of budgets: the run may succeed later, or with fewer rows.
var ErrNoRoom = errors.New("no memory is left for the request now")

type budgetKey struct{}

// WithBudget returns a context whose request takes the memory of its runs from a budget.
func WithBudget(ctx context.Context, b tensor.Budget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// BudgetOf returns the budget of a request; nil if it has none.
func BudgetOf(ctx context.Context) tensor.Budget {
	b, _ := ctx.Value(budgetKey{}).(tensor.Budget)
	return b
}

// Whole returns an error if the outputs do not have an answer for each row. Call it before Answer.
func (m *Model) Whole(out []tensor.Tensor, rows int) error { return m.held.checkRows(out, rows) }

// Answer returns the answer in a row of the outputs.
func (m *Model) Answer(out []tensor.Tensor, row int) Answer { return m.held.answerAt(out, row) }

// Release ends the caller's use of the model.
func (m *Model) Release() { m.held.release() }

// Answer is a model's answer to one event. It points into the outputs.
type Answer struct {
	Label  string   // set by classifiers
	Labels []string // names of the Scores; nil if the model has none
	Scores []float32
	Values []float32 // set by models that are not classifiers
}

// reading says which outputs of a model are read. An index of -1 means none.
type reading struct {
	label  int // output with the label that the model itself has chosen
	scores int
	values int
	labels []string // labels of model.yaml or of the metadata
	names  []string // names of the classes in the graph, if the model itself chooses the label
	single bool     // the model takes one row at a time, so that its outputs are the row's
}

// metadataLabels are the metadata keys under which a file may list its labels.
var metadataLabels = [...]string{"labels", "intents"}

// newReading chooses the outputs that Answer reads, once for each model.
func newReading(p Program, c *card) (*reading, error) {
	r := &reading{label: -1, scores: -1, values: -1, labels: labelsOf(p, c)}
	outputs := p.Outputs()
	if c.labelOutput != "" {
		if r.label = index(outputs, c.labelOutput); r.label < 0 || !isLabelOutput(outputs[r.label]) {
			return nil, fmt.Errorf("%w: %s: labels.output %q must be an output of texts or whole numbers; the model has %s", ErrUnfit, CardFile, c.labelOutput, names(outputs))
		}
	} else if r.labels == nil {
		r.label = slices.IndexFunc(outputs, isLabelOutput)
	}
	numbers, err := r.numbers(outputs, c.output)
	switch {
	case err != nil:
		return nil, err
	case r.label >= 0 && r.labels == nil:
		r.scores, r.names = numbers, classNames(p, numbers)
	case r.labels != nil:
		r.scores = numbers
	case numbers < 0:
		return nil, fmt.Errorf("%w: it has no output of 32-bit floating-point numbers, nor one of labels; it has %s", ErrUnfit, names(outputs))
	case last(outputs[numbers]) > 1 && last(outputs[numbers]) == len(classNames(p, numbers)):
		r.scores, r.labels = numbers, classNames(p, numbers) // scores of a classifier, without its label
	default:
		r.values = numbers
	}
	if r.labels != nil && r.scores < 0 && r.label < 0 {
		return nil, fmt.Errorf("%w: it has %d labels, and no output of as many 32-bit floating-point numbers; name it in %s: output: NAME", ErrUnfit, len(r.labels), CardFile)
	}
	return r, r.checkLabels(outputs)
}

// numbers returns the index of the output with scores: the named one, else the only one
// with a number for each label, else the first.
func (r *reading) numbers(outputs []tensor.Spec, name string) (int, error) {
	if name != "" {
		i := index(outputs, name)
		if i == r.label && i >= 0 {
			return -1, nil // the model answers a label without scores
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

// checkLabels makes sure that there is a label for each score, as far as the model declares
// their number.
func (r *reading) checkLabels(outputs []tensor.Spec) error {
	if r.labels == nil || r.scores < 0 {
		return nil
	}
	if n := last(outputs[r.scores]); n != tensor.Any && n != len(r.labels) {
		return fmt.Errorf("%w: it has %d labels, and its output %q has %d numbers", ErrUnfit, len(r.labels), outputs[r.scores].Name, n)
	}
	return nil
}

// classNames returns the names of the graph's classes. It returns nil if they cannot be the names of
// the numbers in an output: there are more or fewer of them, or two are equal.
func classNames(p Program, output int) []string {
	names := p.Labels()
	if output < 0 || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		return nil
	}
	if n := last(p.Outputs()[output]); n != tensor.Any && n != len(names) {
		return nil
	}
	return names
}

func labelsOf(p Program, c *card) []string {
	if c.labels != nil {
		return c.labels
	}
	meta := p.Metadata()
	for _, name := range metadataLabels {
		if list := meta[name]; list != "" {
			return splitLabels(list)
		}
	}
	return nil
}

// splitLabels reads labels from a file's metadata: a JSON list of texts, else a list with commas.
func splitLabels(list string) (labels []string) {
	if json.Unmarshal([]byte(list), &labels) == nil && len(labels) > 0 {
		return labels
	}
	labels = strings.Split(list, ",")
	for i := range labels {
		labels[i] = strings.TrimSpace(labels[i])
	}
	return labels
}

// isLabelOutput reports whether an output is one label a row.
func isLabelOutput(s tensor.Spec) bool {
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

// checkRows makes sure that each row has an answer. The trial request does not
// show that for several rows, because it mostly has one.
func (r *reading) checkRows(out []tensor.Tensor, rows int) error {
	if i := r.scores; i >= 0 && r.labels != nil && len(out[i].Floats) != rows*len(r.labels) {
		return fmt.Errorf("it answers %d rows with %d numbers, and has %d labels", rows, len(out[i].Floats), len(r.labels))
	}
	for _, i := range [...]int{r.scores, r.values} {
		if i >= 0 && !r.single && (rows > 1 || len(out[i].Shape) > 0) && (len(out[i].Shape) == 0 || out[i].Shape[0] != rows) {
			return fmt.Errorf("it answers %d rows with an output of shape %v; export it with a first dimension that is open in its outputs too, or set limits.rows to 1 in %s", rows, out[i].Shape, CardFile)
		}
	}
	if r.label >= 0 && length(&out[r.label]) != rows {
		return fmt.Errorf("it answers %d rows with %d labels; export it with a first dimension that is open in its outputs too, or set limits.rows to 1 in %s", rows, length(&out[r.label]), CardFile)
	}
	return nil
}

// answerAt returns the answer of a row.
func (r *reading) answerAt(out []tensor.Tensor, row int) (a Answer) {
	if r.values >= 0 {
		a.Values = r.rowOf(&out[r.values], row)
		return a
	}
	if r.scores >= 0 {
		a.Scores, a.Labels = r.rowOf(&out[r.scores], row), r.labels
		if r.labels == nil && len(r.names) == len(a.Scores) {
			a.Labels = r.names
		}
	}
	if r.label >= 0 {
		a.Label = r.chosenLabel(&out[r.label], row)
	} else if best := highest(a.Scores); best >= 0 && best < len(r.labels) {
		a.Label = r.labels[best]
	}
	return a
}

// chosenLabel returns the label that the model itself has chosen: a text, or the number of a label.
func (r *reading) chosenLabel(t *tensor.Tensor, row int) string {
	if t.Type == tensor.String {
		if row < len(t.Strings) {
			return t.Strings[row]
		}
		return ""
	}
	if row >= len(t.Ints) {
		return ""
	}
	n := t.Ints[row]
	if n >= 0 && n < int64(len(r.labels)) {
		return r.labels[n]
	}
	text := strconv.FormatInt(n, 10) // does not allocate below 100
	if n >= 0 && n < int64(len(r.names)) && !slices.Contains(r.names, text) {
		return r.names[n] // the number of a class that has a text as its name
	}
	return text
}

func (r *reading) rowOf(t *tensor.Tensor, row int) []float32 {
	if r.single || len(t.Shape) == 0 || t.Shape[0] < 1 {
		return t.Floats
	}
	width := len(t.Floats) / t.Shape[0]
	return t.Floats[row*width : (row+1)*width]
}

// highest returns the index of the highest score and ignores NaN; -1 if there is none.
func highest(scores []float32) int {
	best := -1
	for i, s := range scores {
		if s == s && (best < 0 || s > scores[best]) {
			best = i
		}
	}
	return best
}

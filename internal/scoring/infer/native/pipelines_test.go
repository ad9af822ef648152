//go:build pipelines

package native

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// asked is a pipeline's rows, and the answers of its library.
type asked struct {
	Inputs map[string]struct {
		Numbers []*float64 // null is NaN
		Texts   []string
	}
	Rows       int
	Labels     []string
	Numbers    []float64
	Runtime    []float64 // those of ONNX Runtime; none if it lacks an operator
	Double     bool      // exported in double precision
	Classifier bool
	Scores     bool // the numbers are scores, which are the last output
}

// figures are the results of the pipelines of one estimator.
type figures struct {
	made, rows, labels int
	apart              [2]float64 // greatest difference of single and of double precision
	over               [2]int     // pipelines that are further apart than closeEnough
	refused            map[string]int
	worst              [2]string
}

// luck counts the files with 32-bit numbers of which one engine is more than three times as far away as the other.
type luck struct {
	runtimeWorse int
	worse        []string // files of which it is this engine
}

// closeEnough is the greatest difference of a probability; for other numbers, of the largest of them.
const closeEnough = 1e-6

// Random pipelines of each estimator have the answers of their library. python/tests/pipelines/make.py
// makes the archive. Numbers are within 1e-6. Files with 32-bit numbers can be further away from a
// library with 64-bit numbers. Then ONNX Runtime is too, and this engine is at most three times as far
// away, because both round in another order. By chance one of the two is nearer than that: for such files this engine must
// not be the other one more often than ONNX Runtime is.
func TestPipelines(t *testing.T) {
	archive, err := zip.OpenReader(os.Getenv("TIDEMILL_PIPELINES"))
	if err != nil {
		t.Fatalf("open the archive that TIDEMILL_PIPELINES names, which python/tests/pipelines/make.py makes: %v", err)
	}
	defer archive.Close()
	results, chance := map[string]*figures{}, luck{}
	for _, f := range archive.File {
		name, isModel := strings.CutSuffix(f.Name, ".onnx")
		estimator := path.Dir(f.Name)
		if results[estimator] == nil {
			results[estimator] = &figures{refused: map[string]int{}}
		}
		if isModel {
			var q asked
			if err := json.Unmarshal(readAll(t, &archive.Reader, name+".json"), &q); err != nil {
				t.Fatal(err)
			}
			results[estimator].ask(t, &chance, name, readAll(t, &archive.Reader, f.Name), &q)
		}
	}
	wantDocumented(t, results)
	if t.Logf("files with 32-bit numbers: ONNX Runtime is more than three times as far away %d times, this engine %d times", chance.runtimeWorse, len(chance.worse)); len(chance.worse) > chance.runtimeWorse {
		t.Errorf("this engine is further away more often than ONNX Runtime: %s", strings.Join(chance.worse, "; "))
	}
	t.Logf("%-32s %6s %7s %7s %10s %6s %10s %6s", "estimator", "models", "rows", "labels", "float", "over", "double", "over")
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		t.Logf("%-32s %6d %7d %7d %10.1e %6d %10.1e %6d %v", name, r.made, r.rows, r.labels, r.apart[0], r.over[0], r.apart[1], r.over[1], r.refused)
		for i, worst := range r.worst {
			if r.over[i] > 0 && testing.Verbose() {
				t.Log("   ", worst)
			}
		}
	}
}

// wantDocumented checks the list of docs/scoring.md: this engine runs each estimator of the list, and no
// estimator of the archive is missing there unless none of its pipelines could be saved.
func wantDocumented(t *testing.T, results map[string]*figures) {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/scoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "| in Tidemill's own engine |")
	list, _, _ = strings.Cut(list, "\n\n")
	listed := map[string]bool{}
	for i, name := range strings.Split(list, "`") {
		if i%2 == 1 {
			listed[name] = true
		}
	}
	for name, r := range results {
		if runs := r.made > 0 && len(r.refused) == 0; runs != listed[name] {
			t.Errorf("%s: docs/scoring.md lists it: %v; its pipelines run in this engine: %v, and %v were refused", name, listed[name], r.made, r.refused)
		}
	}
	for name := range listed {
		if results[name] == nil {
			t.Errorf("%s: docs/scoring.md lists it, and the archive has no pipeline of it", name)
		}
	}
}

func readAll(t *testing.T, archive *zip.Reader, name string) []byte {
	t.Helper()
	f, err := archive.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ask compares the answers of one pipeline.
func (r *figures) ask(t *testing.T, chance *luck, name string, file []byte, q *asked) {
	p, err := Load(file)
	if err != nil {
		r.refused[err.Error()]++
		return
	}
	in, out := make([]tensor.Tensor, len(p.Inputs())), make([]tensor.Tensor, len(p.Outputs()))
	for i, spec := range p.Inputs() {
		in[i] = q.tensor(&spec)
	}
	if err := p.Run(in, out); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	r.made++
	r.rows += q.Rows
	r.compareLabels(t, name, &out[0], q)
	if len(q.Numbers) == 0 {
		return
	}
	at, off, runtime := int(truth(q.Double)), q.apart(out), 0.0
	if len(q.Runtime) > 0 {
		runtime = q.difference(func(i int) float64 { return q.Runtime[i] })
	}
	if r.apart[at] = max(r.apart[at], off); off > closeEnough {
		if r.over[at]++; off == r.apart[at] {
			r.worst[at] = fmt.Sprintf("%s: %.1e, and ONNX Runtime %.1e", name, off, runtime)
		}
	}
	told := fmt.Sprintf("%s: it is %.1e away from the library, and ONNX Runtime is %.1e away", name, off, runtime)
	switch {
	case runtime > closeEnough+3*off && !q.Double:
		chance.runtimeWorse++
	case off <= closeEnough+3*runtime:
	case q.Double || len(q.Runtime) == 0:
		t.Error(told)
	default:
		chance.worse = append(chance.worse, told)
	}
}

func (r *figures) compareLabels(t *testing.T, name string, out *tensor.Tensor, q *asked) {
	for i, want := range q.Labels {
		got := ""
		if out.Type == tensor.String {
			got = out.Strings[i]
		} else {
			got = strconv.FormatInt(out.Ints[i], 10)
		}
		if got != want && !q.isTie(i) {
			r.labels++
			t.Errorf("%s: row %d is %s, and %s to the library ", name, i, got, want)
		}
	}
}

// tensor returns the rows as an input.
func (q *asked) tensor(spec *tensor.Spec) tensor.Tensor {
	given := q.Inputs[spec.Name]
	x := tensor.Tensor{Type: spec.Type, Strings: given.Texts}
	for _, v := range given.Numbers {
		n := math.NaN()
		if v != nil {
			n = *v
		}
		if spec.Type == tensor.Double {
			x.Doubles = append(x.Doubles, n)
		} else {
			x.Floats = append(x.Floats, float32(n))
		}
	}
	if x.Shape = []int{q.Rows, length(&x) / q.Rows}; len(spec.Shape) == 1 {
		x.Shape = x.Shape[:1]
	}
	return x
}

// isTie reports whether the two best scores of a row are so close that rounding decides.
func (q *asked) isTie(row int) bool {
	width := len(q.Numbers) / q.Rows
	if width < 2 {
		return false
	}
	scores := slices.Sorted(slices.Values(q.Numbers[row*width : (row+1)*width]))
	return scores[width-1]-scores[width-2] <= closeEnough
}

// apart returns the greatest difference of a number; one if there are no such numbers.
func (q *asked) apart(out []tensor.Tensor) float64 {
	for i := range out {
		if q.Scores {
			i = len(out) - 1 - i
		}
		if out[i].Type != tensor.String && length(&out[i]) == len(q.Numbers) {
			return q.difference(func(k int) float64 { return numberAt(&out[i], k) })
		}
	}
	return 1
}

// difference returns the greatest difference from the library's numbers: of probabilities as it is, of
// other numbers as a part of the largest of them.
func (q *asked) difference(number func(int) float64) (off float64) {
	greatest := 1.0
	for k, v := range q.Numbers {
		if d := math.Abs(number(k) - v); !(d <= off) {
			off = d
		}
		if !q.Classifier {
			greatest = max(greatest, math.Abs(v))
		}
	}
	return off / greatest
}

func numberAt(t *tensor.Tensor, i int) float64 {
	switch t.Type {
	case tensor.Float:
		return float64(t.Floats[i])
	case tensor.Double:
		return t.Doubles[i]
	}
	return float64(t.Ints[i])
}

package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// svm has the support vectors of a model of libsvm. It computes in double precision, as libsvm does.
type svm struct {
	kind                 string // kernel
	gamma, shift, degree float64
	vectors              []float32 // one after the other
	features, count      int
	coefficients, rho    []float32
	from                 *ref
}

func (c *compiler) svm(n *node, count int64) (*svm, error) {
	m := &svm{
		kind: n.text("kernel_type", "LINEAR"), vectors: n.floats("support_vectors"), count: int(count),
		coefficients: n.floats("coefficients"), rho: n.floats("rho"), from: n.in[0].ref,
	}
	if !slices.Contains([]string{"LINEAR", "POLY", "RBF", "SIGMOID"}, m.kind) {
		return nil, fmt.Errorf("kernel_type %s %w", m.kind, onnx.ErrUnsupported)
	}
	if p := n.floats("kernel_params"); len(p) == 3 {
		m.gamma, m.shift, m.degree = float64(p[0]), float64(p[1]), float64(p[2])
	} else if m.kind != "LINEAR" {
		return nil, fmt.Errorf("it has %d kernel_params, and needs 3", len(p))
	}
	if count < 1 || count > math.MaxInt32 || len(m.vectors) == 0 || len(m.vectors)%m.count != 0 {
		return nil, fmt.Errorf("%d numbers are not those of %d support vectors", len(m.vectors), count)
	}
	m.features = len(m.vectors) / m.count
	return m, nil
}

func (m *svm) bytes() int64 { return 4 * int64(len(m.vectors)+len(m.coefficients)+len(m.rho)) }

// rows checks the input, and returns the number of its rows.
func (m *svm) rows(s *state) (*tensor.Tensor, int, error) {
	in := s.get(m.from)
	if len(in.Shape) == 0 || len(in.Shape) > 2 || in.Shape[len(in.Shape)-1] != m.features {
		return nil, 0, fmt.Errorf("its events are of %v numbers; the model was made for %d", slices.Clone(in.Shape), m.features)
	}
	rows := volume(in.Shape[:len(in.Shape)-1])
	return in, rows, s.multiply(rows, m.features, m.count)
}

// kernels computes the kernel of an event with each support vector.
func (m *svm) kernels(s *state, in *tensor.Tensor, row int) []float64 {
	s.doubles = room(s.doubles, m.count)
	at := row * m.features
	switch in.Type {
	case tensor.Float:
		kernelsOf(m, s.doubles, in.Floats[at:at+m.features])
	case tensor.Double:
		kernelsOf(m, s.doubles, in.Doubles[at:at+m.features])
	default:
		kernelsOf(m, s.doubles, in.Ints[at:at+m.features])
	}
	return s.doubles
}

func kernelsOf[T number](m *svm, to []float64, x []T) {
	for i := range to {
		vector := m.vectors[i*m.features : (i+1)*m.features]
		sum := 0.0
		if m.kind == "RBF" {
			for k, v := range vector {
				d := float64(x[k]) - float64(v)
				sum += d * d
			}
			to[i] = math.Exp(-m.gamma * sum)
			continue
		}
		for k, v := range vector {
			sum += float64(x[k]) * float64(v)
		}
		switch m.kind {
		case "POLY":
			sum = math.Pow(m.gamma*sum+m.shift, m.degree)
		case "SIGMOID":
			sum = math.Tanh(m.gamma*sum + m.shift)
		}
		to[i] = sum
	}
}

func dot(a []float32, b []float64) (sum float64) {
	for i, v := range a {
		sum += float64(v) * b[i]
	}
	return sum
}

func (c *compiler) svmRegressor(n *node) error {
	count := n.integer("n_supports", 0)
	if count == 0 {
		return fmt.Errorf("without support vectors %w", onnx.ErrUnsupported)
	}
	m, err := c.svm(n, count)
	if err != nil {
		return err
	}
	if len(m.coefficients) != m.count || len(m.rho) != 1 {
		return fmt.Errorf("it has %d coefficients and %d rho for %d support vectors", len(m.coefficients), len(m.rho), m.count)
	}
	oneClass := n.integer("one_class", 0) != 0
	y := c.output(n, 0, tensor.Float, []int{tensor.Any, 1})
	to := y.ref
	c.program.bytes += m.bytes()
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		in, rows, err := m.rows(s)
		if err != nil {
			return err
		}
		out, err := s.prepare(to, tensor.Float, rows, 1)
		if err != nil {
			return err
		}
		for i := range rows {
			v := dot(m.coefficients, m.kernels(s, in, i)) + float64(m.rho[0])
			if oneClass {
				v = 2*float64(truth(v > 0)) - 1
			}
			out.Floats[i] = float32(v)
		}
		return nil
	})
	return nil
}

// svc is a classifier: each pair of classes has a sum, which votes for one of the two.
type svc struct {
	*svm
	perClass      []int64   // support vectors of each class
	a, b          []float32 // parameters of each pair's probability; empty if there are none
	post          string
	ints          []int64
	texts         []string
	classes       int
	label, scores *ref
}

func (c *compiler) svmClassifier(n *node) error {
	k := &svc{
		perClass: n.ints("vectors_per_class"), a: n.floats("prob_a"), b: n.floats("prob_b"), post: n.text("post_transform", "NONE"),
		ints: n.ints("classlabels_ints"), texts: n.texts("classlabels_strings"),
	}
	k.classes = max(len(k.ints), len(k.texts))
	if len(k.ints) > 0 && len(k.texts) > 0 || k.classes < 2 || k.classes > maxClasses {
		return fmt.Errorf("its %d classes have no names, or two each, or are too few or too many", k.classes)
	}
	if len(k.perClass) == 0 {
		return fmt.Errorf("without support vectors %w", onnx.ErrUnsupported)
	}
	count := int64(0)
	for _, v := range k.perClass {
		if v < 0 || v > math.MaxInt32 {
			return fmt.Errorf("a class has %d support vectors", v)
		}
		count += v
	}
	m, err := c.svm(n, count)
	if err != nil {
		return err
	}
	pairs := k.classes * (k.classes - 1) / 2
	switch k.svm = m; {
	case len(k.perClass) != k.classes:
		return fmt.Errorf("vectors_per_class has %d numbers for %d classes", len(k.perClass), k.classes)
	case len(m.coefficients) != (k.classes-1)*m.count || len(m.rho) != pairs:
		return fmt.Errorf("it has %d coefficients and %d rho for %d classes and %d support vectors", len(m.coefficients), len(m.rho), k.classes, m.count)
	case len(k.a) != len(k.b) || len(k.a) != 0 && len(k.a) != pairs:
		return fmt.Errorf("it has %d prob_a and %d prob_b for %d pairs of classes", len(k.a), len(k.b), pairs)
	case !slices.Contains(postTransforms, k.post):
		return fmt.Errorf("post_transform %s %w", k.post, onnx.ErrUnsupported)
	case k.post != "NONE" && len(k.a) == 0 && k.classes == 2:
		return fmt.Errorf("a single sum with post_transform %s %w: engines interpret it differently", k.post, onnx.ErrUnsupported)
	}
	kind := tensor.Int64
	if k.texts != nil {
		kind = tensor.String
	}
	label, scores := c.output(n, 0, kind, []int{tensor.Any}), c.output(n, 1, tensor.Float, []int{tensor.Any, k.width()})
	k.label, k.scores = label.ref, scores.ref
	c.program.bytes += m.bytes() + 4*int64(len(k.a)+len(k.b))
	c.add(n.describe(), n.in, []*value{label, scores}, func(s *state) error { return k.run(s, kind) })
	return nil
}

// maxClasses bounds the pairs of classes.
const maxClasses = 1 << 12

// width returns the number of scores: one for each class, or one for each pair of more than two
// classes if there are no probabilities.
func (k *svc) width() int {
	if len(k.a) == 0 && k.classes > 2 {
		return k.classes * (k.classes - 1) / 2
	}
	return k.classes
}

func (k *svc) run(s *state, kind tensor.Type) error {
	in, rows, err := k.rows(s)
	if err == nil {
		err = s.multiply(rows, k.classes, k.count)
	}
	if err == nil && len(k.a) > 0 {
		err = s.multiply(rows, k.classes*k.classes, 10) // an exponential for each pair
	}
	if err != nil {
		return err
	}
	label, err := s.prepare(k.label, kind, rows)
	if err != nil {
		return err
	}
	out, err := s.prepare(k.scores, tensor.Float, rows, k.width())
	if err != nil {
		return err
	}
	width := k.width()
	for i := range rows {
		scores := out.Floats[i*width : (i+1)*width]
		best, err := k.classify(s, k.kernels(s, in, i), scores)
		if err != nil {
			return err
		}
		if k.texts != nil {
			label.Strings[i] = k.texts[best]
		} else {
			label.Ints[i] = k.ints[best]
		}
	}
	transform(k.post, out.Floats, width)
	return nil
}

// classify writes the scores of an event, and returns the class with the most votes.
func (k *svc) classify(s *state, kernels []float64, scores []float32) (best int, err error) {
	n := k.classes
	scratch := room(s.pairs, n*(n+4))
	s.pairs = scratch
	votes, chances := scratch[:n], scratch[n:n+n*n]
	clear(votes)
	pair, beginI := 0, 0
	for i := range n - 1 {
		endI := beginI + int(k.perClass[i])
		beginJ := endI
		for j := i + 1; j < n; j++ {
			endJ := beginJ + int(k.perClass[j])
			rowI, rowJ := k.coefficients[(j-1)*k.count:], k.coefficients[i*k.count:]
			sum := dot(rowI[beginI:endI], kernels[beginI:endI]) + dot(rowJ[beginJ:endJ], kernels[beginJ:endJ]) + float64(k.rho[pair])
			if sum > 0 {
				votes[i]++
			} else {
				votes[j]++
			}
			switch {
			case len(k.a) > 0:
				p := 1 / (1 + math.Exp(sum*float64(k.a[pair])+float64(k.b[pair])))
				p = min(max(p, 1e-7), 1-1e-7)
				chances[i*n+j], chances[j*n+i] = p, 1-p
			case n == 2:
				scores[0], scores[1] = float32(-sum), float32(sum)
			default:
				scores[pair] = float32(sum)
			}
			pair, beginJ = pair+1, endJ
		}
		beginI = endI
	}
	if len(k.a) > 0 {
		if err := s.couple(chances, scratch[n+n*n:], scores); err != nil {
			return 0, err
		}
	}
	for i, v := range votes {
		if v > votes[best] {
			best = i
		}
	}
	return best, nil
}

// mostTries bounds the iterations of couple, as in libsvm.
const mostTries = 100

// couple computes the probability of each class from that of each pair of classes, by the second
// method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise
// Coupling". libsvm uses it with the same start and the same end. NaN never converges, so each iteration
// counts against the limit.
func (s *state) couple(pairs, scratch []float64, to []float32) error {
	n := len(to)
	p, q := scratch[:n], scratch[n:2*n]
	at := func(i, j int) float64 { // element of the matrix Q
		if i != j {
			return -pairs[j*n+i] * pairs[i*n+j]
		}
		sum := 0.0
		for k := range n {
			if k != i {
				sum += pairs[k*n+i] * pairs[k*n+i]
			}
		}
		return sum
	}
	own := scratch[2*n : 3*n]
	for i := range p {
		p[i], own[i] = 1/float64(n), at(i, i)
	}
	for range max(mostTries, n) {
		if err := s.multiply(2, n, n); err != nil {
			return err
		}
		total := 0.0
		for i := range q {
			q[i] = own[i] * p[i]
			for j := range p {
				if j != i {
					q[i] += at(i, j) * p[j]
				}
			}
			total += p[i] * q[i]
		}
		off := 0.0
		for _, v := range q {
			off = max(off, math.Abs(v-total))
		}
		if off < 0.005/float64(n) {
			break
		}
		for i := range p {
			d := (total - q[i]) / own[i]
			p[i] += d
			total = (total + d*(d*own[i]+2*q[i])) / (1 + d) / (1 + d)
			for j := range p {
				if j == i {
					q[j] = (q[j] + d*own[i]) / (1 + d)
				} else {
					q[j] = (q[j] + d*at(i, j)) / (1 + d)
				}
				p[j] /= 1 + d
			}
		}
	}
	for i, v := range p {
		to[i] = float32(v)
	}
	return nil
}

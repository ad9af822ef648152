package trees

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomForest returns a forest with thresholds that inputs are often equal to.
func randomForest(r *rand.Rand, features int) *Forest {
	f := &Forest{Targets: 1 + r.IntN(4), Aggregate: Aggregate(r.IntN(4))}
	modes := []Mode{LessOrEqual, Less, GreaterOrEqual, Greater, Equal, NotEqual, Member}
	if r.IntN(2) == 0 {
		modes = modes[:1]
	}
	kind, oneTarget := []string{"one", "all", "some"}[r.IntN(3)], r.IntN(2) == 0
	for tree := range 1 + r.IntN(20) {
		f.Roots = append(f.Roots, int32(len(f.Nodes)))
		f.Nodes = append(f.Nodes, Node{})
		open := []int{len(f.Nodes) - 1}
		for range r.IntN(20) {
			k := r.IntN(len(open))
			at, first := open[k], int32(len(f.Nodes))
			f.Nodes[at] = Node{Value: threshold(r), Feature: int32(r.IntN(features)), True: first, False: first + 1, Mode: modes[r.IntN(len(modes))], Missing: r.IntN(2) == 0}
			if f.Nodes[at].Mode == Member {
				f.Nodes[at].Set = int32(len(f.Sets))
				f.Sets = append(f.Sets, []float64{threshold(r), threshold(r)}[:r.IntN(3)])
			}
			f.Nodes = append(f.Nodes, Node{}, Node{})
			open[k] = len(f.Nodes) - 2
			open = append(open, len(f.Nodes)-1)
		}
		for _, leaf := range open {
			votes := map[string]int{"one": 1, "all": f.Targets, "some": r.IntN(3)}[kind]
			for k := range votes {
				target := int32(tree % f.Targets)
				switch {
				case kind == "all":
					target = int32(k)
				case !oneTarget:
					target = int32(r.IntN(f.Targets))
				}
				f.Votes = append(f.Votes, Vote{int32(leaf), target, float64(float32(r.NormFloat64()))})
			}
		}
	}
	return f
}

func threshold(r *rand.Rand) float64 { return float64(r.IntN(7)-3) / 2 }

func randomRow[T Number](r *rand.Rand, features int) []T {
	row := make([]T, features)
	for i := range row {
		row[i] = T(threshold(r))
		switch r.IntN(8) {
		case 0:
			row[i] = T(math.NaN())
		case 1:
			row[i] = T(math.Inf(r.IntN(2)*2 - 1))
		case 2:
			row[i] = T(math.Nextafter32(float32(row[i]), 9))
		case 3:
			row[i] = T(math.Nextafter32(float32(row[i]), -9))
		case 4:
			row[i] = T(math.Copysign(0, -1))
		}
	}
	return row
}

// naive evaluates a forest node by node, as a file describes it.
func naive[T Number](f *Forest, row []T) (sums []T, seen []bool) {
	sums, seen = make([]T, f.Targets), make([]bool, f.Targets)
	for _, at := range f.Roots {
		for f.Nodes[at].Mode != Leaf {
			if n := f.Nodes[at]; naiveAnswer(f, n, row[n.Feature]) {
				at = n.True
			} else {
				at = n.False
			}
		}
		for _, v := range f.Votes {
			if v.Node != at {
				continue
			}
			value := T(v.Value)
			switch old := sums[v.Target]; {
			case f.Aggregate == Sum || f.Aggregate == Average:
				value += old
			case f.Aggregate == Min && seen[v.Target]:
				value = min(value, old)
			case f.Aggregate == Max && seen[v.Target]:
				value = max(value, old)
			}
			sums[v.Target], seen[v.Target] = value, true
		}
	}
	return sums, seen
}

func naiveAnswer[T Number](f *Forest, n Node, v T) bool {
	if v != v && n.Missing {
		return true
	}
	switch t := T(n.Value); n.Mode {
	case LessOrEqual:
		return v <= t
	case Less:
		return v < t
	case GreaterOrEqual:
		return v >= t
	case Greater:
		return v > t
	case Equal:
		return v == t
	case NotEqual:
		return v != t
	}
	return slices.Contains(f.Sets[n.Set], float64(v))
}

// A packed forest gives the same bits as the naive evaluation, for any number of rows.
func TestPackedForestsAnswerAsTheirNodesSay(t *testing.T) {
	t.Run("float32", func(t *testing.T) { compareWithNaive[float32](t) })
	t.Run("float64", func(t *testing.T) { compareWithNaive[float64](t) })
}

func compareWithNaive[T Number](t *testing.T) {
	var s Scratch
	forms := map[form]int{}
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		features := 1 + r.IntN(6)
		f := randomForest(r, features)
		e, err := Build[T](f)
		if err != nil {
			t.Fatal(seed, err)
		}
		forms[e.form]++
		rows, width := r.IntN(40), features+r.IntN(2)
		var x []T
		for range rows {
			x = append(x, randomRow[T](r, width)...)
		}
		sums, seen := make([]T, rows*f.Targets), make([]bool, rows*f.Targets)
		for i := range sums {
			sums[i], seen[i] = T(math.NaN()), true // a run overwrites what was there
		}
		e.Run(&s, rows, width, x, sums, seen)
		for row := range rows {
			want, wantSeen := naive(f, x[row*width:(row+1)*width])
			at := row * f.Targets
			if !slices.Equal(sums[at:at+f.Targets], want) || !slices.Equal(seen[at:at+f.Targets], wantSeen) {
				t.Fatalf("seed %d, row %d of %d: %v %v, want %v %v", seed, row, rows, sums[at:at+f.Targets], seen[at:at+f.Targets], want, wantSeen)
			}
		}
	}
	if _, double := any(T(0)).(float64); forms[sparse] < 50 || forms[dense] < 50 || forms[single] < 50 && !double {
		t.Errorf("the forests have the forms %v", forms)
	}
}

// The walk of this processor ends where the plain one does.
func TestWalksEndAtTheSameNodes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		e, err := Build[float32](randomForest(r, 5))
		if err != nil {
			t.Fatal(err)
		}
		groups, group := 1+r.IntN(3), lanes*len(e.columns)
		columns := make([]uint32, groups*group)
		for i := range groups * lanes {
			e.prepare(randomRow[float32](r, 5), columns[i/lanes*group:], i%lanes)
		}
		for steps := range 12 {
			want := make([]uint32, groups*lanes)
			for i := range want {
				want[i] = e.trees[r.IntN(len(e.trees))].root
			}
			got := slices.Clone(want)
			stride := 4 * group * r.IntN(2)
			walk(&e.nodes[0], &columns[0], &got[0], groups, stride, steps)
			walkPlain(&e.nodes[0], &columns[0], &want[0], groups, stride, steps)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, %d steps: %v, want %v", seed, steps, got, want)
			}
		}
	}
}

// Keys have the order of the floats, and both zeros are the same.
func TestKeysHaveTheOrderOfTheFloats(t *testing.T) {
	inf := float32(math.Inf(1))
	sorted := []float32{-inf, -math.MaxFloat32, -1, -1e-40, 0, math.SmallestNonzeroFloat32, 1, math.Nextafter32(1, 2), math.MaxFloat32, inf}
	for i, v := range sorted {
		if keyOf(v) == never || keyOf(v) == always || i > 0 && keyOf(v) <= keyOf(sorted[i-1]) {
			t.Errorf("%v has the key %d, and the number before it %d", v, keyOf(v), keyOf(sorted[max(i-1, 0)]))
		}
	}
	if keyOf(float32(math.Copysign(0, -1))) != keyOf(0) || keyOf(math.SmallestNonzeroFloat32) != keyOf(0)+1 {
		t.Error("the keys around 0 are not consecutive")
	}
}

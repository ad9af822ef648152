package fleet

import (
	"encoding/json"
	"math"
	"testing"
)

var small = Network{4, 3, 2}

func TestAnswersAreThoseOfThePlainArithmetic(t *testing.T) {
	row := []float32{1, 0, 2, 0.5}
	got := small.Answers(Seed(3, 2), row)
	r := source(Seed(3, 2))
	w1, b1 := r.floats(12, small.scale(0)), r.floats(3, small.scale(0))
	w2, b2 := r.floats(6, small.scale(1)), r.floats(2, small.scale(1))
	hidden := make([]float64, 3)
	for c := range hidden {
		hidden[c] = max(0, float64(b1[c])+1*float64(w1[c])+2*float64(w1[6+c])+0.5*float64(w1[9+c]))
	}
	var y [2]float64
	for c := range y {
		y[c] = float64(b2[c])
		for k := range hidden {
			y[c] += hidden[k] * float64(w2[k*2+c])
		}
	}
	want := 1 / (1 + math.Exp(y[1]-y[0]))
	if math.Abs(got[0]-want) > 1e-9 || math.Abs(got[0]+got[1]-1) > 1e-9 {
		t.Errorf("the answers are %v, and the first should be %v", got, want)
	}
}

func TestFilesDifferByVersionAndAreTheSameEachTime(t *testing.T) {
	a, again, b := small.File(Seed(1, 1)), small.File(Seed(1, 1)), small.File(Seed(1, 2))
	if string(a) != string(again) || string(a) == string(b) || len(a) != len(b) {
		t.Error("a file does not follow from its seed")
	}
}

func TestBodiesSayWhatIsInTheirRows(t *testing.T) {
	for _, kind := range []Kind{KindDigits, KindFloats} {
		f := Fleet{Models: 1, Network: Network{512, 64, 20}, Kind: kind}
		for _, b := range f.Bodies() {
			var d struct{ X []float32 }
			if err := json.Unmarshal(b.Data, &d); err != nil {
				t.Fatal(err)
			}
			for i, v := range d.X {
				if v != b.Row[i] {
					t.Fatalf("%s: number %d is %v in the data and %v in the row", kind, i, v, b.Row[i])
				}
			}
		}
	}
}

func TestEventsOfDigitsAreAKibibyte(t *testing.T) {
	f := Fleet{Models: 1, Network: Network{512, 64, 20}, Kind: KindDigits}
	if n := len(f.Bodies()[0].Data); n < 1000 || n > 1050 {
		t.Errorf("the data has %d bytes", n)
	}
	if n := len(f.Network.File(1)); n < 136_000 || n > 139_000 {
		t.Errorf("the model has %d bytes", n)
	}
}

func TestZipfKeysComeMostlyFromAFew(t *testing.T) {
	f := Fleet{Models: 1000, Spread: Zipf}
	a, b := f.Keys(), f.Keys()
	n := make([]int, f.Models)
	for range 100_000 {
		k := a.Next()
		if k != b.Next() {
			t.Fatal("the sequence is another each time")
		}
		n[k]++
	}
	if n[0] < 10_000 || n[999] > 100 {
		t.Errorf("the first key has %d of 100,000 events, the last %d", n[0], n[999])
	}
}

// The file of trees has the trees that the oracle walks.
func TestTreesAreInTheirFile(t *testing.T) {
	trees := Trees{Count: 1, Depth: 2, Features: 3}
	all := trees.draw(7)
	if len(all) != trees.Nodes() || len(all) != 7 {
		t.Fatalf("a tree of depth 2 has %d nodes", len(all))
	}
	row := make([]float32, 3)
	at := 0
	for range trees.Depth {
		row[all[at].feature] = 2 // above every threshold: always the second child
		at = 2*at + 2
	}
	if got := trees.Oracle(7)(row); got != float64(all[at].value) {
		t.Errorf("the answer is %v and should be %v of node %d", got, all[at].value, at)
	}
	a, again, b := trees.File(7), trees.File(7), trees.File(8)
	if string(a) != string(again) || string(a) == string(b) {
		t.Error("a file does not follow from its seed")
	}
}

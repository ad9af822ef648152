//go:build real

package trials

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// With p-values as the bounds, the choice is the procedure of Benjamini and Hochberg, which SciPy has.
func TestRealChoiceIsSciPys(t *testing.T) {
	var asked [][]float64
	r := rand.New(rand.NewPCG(3, 8))
	for range 200 {
		values := make([]float64, 1+r.IntN(200))
		for i := range values {
			values[i] = math.Pow(r.Float64(), 1+float64(r.IntN(8)))
		}
		asked = append(asked, values)
	}
	var rejects [][]bool
	err := realservers.AskSciPy(t.Context(), `
import json, sys
from scipy.stats import false_discovery_control
json.dump([(false_discovery_control(one, method="bh") <= 0.05).tolist() for one in json.load(sys.stdin)], sys.stdout)
`, asked, &rejects)
	if err != nil {
		t.Fatal(err)
	}
	some := 0
	for i, values := range asked {
		f := family{alpha: 0.05, trials: len(values)}
		chosen, _ := f.choose(len(values), func(i int, level float64) bool { return values[i] <= level })
		if !slices.Equal(chosen, rejects[i]) {
			t.Errorf("of %v chosen are %v, by SciPy %v", values, chosen, rejects[i])
		}
		if slices.Contains(rejects[i], true) {
			some++
		}
	}
	if some < 50 {
		t.Errorf("only %d lists have a rejected hypothesis", some)
	}
}

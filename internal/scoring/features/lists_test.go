package features

import (
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// A list may have numbers of all kinds in any order: those that are read in groups, and the others.
func TestListsOfAllKindsOfNumbers(t *testing.T) {
	kinds := []func(*rand.Rand) string{digit, decimal4, java, python,
		func(r *rand.Rand) string { return "-" + java(r) },
		func(r *rand.Rand) string { return strconv.Itoa(r.IntN(1 << 30)) },
		func(r *rand.Rand) string { return strconv.FormatFloat(r.ExpFloat64()*1e9, 'e', -1, 64) }}
	s := spec("a", tensor.Float, 300)
	for seed := range uint64(200) {
		r := seeded(seed)
		var data strings.Builder
		kind := 0
		for i := range 300 {
			if i > 0 {
				data.WriteString([]string{",", ",", ", ", " ,\n"}[r.IntN(4)])
			}
			if r.IntN(4) == 0 { // runs of one kind
				kind = r.IntN(len(kinds))
			}
			data.WriteString(kinds[kind](r))
		}
		body := `{"a":[` + data.String() + `]}`
		want, _ := oracle([]byte(body), "data.a", s)
		if got, err := readOne(t, "data.a", s, event(body)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %v\nread %v\nwant %v", body, err, got, want)
		}
	}
}

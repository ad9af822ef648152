package score

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"tidemill.dev/internal/scoring/infer"
)

func TestScoredIsWritten(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, c := range []struct {
		name string
		a    infer.Answer
		top  int
		want string
	}{
		{"a classifier", infer.Answer{Label: "greet", Labels: []string{"bye", "greet"}, Scores: []float32{0.1, 0.9}}, 0,
			`{"label":"greet","score":0.900000,"scores":{"bye":0.100000,"greet":0.900000}}`},
		{"its highest", infer.Answer{Label: "b", Labels: []string{"a", "b", "c", "d"}, Scores: []float32{0.2, 0.5, 0.1, 0.2}}, 3,
			`{"label":"b","score":0.500000,"scores":{"b":0.500000,"a":0.200000,"d":0.200000}}`},
		{"a label that is not the highest", infer.Answer{Label: "a", Labels: []string{"a", "b"}, Scores: []float32{0.25, 0.75}}, 1,
			`{"label":"a","score":0.250000,"scores":{"b":0.750000}}`},
		{"scores that have no labels", infer.Answer{Label: "7", Scores: []float32{0.25, 0.75}}, 0,
			`{"label":"7","score":0.750000,"scores":{"0":0.250000,"1":0.750000}}`},
		{"a label alone", infer.Answer{Label: "x"}, 0, `{"label":"x"}`},
		{"a label with no score", infer.Answer{Label: "x", Labels: []string{"y"}, Scores: []float32{1}}, 0, `{"label":"x","scores":{"y":1.000000}}`},
		{"numbers", infer.Answer{Values: []float32{1.5, -2, 0, 1e-8, 12345.678, 1e20, 1e22, -0.0000001, 0.0123456789, nan}}, 0,
			`{"values":[1.5,-2,0,1e-08,12345.678,100000000000000000000,1e+22,-1e-07,0.012345679,null]}`},
		{"nothing", infer.Answer{}, 0, `{"values":[]}`},
		{"what is no number", infer.Answer{Label: "a", Labels: []string{"a", "b", "c"}, Scores: []float32{nan, inf, -0.0000001}}, 0,
			`{"label":"a","score":null,"scores":{"a":null,"b":null,"c":0.000000}}`},
		{"the highest among no numbers", infer.Answer{Label: "c", Labels: []string{"a", "b", "c"}, Scores: []float32{nan, nan, 1}}, 2,
			`{"label":"c","score":1.000000,"scores":{"c":1.000000}}`},
		{"odd labels", infer.Answer{Label: "a\"\\\n\xff…", Labels: []string{"a\"\\\n\xff…"}, Scores: []float32{1}}, 0,
			`{"label":"a\"\\\u000a` + "\ufffd…" + `","score":1.000000,"scores":{"a\"\\\u000a` + "\ufffd…" + `":1.000000}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(appendScored(nil, &c.a, c.top)); got != c.want {
				t.Errorf("wrote %s\nwant  %s", got, c.want)
			} else if err := json.Unmarshal([]byte(got), new(Scored)); err != nil {
				t.Errorf("it cannot be read: %v", err)
			}
		})
	}
}

// The six decimals are those of strconv, except that a half of the sixth is rounded up.
func TestNumbersAreWrittenAsStrconvWritesThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		v := float32(r.ExpFloat64()) * float32(math.Pow10(r.IntN(12)-6))
		if r.IntN(2) == 0 {
			v = -v
		}
		got := string(appendScore(nil, v))
		f, err := strconv.ParseFloat(got, 64)
		if off := math.Abs(f - float64(v)); err != nil || off > 0.5000001e-6+math.Abs(float64(v))*1e-15 {
			t.Fatalf("%v is written %s, %v off: %v", v, got, off, err)
		}
		if want := strconv.FormatFloat(float64(v), 'f', 6, 64); got != want && fmt.Sprint(f) != "0" && math.Abs(math.Abs(f-float64(v))-0.5e-6) > 1e-9 {
			t.Fatalf("%v is written %s, strconv writes %s", v, got, want)
		}
	}
}

// twenty returns an answer like those of the bots' models.
func twenty() infer.Answer {
	a := infer.Answer{Label: "intent-7"}
	for i := range 20 {
		a.Labels = append(a.Labels, fmt.Sprintf("intent-%d", i))
		a.Scores = append(a.Scores, 1/float32(i+3))
	}
	a.Scores[7] = 0.9
	return a
}

func TestWritingAllocatesNothing(t *testing.T) {
	a := twenty()
	dst := make([]byte, 0, 4096)
	for _, top := range []int{0, 3} {
		if n := testing.AllocsPerRun(100, func() { dst = appendScored(dst[:0], &a, top) }); n != 0 {
			t.Errorf("writing an answer of top %d allocates %v times", top, n)
		}
	}
}

func BenchmarkAppendScored(b *testing.B) {
	a := twenty()
	dst := make([]byte, 0, 4096)
	for _, top := range []int{0, 1, 3} {
		b.Run("top="+strconv.Itoa(top), func(b *testing.B) {
			for b.Loop() {
				dst = appendScored(dst[:0], &a, top)
			}
			b.SetBytes(int64(len(dst)))
		})
	}
	b.Run("values", func(b *testing.B) {
		v := infer.Answer{Values: a.Scores}
		for b.Loop() {
			dst = appendScored(dst[:0], &v, 0)
		}
	})
	b.Run("json", func(b *testing.B) {
		s := Scored{Label: a.Label, Score: 0.9, Scores: map[string]float64{}}
		for i, l := range a.Labels {
			s.Scores[l] = float64(a.Scores[i])
		}
		for b.Loop() {
			if _, err := json.Marshal(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

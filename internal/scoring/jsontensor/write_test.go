package jsontensor

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Values are read again as they were.
func TestValuesAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		v := math.Float32frombits(r.Uint32())
		if v != v || math.IsInf(float64(v), 0) {
			continue
		}
		var got float32
		if text := AppendFloat(nil, v); json.Unmarshal(text, &got) != nil || got != v {
			t.Fatalf("%v is written %s", v, text)
		}
		d := math.Float64frombits(r.Uint64())
		if d != d || math.IsInf(d, 0) {
			continue
		}
		var back float64
		if text := AppendDouble(nil, d); json.Unmarshal(text, &back) != nil || back != d {
			t.Fatalf("%v is written %s", d, text)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("plain")
	f.Add("a\"\\\x00\x7f\u2028\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(AppendText(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if want := string([]rune(s)); got != want || !utf8.ValidString(got) {
			t.Fatalf("%q is written %q", want, got)
		}
	})
}

// What is written is read again, for each type.
func TestTensorsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   tensor.Tensor
		want string
	}{
		{tensor.Tensor{Type: tensor.Float, Floats: []float32{0.1, -2, 1e-8}}, "[0.1,-2,1e-08]"},
		{tensor.Tensor{Type: tensor.Double, Doubles: []float64{0.1, 1e300}}, "[0.1,1e+300]"},
		{tensor.Tensor{Type: tensor.Int64, Ints: []int64{math.MaxInt64, -1}}, "[9223372036854775807,-1]"},
		{tensor.Tensor{Type: tensor.Bool, Ints: []int64{1, 0}}, "[true,false]"},
		{tensor.Tensor{Type: tensor.String, Strings: []string{"a\"", ""}}, `["a\"",""]`},
		{tensor.Tensor{Type: tensor.Float}, "[]"},
	} {
		text, ok := Append(nil, &c.of)
		if string(text) != c.want || !ok {
			t.Errorf("wrote %s, want %s", text, c.want)
		}
		back := tensor.Tensor{Type: c.of.Type}
		back.Resize(c.of.Len())
		if c.of.Len() == 0 {
			continue
		}
		if n, end := Values(text, 1, &back, 0, back.Len()); n != c.of.Len() || end != len(text) {
			t.Errorf("%s: read %d values up to %d", text, n, end)
		}
		if again, _ := Append(nil, &back); string(again) != c.want {
			t.Errorf("%s is read as %s", text, again)
		}
	}
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		if text, ok := Append(nil, &tensor.Tensor{Type: tensor.Float, Floats: []float32{1, float32(x)}}); ok {
			t.Errorf("%v is written %s", x, text)
		}
		if text, ok := Append(nil, &tensor.Tensor{Type: tensor.Double, Doubles: []float64{x}}); ok {
			t.Errorf("%v is written %s", x, text)
		}
	}
}

package jsontensor

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// FuzzValues compares a list with the values that encoding/json and strconv read: the same values, and a fault
// for the same lists.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{
		"[1,2,3,4,5]", "[0.5, -1.25 , 1e3]", "[1,,2,3,4,5,6,7,8]", "[1,.5,2,3,4,5,6,7,8]", "[,1]", "[1,]", "[true,false]", "[]", `["a\n",""]`, "[1 2]",
		"[-0.12345678901234567,99.5,1,1,1,1,1,1]", "[01.5,1,1,1,1,1,1,1]", "[1.,1,1,1,1,1,1,1]", "[-,1]", "[1e400]", "[;.5,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[[1]]", "[null]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(text, "[") {
			return
		}
		for _, typ := range []tensor.Type{tensor.Float, tensor.Double, tensor.String} {
			want, ok := listOf(text, typ)
			to := &tensor.Tensor{Type: typ}
			to.Resize(max(1, len(want)))
			n, end := Values([]byte(text), 1, to, 0, to.Len())
			read := end >= 0 && n == len(want) && text[end-1] == ']' && jsonscan.SkipSpace([]byte(text), end) == len(text)
			if ok != read {
				t.Fatalf("%q as %v: read %d values up to %d; encoding/json has %v, %v", text, typ, n, end, want, ok)
			}
			for i := range want {
				if got := valueAt(to, i); read && got != want[i] {
					t.Fatalf("%q as %v: value %d is %s, not %s", text, typ, i, got, want[i])
				}
			}
		}
	})
}

// valueAt returns the bits of a number, or the text.
func valueAt(t *tensor.Tensor, i int) string {
	switch t.Type {
	case tensor.Float:
		return strconv.FormatUint(uint64(math.Float32bits(t.Floats[i])), 16)
	case tensor.Double:
		return strconv.FormatUint(math.Float64bits(t.Doubles[i]), 16)
	}
	return t.Strings[i]
}

// listOf reads a list with encoding/json. An empty list is a fault, because no tensor is empty.
func listOf(text string, typ tensor.Type) (want []string, ok bool) {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var all []any
	if !json.Valid([]byte(text)) || d.Decode(&all) != nil || len(all) == 0 {
		return make([]string, strings.Count(text, ",")+1), false
	}
	for _, v := range all {
		s, isText := v.(string)
		if typ == tensor.String {
			if want = append(want, s); !isText {
				return want, false
			}
			continue
		}
		word := map[any]string{true: "1", false: "0"}
		n, isNumber := v.(json.Number)
		if b, is := v.(bool); is {
			n, isNumber = json.Number(word[b]), true
		}
		width := map[tensor.Type]int{tensor.Float: 32, tensor.Double: 64}[typ]
		f, err := strconv.ParseFloat(string(n), width)
		one := &tensor.Tensor{Type: typ, Floats: []float32{float32(f)}, Doubles: []float64{f}}
		if want = append(want, valueAt(one, 0)); !isNumber || err != nil {
			return make([]string, len(all)), false
		}
	}
	return want, true
}

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

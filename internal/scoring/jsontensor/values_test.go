package jsontensor

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

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

package features

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"testing"
	"unicode/utf8"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// FuzzPick compares the values that are read with those that encoding/json decodes: the same
// values, and an error for the same documents.
func FuzzPick(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2,3,4],"b":{"c":"x\u00e9"},"n":12}`, `{"a":[1,2,3,4.5,0.125],"a":[9,9,9,9],"b":{"c":"\ud83d"}}`, `[1]`, `{"a":[0.1234,-5,1e5,true],"n":1e400}`,
		`{"b":{"c":"` + "\xff" + `"},"n":0.30000000000000004}`, `{"a": [1, 2, 3, 4] , "n": -0.0, "b": {"c": "\\"}}`, `{"n":16777217,"a":[1,2,3,16777217.0000001]}`,
		`{"a":[0.0000000000000000000000000001,1.00000005960464477539062,9007199254740993,340282356779733661637539395458142568447]}`,
	} {
		f.Add([]byte(seed))
	}
	inputs := []tensor.Spec{
		spec("a", tensor.Float, 4), spec("open", tensor.Double, tensor.Any), spec("b", tensor.String), spec("n", tensor.Int64),
		spec("d", tensor.Double), spec("deep", tensor.Float, 2, 2), spec("texts", tensor.String, tensor.Any),
	}
	paths := []string{"data.a", "data.a", "data.b.c", "data.n", "data.n", "data.a", "data.b.c"}
	f.Fuzz(func(t *testing.T, data []byte) {
		for i, s := range inputs {
			want, ok := oracle(data, paths[i], s)
			got, err := readOne(t, paths[i], s, event(string(data)))
			if ok != (err == nil) {
				t.Fatalf("%s as %v: %v; encoding/json has %v", paths[i], s, err, want)
			}
			if ok && !reflect.DeepEqual(got, want) && reflect.ValueOf(want).Len()+reflect.ValueOf(got).Len() > 0 {
				t.Fatalf("%s as %v: picked %v, encoding/json has %v", paths[i], s, got, want)
			}
		}
	})
}

// oracle decodes the whole document and returns the value at the path.
func oracle(data []byte, path string, s tensor.Spec) (any, bool) {
	var all any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if !json.Valid(data) || d.Decode(&all) != nil {
		return nil, false
	}
	p, _ := parsePath(path)
	found, where := walkSteps(all, p.steps)
	if where != "" {
		return nil, false
	}
	values, shape, ok := flatten(found)
	if !ok || !fits(shape, s.Shape[1:], len(values)) {
		return nil, false
	}
	switch s.Type {
	case tensor.Float:
		return convert(values, func(v any) (float32, bool) {
			n, ok := literal(v)
			f, err := strconv.ParseFloat(n, 32)
			return float32(f), ok && err == nil
		})
	case tensor.Double:
		return convert(values, func(v any) (float64, bool) {
			n, ok := literal(v)
			f, err := strconv.ParseFloat(n, 64)
			return f, ok && err == nil
		})
	case tensor.String:
		return convert(values, func(v any) (string, bool) { x, ok := v.(string); return x, ok })
	}
	return convert(values, func(v any) (int64, bool) {
		n, ok := literal(v)
		if i, err := strconv.ParseInt(n, 10, 64); err == nil {
			return i, ok
		}
		f, err := strconv.ParseFloat(n, 64)
		whole := err == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53
		return int64(f), ok && whole && bytes.ContainsAny([]byte(n), ".eE")
	})
}

func literal(v any) (string, bool) {
	switch v := v.(type) {
	case json.Number:
		return v.String(), true
	case bool:
		return map[bool]string{true: "1", false: "0"}[v], true
	}
	return "", false
}

func convert[T any](values []any, one func(any) (T, bool)) (any, bool) {
	out := make([]T, len(values))
	for i, v := range values {
		var ok bool
		if out[i], ok = one(v); !ok {
			return nil, false
		}
	}
	return out, true
}

// flatten returns the values of nested arrays of equal shape in one list.
func flatten(v any) (values []any, shape []int, ok bool) {
	array, is := v.([]any)
	if !is {
		return []any{v}, nil, true
	}
	var inner []int
	for i, e := range array {
		below, at, ok := flatten(e)
		if i == 0 {
			inner = at
		}
		if !ok || !reflect.DeepEqual(at, inner) {
			return nil, nil, false
		}
		values = append(values, below...)
	}
	return values, append([]int{len(array)}, inner...), true
}

func fits(have, want []int, n int) bool {
	product, open := 1, false
	for _, size := range want {
		open = open || size < 0
		product *= size
	}
	switch {
	case have == nil: // a single value
		return open && len(want) == 1 || product == 1
	case len(want) == 0:
		return n == 1 && len(have) == 1
	case len(have) == 1 && len(want) > 1:
		return !open && n == product && n > 0
	}
	if len(have) != len(want) {
		return false
	}
	for i := range want {
		if want[i] >= 0 && want[i] != have[i] {
			return false
		}
	}
	return true
}

// FuzzNumber compares the numbers with those of strconv.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0", "1.5", "0.1234", "1e5", "1e-45", "3.4028235e38", "3.4028236e38", "1.17549435e-38", "16777217", "8388608.5", "8388609.5",
		"0.1000000014901161193847656249", "123456789012345678901234567890", "1e22", "1e23", "9007199254740993", "1.0000000596046448", "7e-46", "1E+2", "1e", "01", ".5", "1.", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		var n json.Number
		valid := json.Unmarshal([]byte(s), &n) == nil && n != "" && s[0] != '"' && s[len(s)-1] > ' ' && s[0] > ' '
		d, end := number([]byte(s), 0)
		if valid != (end == len(s)) {
			t.Fatalf("%q is a number to its byte %d; encoding/json says %v", s, end, valid)
		}
		if !valid {
			return
		}
		want, err := strconv.ParseFloat(s, 32)
		if got, ok := d.float([]byte(s)); ok != (err == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%s as a float is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
		want, err = strconv.ParseFloat(s, 64)
		if got, ok := d.double([]byte(s)); ok != (err == nil) || ok && math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%s as a double is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
	})
}

// Random floats, printed by strconv with few or many digits, are parsed as strconv parses them.
func TestManyNumbers(t *testing.T) {
	r := seeded(7)
	for range 200_000 {
		f := math.Float32frombits(r.Uint32())
		if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
			continue
		}
		if r.IntN(2) == 0 {
			f = r.Float32()
		}
		s := strconv.FormatFloat(float64(f), "feg"[r.IntN(3)], r.IntN(25)-1, 32+32*r.IntN(2))
		d, end := number([]byte(s), 0)
		want, err := strconv.ParseFloat(s, 32)
		if got, ok := d.float([]byte(s)); end != len(s) || ok != (err == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%s is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
		if got, end := quickFloat([]byte(s+",0,0,0,0,0,0,0,0,0"), 0); err == nil && (end != len(s) || math.Float32bits(got) != math.Float32bits(float32(want))) {
			t.Fatalf("%s is %v up to %d, not %v", s, got, end, want)
		}
	}
}

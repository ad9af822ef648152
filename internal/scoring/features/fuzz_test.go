package features

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"testing"

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

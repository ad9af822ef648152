package rest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

var specs = []tensor.Spec{{Name: "x", Type: tensor.Float, Shape: []int{tensor.Any, 2}}, {Name: "text", Type: tensor.String, Shape: []int{tensor.Any, 1}}}

func tensorsOfText(text string) ([]tensor.Tensor, int, error) {
	q, err := readRequest(strings.NewReader(text), 1<<20)
	if err != nil {
		return nil, 0, err
	}
	c := oip.NewCall(specs, nil)
	if err := q.give(c); err != nil {
		return nil, 0, err
	}
	return c.Inputs()
}

// Values may be in one list, or nested like the shape. Inputs may be in any order.
func TestInputsAreRead(t *testing.T) {
	t.Parallel()
	want := []tensor.Tensor{{Type: tensor.Float, Shape: []int{2, 2}, Floats: []float32{1, 2.5, -3e-7, 4}}, {Type: tensor.String, Shape: []int{2, 1}, Strings: []string{"hé", ""}}}
	for _, data := range []string{`[1, 2.5, -3e-7, 4]`, `[[1,2.5],[-3e-7,4]]`} {
		in, rows, err := tensorsOfText(`{"id":"7","parameters":{"a":1},"inputs":[{"name":"text","shape":[2,1],"datatype":"BYTES","data":["h\u00e9",""]},
			{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{},"data":` + data + `}]}`)
		if err != nil || rows != 2 || !reflect.DeepEqual(in, want) {
			t.Errorf("%s: %+v, %d, %v", data, in, rows, err)
		}
	}
}

func TestRequestsThatAreNone(t *testing.T) {
	t.Parallel()
	text := `{"name":"text","shape":[1,1],"datatype":"BYTES","data":["a"]}`
	x := func(shape, datatype, data string) string {
		return `{"inputs":[` + text + `,{"name":"x","shape":` + shape + `,"datatype":"` + datatype + `","data":` + data + `}]}`
	}
	for body, says := range map[string]string{
		`[]`:                                        "not an inference request: array is not expected at byte 1",
		`{"inputs":[`:                               "not an inference request",
		`{"inputs":[]} x`:                           "not an inference request",
		`{}`:                                        `input "x" is missing`,
		`{"inputs":[` + text + `]}`:                 `input "x" is missing`,
		`{"inputs":[` + text + `,` + text + `]}`:    "given twice",
		`{"inputs":[{"name":"y"}]}`:                 `no input "y"; it has ["x" "text"]`,
		x(`[1,2]`, "FP64", `[1,2]`):                 `its datatype is FP32, not "FP64"`,
		x(`[1,3]`, "FP32", `[1,2,3]`):               "its shape is [-1 2], not [1 3]",
		x(`[2]`, "FP32", `[1,2]`):                   "its shape is",
		x(`[0,2]`, "FP32", `[]`):                    "its shape is",
		x(`[-1,2]`, "FP32", `[1,2]`):                "its shape is",
		x(`[1.5,2]`, "FP32", `[1,2]`):               "not an inference request",
		x(`[2,2]`, "FP32", `[1,2,3,4]`):             "have 2 rows and 1",
		x(`[1,2]`, "FP32", `[1]`):                   "data has 1 values",
		x(`[1,2]`, "FP32", `[1,2,3]`):               "more than the 2 values",
		x(`[1,2]`, "FP32", `[[1],[2]]`):             "members",
		x(`[1,2]`, "FP32", `[[1,2],3]`):             "nested in one place",
		x(`[1,2]`, "FP32", `[1,[2]]`):               "nested deeper",
		x(`[1,2]`, "FP32", `[[[1,2]]]`):             "nested deeper",
		x(`[1,2]`, "FP32", `["1","2"]`):             "value 1 of data is none of FP32",
		x(`[1,2]`, "FP32", `[1,null]`):              "value 2 of data is none",
		x(`[1,2]`, "FP32", `[1,1e39]`):              "value 2 of data is none",
		x(`[1,2]`, "FP32", `{"a":1}`):               "must be a list",
		x(`[1,2]`, "FP32", `[{"a":1}]`):             "none of FP32",
		x(`[4000000000000,2]`, "FP32", `[1]`):       "fewer values",
		x(`[9223372036854775807,2]`, "FP32", `[1]`): "fewer values",
	} {
		_, _, err := tensorsOfText(body)
		if err == nil || statusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", body, err, says)
		}
	}
	if _, err := readRequest(strings.NewReader(`{"inputs":[]}`), 5); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("one that is too large: %v", err)
	}
}

func TestValuesOfEachType(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ       tensor.Type
		good, bad string
		want      any
	}{
		{tensor.Float, `[0.1,-2]`, `["NaN"]`, []float32{0.1, -2}},
		{tensor.Double, `[0.1,1e300]`, `[1e400]`, []float64{0.1, 1e300}},
		{tensor.Int32, `[-2147483648,2147483647]`, `[2147483648]`, []int64{-2147483648, 2147483647}},
		{tensor.Int64, `[9223372036854775807,-1]`, `[9223372036854775808]`, []int64{9223372036854775807, -1}},
		{tensor.Int64, `[1,2]`, `[1.0]`, []int64{1, 2}},
		{tensor.Bool, `[true,false]`, `[1]`, []bool{true, false}},
		{tensor.String, `["a","b"]`, `[1]`, []string{"a", "b"}},
	} {
		x := tensor.Tensor{Type: c.typ, Shape: []int{2}}
		if err := readData("x", []byte(c.good), &x, 2); err != nil || !reflect.DeepEqual(valuesOf(&x), c.want) {
			t.Errorf("%s: %+v, %v", c.good, x, err)
		}
		x = tensor.Tensor{Type: c.typ, Shape: []int{1}}
		if err := readData("x", []byte(c.bad), &x, 1); err == nil {
			t.Errorf("%s is taken: %+v", c.bad, x)
		}
		if text, err := json.Marshal(valuesOf(&tensor.Tensor{Type: c.typ})); err != nil || string(text) != "[]" {
			t.Errorf("nothing is %s, %v", text, err)
		}
	}
}

// Any request is read or refused, and the memory is bounded by the request's size.
func FuzzRequest(f *testing.F) {
	f.Add(`{"inputs":[{"name":"text","shape":[2,1],"datatype":"BYTES","data":["a",""]},{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4]]}]}`)
	f.Add(`{"inputs":[{"name":"x","shape":[99999999,2],"datatype":"FP32","data":[1]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		in, rows, err := tensorsOfText(text)
		if err != nil {
			return
		}
		if len(in[0].Floats) != rows*2 || len(in[1].Strings) != rows || rows < 1 || rows > len(text) {
			t.Errorf("%d rows: %+v", rows, in)
		}
	})
}

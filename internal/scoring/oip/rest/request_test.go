package rest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/internal/scoring/oip"
)

var specs = []tensor.Spec{{Name: "x", Type: tensor.Float, Shape: []int{tensor.Any, 2}}, {Name: "text", Type: tensor.String, Shape: []int{tensor.Any, 1}}}

func tensorsOfText(text string) ([]tensor.Tensor, int, error) {
	c := oip.NewCall(specs, nil)
	if err := (&question{b: []byte(text), call: c}).read(); err != nil {
		return nil, 0, err
	}
	return c.Inputs()
}

// Values may be in one list, or nested like the shape. Inputs may be in any order.
func TestInputsAreRead(t *testing.T) {
	t.Parallel()
	for _, data := range []string{`[1, 2.5, -3e-7, 4]`, `[[1,2.5],[-3e-7,4]]`} {
		in, rows, err := tensorsOfText(`{"id":"7","parameters":{"a":1},"inputs":[{"name":"text","shape":[2,1],"datatype":"BYTES","data":["h\u00e9",""]},
			{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{},"data":` + data + `}]}`)
		if err != nil || rows != 2 || !slices.Equal(in[0].Floats, []float32{1, 2.5, -3e-7, 4}) || !slices.Equal(in[0].Shape, []int{2, 2}) || !slices.Equal(in[1].Strings, []string{"hé", ""}) {
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
		`[]`:                                     "not an inference request: an inference request must be an object",
		``:                                       "not valid JSON",
		`{"inputs":[`:                            "not valid JSON",
		`{"inputs":{}}`:                          "inputs must be a list",
		`{"inputs":[7]}`:                         "each of inputs must be an object",
		`{"inputs":[]} x`:                        "not valid JSON",
		`{"id":7}`:                               "id must be a text",
		`{}`:                                     `input "x" is missing`,
		`{"inputs":[` + text + `]}`:              `input "x" is missing`,
		`{"inputs":[` + text + `,` + text + `]}`: "given twice",
		`{"inputs":[{"name":"y"}]}`:              `no input "y"; it has ["x" "text"]`,
		`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}]}`:                                                "it is missing",
		`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2],"shape":[1,2]}]}`:                     "it has shape twice",
		`{"inputs":[{"name":"x","parameters":{"shared_memory_region":"a"}}]}`:                                      "shared_memory_region is not supported",
		`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`:            "binary_data_size is 8, and 0 bytes follow",
		`{"inputs":[{"name":"x","data":[1],"datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}`: "give one of them",
		`{"outputs":[{"name":"z"}]}`:                                "the model has no output",
		`{"outputs":[{"name":"z","parameters":{"binary_data":1}}]}`: "binary_data must be true or false",
		x(`[1,2]`, "FP64", `[1,2]`):                                 `its datatype is FP32, not "FP64"`,
		x(`[1,3]`, "FP32", `[1,2,3]`):                               "its shape is [-1 2], not [1 3]",
		x(`[2]`, "FP32", `[1,2]`):                                   "its shape is",
		x(`[0,2]`, "FP32", `[]`):                                    "its shape is",
		x(`[-1,2]`, "FP32", `[1,2]`):                                "each of a shape must be a whole number from 0",
		x(`[1.5,2]`, "FP32", `[1,2]`):                               "each of a shape must be a whole number from 0",
		x(`[1`+strings.Repeat(",1", 16)+`]`, "FP32", `[1]`):         "more than 16 dimensions",
		x(`[2,2]`, "FP32", `[1,2,3,4]`):                             "have 2 rows and 1",
		x(`[1,2]`, "FP32", `[1]`):                                   "data has 1 values",
		x(`[1,2]`, "FP32", `[]`):                                    "data has 0 values",
		x(`[1,2]`, "FP32", `[1,2,3]`):                               "data has 3 values",
		x(`[1,2]`, "FP32", `[1,2,]`):                                "not valid JSON",
		x(`[1,2]`, "FP32", `[1,.5,1,1,1,1,1]`):                      "not valid JSON",
		x(`[4,2]`, "FP32", `[1,,1,1,1,1,1,1]`):                      "not valid JSON",
		x(`[1,2]`, "FP32", `[1,02]`):                                "not valid JSON",
		x(`[1,2]`, "FP32", `[[1],[2]]`):                             "members",
		x(`[1,2]`, "FP32", `[[1,2],[1,2]]`):                         "members",
		x(`[1,2]`, "FP32", `[[1,2],3]`):                             "nested in one place",
		x(`[1,2]`, "FP32", `[1,[2]]`):                               "nested deeper",
		x(`[1,2]`, "FP32", `[[[1,2]]]`):                             "nested deeper",
		x(`[1,2]`, "FP32", `["1","2"]`):                             "value 1 of data is none of FP32",
		x(`[1,2]`, "FP32", `[1,null]`):                              "value 2 of data is none",
		x(`[1,2]`, "FP32", `[1,1e39]`):                              "value 2 of data is none",
		x(`[1,2]`, "FP32", `{"a":1}`):                               "must be a list",
		x(`[1,2]`, "FP32", `[{"a":1}]`):                             "none of FP32",
		x(`[4000000000000,2]`, "FP32", `[1]`):                       "fewer values",
		x(`[9223372036854775807,2]`, "FP32", `[1]`):                 "too large",
	} {
		_, _, err := tensorsOfText(body)
		if err == nil || statusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", body, err, says)
		}
	}
	w := httptest.NewRecorder()
	New(Options{MaxBody: 5}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v2/models/a/infer", strings.NewReader(`{"inputs":[]}`)))
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), `{"error":"`) {
		t.Errorf("one that is too large: %d %s", w.Code, w.Body)
	}
}

// Data may come before what describes it.
func TestMembersInAnyOrder(t *testing.T) {
	t.Parallel()
	in, rows, err := tensorsOfText(`{"inputs":[{"data":[[1,2]],"datatype":"FP32","shape":[1,2],"name":"x"},{"shape":[1,1],"data":["a"],"name":"text","datatype":"BYTES"}],"id":null,"outputs":null}`)
	if err != nil || rows != 1 || !slices.Equal(in[0].Floats, []float32{1, 2}) || in[1].Strings[0] != "a" {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestValuesOfEachType(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ       tensor.Type
		good, bad string
		want      string
	}{
		{tensor.Float, `[0.1, -2]`, `["NaN"]`, `[0.1,-2]`},
		{tensor.Double, `[ 0.1 , 1e300 ]`, `[1e400]`, `[0.1,1e+300]`},
		{tensor.Int32, `[-2147483648,2147483647]`, `[2147483648]`, `[-2147483648,2147483647]`},
		{tensor.Int64, `[9223372036854775807,-1]`, `[9223372036854775808]`, `[9223372036854775807,-1]`},
		{tensor.Int64, `[1.0,2e1]`, `[1.5]`, `[1,20]`},
		{tensor.Bool, `[true,false]`, `[2]`, `[true,false]`},
		{tensor.String, `["a","b\n"]`, `[1]`, `["a","b\u000a"]`},
	} {
		read := func(shape, data string) ([]tensor.Tensor, error) {
			call := oip.NewCall([]tensor.Spec{{Name: "x", Type: c.typ, Shape: []int{tensor.Any}}}, nil)
			q := &question{call: call, b: []byte(`{"inputs":[{"name":"x","shape":` + shape + `,"datatype":"` + oip.Datatype(c.typ) + `","data":` + data + `}]}`)}
			err := q.read()
			in, _, _ := call.Inputs()
			return in, err
		}
		in, err := read("[2]", c.good)
		if err != nil {
			t.Errorf("%s: %v", c.good, err)
			continue
		}
		if text, ok := jsontensor.Append(nil, &in[0]); !ok || string(text) != c.want {
			t.Errorf("%s is read as %s", c.good, text)
		}
		if in, err = read("[1]", c.bad); err == nil {
			t.Errorf("%s is taken: %+v", c.bad, in)
		}
	}
}

// Reading allocates nothing once the memory of earlier requests can be used.
func TestReadingAllocatesNothing(t *testing.T) {
	text := []byte(`{"id":"7","parameters":{"binary_data_output":false},"outputs":[],"inputs":[{"name":"text","shape":[2,1],"datatype":"BYTES","data":["h\u00e9",""]},
		{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{"a":1},"data":[[1,2],[3,4]]}]}`)
	c := oip.NewCall(specs, nil)
	q := &question{}
	if n := testing.AllocsPerRun(100, func() {
		c.Reset()
		q.b, q.call = text, c
		if err := q.read(); err != nil {
			t.Fatal(err)
		}
		q.reset()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Any request is read or refused, and the memory is bounded by the request's size.
func FuzzRequest(f *testing.F) {
	f.Add(`{"inputs":[{"name":"text","shape":[2,1],"datatype":"BYTES","data":["a",""]},{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4]]}]}`)
	f.Add(`{"inputs":[{"name":"x","shape":[99999999,2],"datatype":"FP32","data":[1]}]}`)
	f.Add(`{"id":"\u0000","inputs":[{"data":[1,2],"name":"x","shape":[1,2],"datatype":"FP32"}],"parameters":{"binary_data_output":true},"outputs":[{"name":"x","parameters":{"binary_data":false}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		in, rows, err := tensorsOfText(text)
		if !json.Valid([]byte(text)) && err == nil {
			t.Fatalf("what is not JSON is taken: %q", text)
		}
		if err != nil {
			return
		}
		if len(in[0].Floats) != rows*2 || len(in[1].Strings) != rows || rows < 1 || rows > len(text) {
			t.Errorf("%d rows: %+v", rows, in)
		}
	})
}

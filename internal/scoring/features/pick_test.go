package features

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/infer/tensor"
)

func spec(name string, typ tensor.Type, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, Type: typ, Shape: append([]int{tensor.Any}, shape...)}
}

func mustPlan(t testing.TB, fields []Field, inputs ...tensor.Spec) *Plan {
	t.Helper()
	p, err := New(fields, inputs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func event(data string) *broker.View {
	return &broker.View{
		ID: "1", Source: "/s", Type: "message", Subject: "bot-42", Key: []byte("k-1"), DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: "amount", Value: "12"}, {Name: "vip", Value: "true"}, {Name: "ratio", Value: "0.25"}},
		Data:       []byte(data),
	}
}

// readOne returns the input that is read from one event.
func readOne(t *testing.T, path string, s tensor.Spec, v *broker.View) (any, error) {
	t.Helper()
	p := mustPlan(t, []Field{{Path: path}}, s)
	in := make([]tensor.Tensor, 1)
	p.Begin(in, 4)
	if err := p.Read(v, in, 0); err != nil {
		return nil, err
	}
	p.End(in, 1)
	return contents(&in[0]), nil
}

func contents(t *tensor.Tensor) any {
	switch t.Type {
	case tensor.Float:
		return t.Floats
	case tensor.Double:
		return t.Doubles
	case tensor.String:
		return t.Strings
	}
	return t.Ints
}

// A default is read if the value is missing or null. A value of another kind is still an error.
func TestDefaults(t *testing.T) {
	number, text, list := spec("n", tensor.Float), spec("t", tensor.String), spec("l", tensor.Int64, 2)
	p := mustPlan(t, []Field{{"n", "data.a.n", "-1.5"}, {"t", "shop", `"none"`}, {"l", "data.l", "[7,8]"}}, number, text, list)
	for data, want := range map[string]string{
		`{"a":{"n":2},"l":[1,2]}`:          "[2] [none] [1 2]",
		`{"a":{"n":null},"l":null}`:        "[-1.5] [none] [7 8]",
		`{"a":null}`:                       "[-1.5] [none] [7 8]",
		`{}`:                               "[-1.5] [none] [7 8]",
		`{"a":{"n":"x"},"a":{"n":null}}`:   "[-1.5] [none] [7 8]",
		`{"a":{"n":"x"},"a":{"n":3}}`:      "[3] [none] [7 8]",
		`{"a":{"n":3},"a":{}}`:             "[-1.5] [none] [7 8]",
		"":                                 "[-1.5] [none] [7 8]",
		`{"a":{"n":"x"}}`:                  `read input "n": data.a.n is the text`,
		`{"l":[1]}`:                        `read input "l": data.l is `,
		`{"a":{"n":null},"a":{"n":"3"}}`:   `read input "n": data.a.n is the text`,
		`{"a":`:                            "not valid JSON",
		`{"a":{"n":1},"l":[1,2]} and more`: "not valid JSON",
	} {
		v := event(data)
		if data == "" {
			v.Data = nil
		}
		in := make([]tensor.Tensor, 3)
		p.Begin(in, 2)
		got := ""
		if err := p.Read(v, in, 0); err != nil {
			got = err.Error()
		} else if p.End(in, 1); err == nil {
			got = fmt.Sprint(contents(&in[0]), " ", contents(&in[1]), " ", contents(&in[2]))
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", data, got, want)
		}
	}
	for _, f := range []Field{{"n", "data.n", `"x"`}, {"t", "data.t", "1"}, {"l", "data.l", "[1]"}} {
		if _, err := New([]Field{f}, []tensor.Spec{number, text, list}); err == nil || !strings.Contains(err.Error(), "its default is ") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// The default NaN is for models that fill in missing numbers themselves.
func TestDefaultNaN(t *testing.T) {
	row, double := spec("n", tensor.Float, 2), spec("d", tensor.Double)
	p := mustPlan(t, []Field{{"n", "data.n", DefaultNaN}, {"d", "data.d", DefaultNaN}}, row, double)
	in := make([]tensor.Tensor, 2)
	p.Begin(in, 2)
	for i, data := range []string{`{"n":[1,2],"d":3}`, `{"n":null}`} {
		if err := p.Read(event(data), in, i); err != nil {
			t.Fatal(err)
		}
	}
	p.End(in, 2)
	if got := fmt.Sprint(contents(&in[0]), " ", contents(&in[1])); got != "[1 2 NaN NaN] [3 NaN]" {
		t.Errorf("got %s", got)
	}
	for _, other := range []tensor.Spec{spec("n", tensor.Int64), spec("n", tensor.String), spec("n", tensor.Float, tensor.Any)} {
		if _, err := New([]Field{{"n", "data.n", DefaultNaN}}, []tensor.Spec{other}); err == nil || !strings.Contains(err.Error(), "its default is ") {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

func TestWhatIsPicked(t *testing.T) {
	f, d, n, b, s := tensor.Float, tensor.Double, tensor.Int64, tensor.Bool, tensor.String
	for _, c := range []struct {
		path, data string
		spec       tensor.Spec
		want       any
	}{
		{"data.text", `{"text":"hi"}`, spec("x", s), []string{"hi"}},
		{"data.text", ` { "other" : {"text":"no"} , "text" : "hi" } `, spec("x", s, 1), []string{"hi"}},
		{"data.text", `{"text":"a\n\u00e9\ud83d\ude00\ud83d\"/"}`, spec("x", s), []string{"a\né😀\ufffd\"/"}},
		{"data.text", `{"te\u0078t":"hi"}`, spec("x", s), []string{"hi"}},
		{"data.text", `{"text":"first","text":"last"}`, spec("x", s), []string{"last"}},
		{"data.text", `{"text":7,"text":"last"}`, spec("x", s), []string{"last"}},
		{"data.a.b", `{"a":{"b":1},"a":{"b":2}}`, spec("x", f), []float32{2}},
		{"data.items[1].x", `{"items":[{"x":1},{"x":2.5,"y":[]},{"x":3}]}`, spec("x", f), []float32{2.5}},
		{`data["odd.name"]`, `{"odd.name":true}`, spec("x", b), []int64{1}},
		{`data["a\"b"][0][1]`, `{"a\"b":[[5,6]]}`, spec("x", n), []int64{6}},
		{"data[0]", `[-7]`, spec("x", n), []int64{-7}},
		{"data", `"whole"`, spec("x", s), []string{"whole"}},
		{"data", ` 3.5 `, spec("x", d), []float64{3.5}},
		{"data", `[1,2,3]`, spec("x", f, tensor.Any), []float32{1, 2, 3}},
		{"data", `[]`, spec("x", f, tensor.Any), []float32(nil)},
		{"data", `4`, spec("x", f, tensor.Any), []float32{4}},
		{"data", `[4]`, spec("x", f), []float32{4}},
		{"data", `[1,2,3,4,5,6,7,8,9]`, spec("x", f, 9), []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"data", `[ 1 , 2,3 ,4,5.5,-6e1,7E-1 , true]`, spec("x", f, 8), []float32{1, 2, 3, 4, 5.5, -60, 0.7, 1}},
		{"data", `[[1,2],[3,4],[5,6]]`, spec("x", f, 3, 2), []float32{1, 2, 3, 4, 5, 6}},
		{"data", `[1,2,3,4,5,6]`, spec("x", n, 3, 2), []int64{1, 2, 3, 4, 5, 6}},
		{"data", `[[1,2],[3,4]]`, spec("x", d, tensor.Any, tensor.Any), []float64{1, 2, 3, 4}},
		{"data", `["a","b\\"]`, spec("x", s, 2), []string{"a", `b\`}},
		{"data", `["a", "b" ]`, spec("x", s, tensor.Any), []string{"a", "b"}},
		{"data", `5.0`, spec("x", n), []int64{5}},
		{"data", `9223372036854775807`, spec("x", n), []int64{math.MaxInt64}},
		{"data", `-9223372036854775808`, spec("x", n), []int64{math.MinInt64}},
		{"subject", `broken`, spec("x", s), []string{"bot-42"}},
		{"key", ``, spec("x", s, 1), []string{"k-1"}},
		{"amount", ``, spec("x", n), []int64{12}},
		{"ratio", ``, spec("x", f, tensor.Any), []float32{0.25}},
		{"vip", ``, spec("x", b), []int64{1}},
		{"type", ``, spec("x", s, tensor.Any), []string{"message"}},
		{"", `{"x":"from its name"}`, spec("x", s), []string{"from its name"}},
		{"", `{"input.1":3}`, spec("input.1", f), []float32{3}},
	} {
		t.Run(c.path+c.data, func(t *testing.T) {
			p, err := New(nil, []tensor.Spec{c.spec})
			if c.path != "" {
				p, err = New([]Field{{Path: c.path}}, []tensor.Spec{c.spec})
			}
			if err != nil {
				t.Fatal(err)
			}
			in := make([]tensor.Tensor, 1)
			p.Begin(in, 4)
			if err := p.Read(event(c.data), in, 0); err != nil {
				t.Fatal(err)
			}
			p.End(in, 1)
			if got := contents(&in[0]); !reflect.DeepEqual(got, c.want) {
				t.Errorf("picked %#v, want %#v", got, c.want)
			}
		})
	}
}

func TestWhatCannotBePickedIsSaid(t *testing.T) {
	f, n, s := tensor.Float, tensor.Int64, tensor.String
	for _, c := range []struct {
		path, data string
		spec       tensor.Spec
		want       string
	}{
		{"data.text", `{"text":7}`, spec("x", s), `read input "x": data.text is the number 7; one text is wanted`},
		{"data.a.b", `{"a":{"c":1}}`, spec("x", f), `read input "x": data.a.b is not in the event; one number is wanted`},
		{"data.a.b", `{}`, spec("x", f), `data.a.b is not in the event: there is no data.a; one`},
		{"data.a.b", `{"a":{"b":1},"a":{}}`, spec("x", f), `data.a.b is not in the event; one`},
		{"data.a.b", `{"a":{"b":1},"a":3}`, spec("x", f), `data.a is the number 3`},
		{"data.a[2]", `{"a":[1,2]}`, spec("x", f), `data.a[2] is not in the event; one`},
		{"data.a[0]", `{"a":{}}`, spec("x", f), `data.a is an object, not an array`},
		{"data.a", `[]`, spec("x", f), `data is an array, not an object`},
		{"data", `null`, spec("x", s), `data is null`},
		{"data", `[1,2,3]`, spec("x", f, 4), `data is an array of 3; an array of 4 is wanted, each a number`},
		{"data", `[1,2,3,4,5]`, spec("x", f, 4), `data is an array of 5;`},
		{"data", `[1,"2",3]`, spec("x", f, 3), `data is an array of 3, of which [1] is the text "2";`},
		{"data", `[[1,2],[3]]`, spec("x", f, 2, 2), `of which the first is an array of 2; an array of 2×2 is wanted`},
		{"data", `[[1,2],[3]]`, spec("x", f, tensor.Any, tensor.Any), `an array of n×n is wanted`},
		{"data", `1.5`, spec("x", n), `data is the number 1.5; one whole number is wanted`},
		{"data", `2147483648`, spec("x", tensor.Int32), `one whole number of 32 bits is wanted`},
		{"data", `9223372036854775808`, spec("x", n), `one whole number is wanted`},
		{"data", `2`, spec("x", tensor.Bool), `one boolean is wanted`},
		{"data", `1e39`, spec("x", f), `the number 1e39`},
		{"data", `{"x":1`, spec("x", f), `read the data: it is not valid JSON: unexpected end of JSON input`},
		{"data.x", `{"x":1,"y":tru}`, spec("x", f), `read the data: it is not valid JSON: invalid character '}' in literal true`},
		{"data.x", `{"x":1} 2`, spec("x", f), `after top-level value`},
		{"nosuch", ``, spec("x", s), `read input "x": nosuch is not in the event; one text is wanted`},
		{"amount", ``, spec("x", f, 2), `amount is "12"; an array of 2 is wanted`},
		{"subject", ``, spec("x", f), `subject is "bot-42"; one number is wanted`},
	} {
		t.Run(c.path+c.data, func(t *testing.T) {
			got, err := readOne(t, c.path, c.spec, event(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("said %v (%v), want %s", err, got, c.want)
			}
		})
	}
}

// Arrays of any length, with any separators.
func TestArraysOfManyLengths(t *testing.T) {
	for _, separator := range []string{",", ", ", " ,\n\t"} {
		for _, number := range []string{"7", "12", "0.5", "0.123456", "3.00000001", "-1", "0.12345678901234567", "1e2"} {
			for n := 1; n < 70; n++ {
				data := "{\"x\":[" + strings.Repeat(number+separator, n-1) + number + "]}"
				want, _ := strconv.ParseFloat(number, 32)
				got, err := readOne(t, "data.x", spec("x", tensor.Float, tensor.Any), event(data))
				if all, _ := got.([]float32); err != nil || len(all) != n || all[0] != float32(want) || all[n-1] != float32(want) {
					t.Fatalf("%d of %s: %v: %v", n, number, got, err)
				}
				if _, err := readOne(t, "data.x", spec("x", tensor.Float, n), event(data)); err != nil {
					t.Fatal(err)
				}
				for _, other := range []int{n - 1, n + 1} {
					if _, err := readOne(t, "data.x", spec("x", tensor.Float, other), event(data)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("an array of %d", n)) {
						t.Fatalf("%d of %s as %d: %v", n, number, other, err)
					}
				}
			}
		}
	}
}

// Lists in a list, where the model leaves the number of the lists, their length or both open.
func TestListsOfManyLengths(t *testing.T) {
	for _, shape := range [][]int{{tensor.Any, tensor.Any}, {tensor.Any, 3}, {7, tensor.Any}, {tensor.Any, 1, 3}} {
		for n := 1; n < 70; n++ {
			if shape[0] > 0 && n != shape[0] {
				continue
			}
			list, values := "[1,2,3]", []float32{1, 2, 3}
			if len(shape) > 2 {
				list = "[" + list + "]"
			}
			data := "[" + strings.Repeat(list+",", n-1) + list + "]"
			got, err := readOne(t, "data", spec("x", tensor.Float, shape...), event(data))
			if all, _ := got.([]float32); err != nil || !slices.Equal(all, slices.Repeat(values, n)) {
				t.Fatalf("%d lists as %v: %v: %v", n, shape, got, err)
			}
		}
	}
}

func TestDataThatIsNoJSONIsOneText(t *testing.T) {
	v := event("hello, \"there\"")
	v.DataContentType = "text/plain; charset=utf-8"
	if got, err := readOne(t, "data", spec("x", tensor.String, 1), v); err != nil || got.([]string)[0] != string(v.Data) {
		t.Errorf("picked %v: %v", got, err)
	}
	if _, err := readOne(t, "data.text", spec("x", tensor.String), v); err == nil || !strings.Contains(err.Error(), "not JSON") {
		t.Errorf("a path into a text said %v", err)
	}
	v.Data = []byte("0.75")
	if got, err := readOne(t, "data", spec("x", tensor.Float), v); err != nil || got.([]float32)[0] != 0.75 {
		t.Errorf("picked %v: %v", got, err)
	}
	for _, data := range [][]byte{nil, {0xff, 'a'}} {
		v.Data = data
		if _, err := readOne(t, "data", spec("x", tensor.String), v); err == nil {
			t.Errorf("picked data %q", data)
		}
	}
	for contentType, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, "application/vnd.x+json": true, "text/json;": true,
		"text/plain": false, "application/jsonlines": false, "application/octet-stream": false, ";;": false,
	} {
		if isJSON(contentType) != want {
			t.Errorf("%q is JSON: %v", contentType, !want)
		}
	}
}

// Several events fill a table. A refused event leaves no trace in it. If the model leaves a
// length open, the first event of a table sets it.
func TestRowsFillATable(t *testing.T) {
	p := mustPlan(t, []Field{{Input: "n", Path: "data.n"}, {Input: "text", Path: "data.t"}, {Input: "x", Path: "data.x"}},
		spec("text", tensor.String, 1), spec("x", tensor.Float, tensor.Any), spec("n", tensor.Int64))
	in := make([]tensor.Tensor, 3)
	for round := range 3 {
		p.Begin(in, 3)
		length := 2 + round
		x := "[" + strings.Repeat("1,", length-1) + "9]"
		if err := p.Read(event(`{"x":[1,2,3,4,5,6,7],"t":"a","n":"bad"}`), in, 0); err == nil {
			t.Fatal("a text was read as a number")
		}
		for row := range 2 {
			data := fmt.Sprintf(`{"x":%s,"t":"\u0061%d","n":%d}`, x, row, row)
			if err := p.Read(event(data), in, row); err != nil {
				t.Fatal(err)
			}
			if err := p.Read(event(`{"x":[1],"t":"other","n":1}`), in, row+1); !errors.Is(err, ErrLength) {
				t.Fatalf("an event of another length: %v", err)
			}
			if err := p.Read(event(`{"x":["1"],"t":"other","n":1}`), in, row+1); err == nil || errors.Is(err, ErrLength) {
				t.Fatalf("an event that fits nowhere: %v", err)
			}
		}
		p.End(in, 2)
		if got := in[1]; !reflect.DeepEqual(got.Shape, []int{2, length}) || len(got.Floats) != 2*length || got.Floats[length-1] != 9 || got.Floats[2*length-1] != 9 {
			t.Errorf("round %d: x is %v of %v", round, got.Floats, got.Shape)
		}
		if !reflect.DeepEqual(in[0].Strings, []string{"a0", "a1"}) || !reflect.DeepEqual(in[2].Ints, []int64{0, 1}) {
			t.Errorf("round %d: %q, %v", round, in[0].Strings, in[2].Ints)
		}
	}
	p.Begin(in, 3)
	p.End(in, 0)
	if !reflect.DeepEqual(in[1].Shape, []int{0, 0}) || len(in[1].Floats) != 0 {
		t.Errorf("no rows are %v of %v", in[1].Floats, in[1].Shape)
	}
}

// For an event that is not on a stream yet, the key is the one that the broker will derive.
func TestKeyOfAnEventThatIsOnNoStream(t *testing.T) {
	v := &broker.View{Subject: "bot-1"}
	if got, err := readOne(t, "key", spec("x", tensor.String), v); err != nil || got.([]string)[0] != "bot-1" {
		t.Errorf("picked %v: %v", got, err)
	}
	v.Extensions = []broker.Attribute{{Name: "partitionkey", Value: "p"}}
	if got, err := readOne(t, "key", spec("x", tensor.String), v); err != nil || got.([]string)[0] != "p" {
		t.Errorf("picked %v: %v", got, err)
	}
}

func TestPathsAndPlansThatAreRefused(t *testing.T) {
	for _, path := range []string{"", "data.", "data..x", "data[", "data[x]", "data[-1]", `data["x]`, `data["x"`, "data[0]x", "Subject", "data.a]b", "time-stamp", `data.a"b`} {
		if err := CheckPath(path); err == nil {
			t.Errorf("path %q was taken", path)
		}
	}
	for _, path := range []string{"data", "data.x", "data[0]", "data.x[0].y", `data["a.b"].c`, "subject", "datacontenttype", "database"} {
		if err := CheckPath(path); err != nil {
			t.Errorf("path %q: %v", path, err)
		}
	}
	x, y := spec("x", tensor.Float), spec("y", tensor.Float)
	for name, made := range map[string]func() (*Plan, error){
		"no inputs":     func() (*Plan, error) { return New(nil, nil) },
		"no such input": func() (*Plan, error) { return New([]Field{{Input: "z", Path: "data.z"}}, []tensor.Spec{x, y}) },
		"which input":   func() (*Plan, error) { return New([]Field{{Input: "", Path: "data.z"}}, []tensor.Spec{x, y}) },
		"mapped twice": func() (*Plan, error) {
			return New([]Field{{Input: "x", Path: "data.z"}, {Input: "x", Path: "data.y"}}, []tensor.Spec{x, y})
		},
		"odd path":     func() (*Plan, error) { return New([]Field{{Input: "x", Path: "data..z"}}, []tensor.Spec{x, y}) },
		"odd type":     func() (*Plan, error) { return New(nil, []tensor.Spec{spec("x", 16)}) },
		"no rows":      func() (*Plan, error) { return New(nil, []tensor.Spec{{Name: "x", Type: tensor.Float}}) },
		"far too many": func() (*Plan, error) { return New(nil, make([]tensor.Spec, maxInputs+1)) },
	} {
		if _, err := made(); err == nil {
			t.Errorf("a plan was made of %s", name)
		}
	}
}

// Reading allocates nothing once the tensors have grown.
func TestReadingAllocatesNothing(t *testing.T) {
	p := mustPlan(t, []Field{{Input: "t", Path: "data.t"}, {Input: "x", Path: "data.x"}, {Input: "s", Path: "subject"}, {Input: "n", Path: "amount"}},
		spec("t", tensor.String, 1), spec("x", tensor.Float, tensor.Any), spec("s", tensor.String), spec("n", tensor.Double))
	in := make([]tensor.Tensor, 4)
	v := event(`{"skip":{"a":[1,"b",{"c":null}]},"t":"tab\there","x":[1,2,3,4,5,0.12345678901234567,1e-7]}`)
	round := func() {
		p.Begin(in, 8)
		for row := range 8 {
			if err := p.Read(v, in, row); err != nil {
				t.Fatal(err)
			}
		}
		p.End(in, 8)
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("reading 8 events allocates %v times", n)
	}
}

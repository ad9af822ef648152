package native

import (
	"maps"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// oddQuestions returns questions about cases that are easily implemented wrong.
func oddQuestions() []*question {
	var all []*question
	one := func(name string, g *graph, in ...*tensor.Tensor) {
		q := &question{name: name, file: g.file(), outputs: 1}
		for _, x := range in {
			q.in = append(q.in, *x)
		}
		all = append(all, q)
	}
	blanks := texts("", " ", "a b", "  a  b c  ", "a\tb\nc d", "a b ", "abXab", "日 本")
	named(map[string]attributes{
		"at blanks": {}, "at each blank": {"delimiter": " "}, "at nothing": {"delimiter": ""}, "once": {"delimiter": " ", "maxsplit": 1}, "at blanks, once": {"maxsplit": 1}, "never": {"maxsplit": 0}, "at ab": {"delimiter": "ab"},
	}, func(name string, set attributes) {
		g := newGraph().input("x", tensor.String, tensor.Any).node("", "StringSplit", []string{"x"}, []string{"y", "n"}, set).
			output("y", tensor.String, tensor.Any, tensor.Any).output("n", tensor.Int64, tensor.Any)
		one("split "+name, g, blanks)
		all[len(all)-1].outputs = 2
	})
	named(map[string]attributes{
		"lower":      {"case_change_action": "LOWER", "locale": "C"},
		"upper":      {"case_change_action": "UPPER", "locale": "C"},
		"stop words": {"case_change_action": "UPPER", "locale": "C", "stopwords": []string{"hi"}, "is_case_sensitive": 0},
		"as written": {"stopwords": []string{"hi"}, "is_case_sensitive": 1, "locale": "C"},
		"all":        {"stopwords": []string{"", "Äb Hi", "hi", "HI", "日本"}, "is_case_sensitive": 1, "locale": "C"},
	}, func(name string, set attributes) {
		one("normalize "+name, newGraph().input("x", tensor.String, tensor.Any).node("", "StringNormalizer", []string{"x"}, []string{"y"}, set).output("y", tensor.String, tensor.Any),
			texts("", "Äb Hi", "hi", "HI", "日本"))
	})
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	edges := floats([]int{11}, 1, 0.1, 1e10, -3.25, 1e-7, nan, inf, -inf, 123456789, 16777216, 3.14159274)
	for _, to := range []tensor.Type{tensor.String, tensor.Int32, tensor.Int64, tensor.Bool, tensor.Double} {
		one("cast to "+typeName(to), newGraph().input("x", tensor.Float, tensor.Any).node("", "Cast", []string{"x"}, []string{"y"}, attributes{"to": int(to)}).output("y", to, tensor.Any), edges)
	}
	one("cast of texts", newGraph().input("x", tensor.String, tensor.Any).node("", "Cast", []string{"x"}, []string{"y"}, attributes{"to": 1}).output("y", tensor.Float, tensor.Any),
		texts("1", "0.1", "1e5", "nan", "INF", "-inf", "+Infinity", " 1", "1 "))
	for _, op := range []string{"Relu", "Sigmoid", "Tanh", "Softmax"} {
		one(op+" at the edges", newGraph().input("x", tensor.Float, tensor.Any).node("", op, []string{"x"}, []string{"y"}, nil).output("y", tensor.Float, tensor.Any),
			floats([]int{9}, 0, -1, 1, 88.7, -88.7, 100, -100, 1e-9, 20))
	}
	one("greatest with NaN", newGraph().input("x", tensor.Float, tensor.Any).node("", "ArgMax", []string{"x"}, []string{"y"}, nil).output("y", tensor.Int64, tensor.Any),
		floats([]int{4}, 1, nan, 2, nan))
	one("greatest of equals", newGraph().input("x", tensor.Float, tensor.Any).node("", "ArgMax", []string{"x"}, []string{"y"}, attributes{"select_last_index": 1}).output("y", tensor.Int64, tensor.Any),
		floats([]int{4}, 1, 3, 3, 2))
	probit := attributes{"coefficients": []float32{0.1, 0.2, 0.05, 0.1, 0.3, 0.2}, "intercepts": []float32{0.1, 0.2}, "targets": 2, "post_transform": "PROBIT"}
	one("probit", newGraph().input("x", tensor.Float, tensor.Any, 3).node(ml, "LinearRegressor", []string{"x"}, []string{"y"}, probit).output("y", tensor.Float, tensor.Any, 2),
		floats([]int{2, 3}, 0.1, 0.2, 0.3, 1, 0.5, 1))
	return slices.Concat(all, sklearn(), operatorQuestions())
}

// named iterates over attributes in the order of their names, so that the questions are the
// same in each run.
func named(all map[string]attributes, fn func(name string, set attributes)) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fn(name, all[name])
	}
}

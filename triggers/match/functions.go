package match

import (
	"math"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/internal/cesql"
)

// builtin is a function of the language that takes three arguments at most.
type builtin struct {
	takes [3]kind
	any   bool  // takes what it is given, and no cast
	zero  value // what it returns beside an argument's fault
	run   func(a arguments) (value, *fault)
}

type arguments struct {
	at [3]value
	n  int
}

func call(x *cesql.Call) eval {
	args := evaluateAll(x.Args)
	if x.Name == "CONCAT" || x.Name == "CONCAT_WS" {
		return concat(x.Name, args)
	}
	b := builtins(x.Name)
	noBool, noInt := noCast("an argument of "+x.Name, boolean), noCast("an argument of "+x.Name, integer)
	return func(v *broker.View) (value, *fault) {
		given := arguments{n: len(args)}
		for i, arg := range args {
			a, f := arg(v)
			if f != nil {
				return b.zero, f
			}
			if ok := b.any; !ok {
				if a, ok = a.as(b.takes[i]); !ok && b.takes[i] == integer {
					return b.zero, noInt
				} else if !ok {
					return b.zero, noBool
				}
			}
			given.at[i] = a
		}
		return b.run(given)
	}
}

func builtins(name string) builtin {
	one, lengths := [3]kind{text}, [3]kind{text, integer, integer}
	switch name {
	case "ABS":
		return builtin{takes: [3]kind{integer}, zero: ofInt(0), run: abs()}
	case "INT":
		return builtin{any: true, zero: ofInt(0), run: cast(integer)}
	case "BOOL":
		return builtin{any: true, zero: ofBool(false), run: cast(boolean)}
	case "STRING":
		return builtin{any: true, zero: ofText(""), run: cast(text)}
	case "IS_INT":
		return builtin{any: true, zero: ofBool(false), run: canCast(integer)}
	case "IS_BOOL":
		return builtin{any: true, zero: ofBool(false), run: canCast(boolean)}
	case "LENGTH":
		return builtin{takes: one, zero: ofInt(0), run: length}
	case "LOWER":
		return builtin{takes: one, zero: ofText(""), run: changed(strings.ToLower)}
	case "UPPER":
		return builtin{takes: one, zero: ofText(""), run: changed(strings.ToUpper)}
	case "TRIM":
		return builtin{takes: one, zero: ofText(""), run: changed(strings.TrimSpace)}
	case "LEFT", "RIGHT":
		return builtin{takes: lengths, zero: ofText(""), run: side(name)}
	}
	return builtin{takes: lengths, zero: ofText(""), run: substring()}
}

func abs() func(arguments) (value, *fault) {
	overflow := &fault{mathFault, "the result of ABS is beyond the integers"}
	return func(a arguments) (value, *fault) {
		i := a.at[0].i
		if i == math.MinInt32 {
			return ofInt(math.MaxInt32), overflow
		}
		return ofInt(max(i, -i)), nil
	}
}

func cast(to kind) func(arguments) (value, *fault) {
	wrong := noCast("what is cast", to)
	return func(a arguments) (value, *fault) {
		result, ok := a.at[0].as(to)
		if !ok {
			return result, wrong
		}
		return result, nil
	}
}

func canCast(to kind) func(arguments) (value, *fault) {
	return func(a arguments) (value, *fault) {
		_, ok := a.at[0].as(to)
		return ofBool(ok), nil
	}
}

package filter

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// builtin is a function of the language with at most three arguments.
type builtin struct {
	takes [3]kind
	any   bool  // whether it takes arguments of any kind without a cast
	zero  value // value that it returns if an argument has a fault
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
				if a, ok = a.castTo(b.takes[i]); !ok && b.takes[i] == integer {
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
		return builtin{takes: lengths, zero: ofText(""), run: leftOrRight(name)}
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
		result, ok := a.at[0].castTo(to)
		if !ok {
			return result, wrong
		}
		return result, nil
	}
}

func canCast(to kind) func(arguments) (value, *fault) {
	return func(a arguments) (value, *fault) {
		_, ok := a.at[0].castTo(to)
		return ofBool(ok), nil
	}
}

// mostText bounds the result of CONCAT, because an untrusted expression could make a
// long text from a short one.
const mostText = 1 << 20

func concat(name string, args []eval) eval {
	long := &fault{functionFault, fmt.Sprintf("the result of %s is longer than %d bytes", name, mostText)}
	return func(v *broker.View) (value, *fault) {
		var parts []string
		size := 0
		for _, arg := range args {
			a, f := arg(v)
			if f != nil {
				return ofText(""), f
			}
			parts = append(parts, a.text())
			if size += len(parts[len(parts)-1]); size > mostText {
				return ofText(""), long
			}
		}
		if name == "CONCAT" {
			return ofText(strings.Join(parts, "")), nil
		}
		if size+len(parts[0])*len(parts) > mostText {
			return ofText(""), long
		}
		return ofText(strings.Join(parts[1:], parts[0])), nil
	}
}

// length counts Unicode characters, not bytes.
func length(a arguments) (value, *fault) {
	return ofInt(int32(utf8.RuneCountInString(a.at[0].s))), nil
}

func changed(f func(string) string) func(arguments) (value, *fault) {
	return func(a arguments) (value, *fault) { return ofText(f(a.at[0].s)), nil }
}

// leftOrRight returns LEFT or RIGHT.
func leftOrRight(name string) func(arguments) (value, *fault) {
	negative := &fault{functionFault, "the length that " + name + " is given is negative"}
	return func(a arguments) (value, *fault) {
		s, n := a.at[0].s, int(a.at[1].i)
		switch {
		case n < 0:
			return ofText(s), negative
		case name == "LEFT":
			return ofText(s[:letter(s, n)]), nil
		}
		return ofText(s[letter(s, utf8.RuneCountInString(s)-n):]), nil
	}
}

// substring is SUBSTRING with or without a length. Characters are numbered from one, or
// from the end if the number is negative; position zero is empty.
func substring() func(arguments) (value, *fault) {
	outside := &fault{functionFault, "the position that SUBSTRING is given is outside of the text"}
	negative := &fault{functionFault, "the length that SUBSTRING is given is negative"}
	return func(a arguments) (value, *fault) {
		s, from := a.at[0].s, int(a.at[1].i)
		length := utf8.RuneCountInString(s)
		n := length
		if a.n == 3 {
			n = int(a.at[2].i)
		}
		switch {
		case n < 0:
			return ofText(""), negative
		case from > length || from < -length:
			return ofText(""), outside
		case from == 0:
			return ofText(""), nil
		case from < 0:
			from += length + 1
		}
		rest := s[letter(s, from-1):]
		return ofText(rest[:letter(rest, n)]), nil
	}
}

// letter returns where the nth character of a text begins, or the text's end if it has at
// most n characters.
func letter(s string, n int) int {
	if n <= 0 {
		return 0
	}
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

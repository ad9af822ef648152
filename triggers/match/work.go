package match

import (
	"fmt"

	"tidemill.dev/internal/cesql"
)

// longest is how many bytes an attribute has at most.
const longest = 64 << 10

// CompileFor is Compile for the expressions of people who are not trusted with
// the machine: it refuses one that could keep it busy with a single event. Most
// is how many bytes may be looked at for it, in the worst case that there is.
func CompileFor(where string, most int) (*Filter, error) {
	x, err := cesql.ParseCondition(where)
	if err != nil {
		return nil, err
	}
	if _, work := effort(x); work > most {
		return nil, fmt.Errorf("it could take too long for one event: write shorter patterns between two %%, or fewer functions inside of each other")
	}
	return compile(where, x), nil // what is worked out now is part of the work
}

// effort bounds how long an expression's value may be and how many bytes are
// looked at to find it, where an event's attributes are as long as can be. Both
// are far below what an int overflows at, for an expression is short.
func effort(x cesql.Expr) (length, work int) {
	switch x := x.(type) {
	case *cesql.Literal:
		s, _ := x.Value.(string)
		return len(s), 0
	case *cesql.Attribute:
		return longest, 0
	case *cesql.Unary:
		_, work = effort(x.X)
	case *cesql.Binary:
		a, left := effort(x.X)
		b, right := effort(x.Y)
		return 0, left + right + min(a, b)
	case *cesql.Like:
		length, work = effort(x.X)
		return 0, work + length*retriesOf(x.Pattern)
	case *cesql.In:
		length, work = effort(x.X)
		_, set := effortOfAll(x.Set)
		return 0, work + set + length
	case *cesql.Call:
		return effortOfCall(x)
	}
	return 0, work
}

func effortOfAll(list []cesql.Expr) (length, work int) {
	for _, x := range list {
		l, w := effort(x)
		length, work = length+l, work+w
	}
	return length, work
}

// effortOfCall takes it that a function walks through all that it is given, and
// gives as much. A letter in capitals may take more bytes than it took.
func effortOfCall(x *cesql.Call) (length, work int) {
	length, work = effortOfAll(x.Args)
	switch x.Name {
	case "CONCAT_WS":
		if len(x.Args) > 0 {
			between, _ := effort(x.Args[0])
			length += between * len(x.Args)
		}
	case "UPPER", "LOWER":
		length += length / 2
	}
	length = min(length, 2*mostText)
	return length, work + length
}

// retriesOf is how often a letter of the text is looked at, at most: as often
// as there are letters between two %.
func retriesOf(written string) int {
	most, run, p := 1, 0, newPattern(written)
	if p.plain {
		return most
	}
	for _, r := range p.letters {
		if run++; r == anyText {
			run = 0
		}
		most = max(most, run)
	}
	return most
}

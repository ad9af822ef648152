package match

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker"
)

// mostText bounds what CONCAT makes: an expression may be anybody's, and it
// makes much of little.
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

// Letters are Unicode's, and not bytes.
func length(a arguments) (value, *fault) {
	return ofInt(int32(utf8.RuneCountInString(a.at[0].s))), nil
}

func changed(f func(string) string) func(arguments) (value, *fault) {
	return func(a arguments) (value, *fault) { return ofText(f(a.at[0].s)), nil }
}

// side is LEFT and RIGHT.
func side(name string) func(arguments) (value, *fault) {
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

// substring is SUBSTRING, with a length or without. Letters count from one, and
// from the end if the number is negative; there is none at nought.
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

// letter is where the nth letter of a text begins, its end if it has no more
// than n.
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

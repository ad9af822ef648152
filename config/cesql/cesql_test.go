package cesql

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// show prints a tree with every parenthesis.
func show(x Expr) string {
	list := func(all []Expr) string {
		var parts []string
		for _, x := range all {
			parts = append(parts, show(x))
		}
		return "(" + strings.Join(parts, ", ") + ")"
	}
	switch x := x.(type) {
	case *Literal:
		if s, ok := x.Value.(string); ok {
			return quote(s)
		}
		return fmt.Sprint(x.Value)
	case *Attribute:
		return x.Name
	case *Exists:
		return "EXISTS " + x.Name
	case *Unary:
		return "(" + x.Op + " " + show(x.X) + ")"
	case *Binary:
		return "(" + show(x.X) + " " + x.Op + " " + show(x.Y) + ")"
	case *Like:
		return "(" + show(x.X) + " LIKE " + quote(x.Pattern) + ")"
	case *In:
		return "(" + show(x.X) + " IN " + list(x.Set) + ")"
	case *Call:
		return x.Name + list(x.Args)
	}
	return fmt.Sprintf("%T", x)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `\'`) + "'" }

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a AND b OR c":                       "((a AND b) OR c)", // equal precedence, from left to right
		"a OR b AND c XOR d":                 "(((a OR b) AND c) XOR d)",
		"a = b = c":                          "((a = b) = c)",
		"a - b - c":                          "((a - b) - c)",
		"1 + 2 * 3 = 7 AND TRUE":             "(((1 + (2 * 3)) = 7) AND true)",
		"a*b LIKE 'x' + 1":                   "((a * (b LIKE 'x')) + 1)",
		"a + b IN (1, c OR d) LIKE '%'":      "(a + ((b IN (1, (c OR d))) LIKE '%'))",
		"NOT a = b":                          "((NOT a) = b)",
		"NOT EXISTS a AND -b > 3":            "((NOT EXISTS a) AND ((- b) > 3))",
		"a != 1 OR a <> 2":                   "((NOT (a = 1)) OR (NOT (a = 2)))",
		"a not like 'x' or a nOt In (\"y\")": "((NOT (a LIKE 'x')) OR (NOT (a IN ('y'))))",
		"4-1":                                "(4 - 1)",
		"4 -1":                               "(4 - 1)",
		"4 - -1":                             "(4 - -1)",
		"--10":                               "(- -10)",
		"+5 - +5":                            "(5 - 5)",
		"-2147483648":                        "-2147483648",
		"- 5":                                "(- 5)",
		"-5a":                                "(- 5a)",
		"left ('a',2)":                       "LEFT('a', 2)",
		"CONCAT()":                           "CONCAT()",
		"SubJect\t=\r\n'x'":                  "(subject = 'x')",
		`'a"b\'c' = "a'b\"c"`:                `('a"b\'c' = 'a\'b"c')`,
		`'ab\c\\'`:                           `'ab\c\\'`,
		"'ä' LIKE 'ö%'":                      "('ä' LIKE 'ö%')",
		"((((a))))":                          "a",
		"exists type":                        "EXISTS type",
	} {
		x, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := show(x); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func TestParseSaysWhereAndWhat(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                               "column 1: expected an attribute or a value, found the end",
		"branch == 'x'":                  "column 9: expected a value, found =; equality is a single =",
		"a != = 'x'":                     "column 6: expected an attribute or a value, found =; write != alone",
		"type = 'x' AND":                 "column 15: expected an attribute or a value, found the end",
		"type = 'x' AND )":               "column 16: expected an attribute or a value, found )",
		"'abc":                           "column 1: the string that begins here has no end: a ' is missing",
		`"abc\"`:                         `column 1: the string that begins here has no end: a " is missing`,
		"type = 'a' && b":                `column 12: "&&" means nothing here; write AND`,
		"a = 1 || b":                     `"||" means nothing here; write OR`,
		"!a":                             `column 1: "!" means nothing here; write NOT, or != for unequal`,
		"type = ‘a’":                     `column 8: "‘" means nothing here; write strings in ' or "`,
		"data.x = 1":                     `column 5: "." means nothing here; an expression sees an event's attributes, not its data`,
		"x > 1.5":                        `column 6: "." means nothing here; numbers are whole`,
		"#":                              `column 1: "#" means nothing here`,
		"'äöü' = #":                      "column 9: ",
		"LENGHT(type) = 3":               "column 1: there is no function LENGHT; did you mean LENGTH?",
		"a AND F(1)":                     "column 7: there is no function F",
		"LEFT('a') = 'a'":                "column 1: LEFT takes 2 arguments, and here is one",
		"CONCAT_WS()":                    "column 1: CONCAT_WS takes 1 or more arguments, and here are none",
		"SUBSTRING(1,2,3,4)":             "SUBSTRING takes 2 or 3 arguments, and here are 4",
		"ABS()":                          "ABS takes one argument, and here are none",
		"ABC(":                           "column 5: expected an attribute or a value, found the end",
		"(type":                          "column 6: expected ) for the ( of column 1, found the end",
		"(a b)":                          "column 4: expected ) for the ( of column 1, found b",
		"ABS(1 2)":                       "column 7: expected , or ) for the ( of column 4, found 2",
		"x LIKE 123":                     "column 8: expected a pattern in quotes after LIKE, found 123",
		"x LIKE y":                       "column 8: expected a pattern in quotes after LIKE, found y",
		"x IN 'a'":                       "column 6: expected a list in parentheses after IN, found a string",
		"x IN ()":                        "column 7: expected a value in the list, found )",
		"x NOT = 1":                      "column 7: expected LIKE or IN after NOT, found =",
		"x LIK 'a'":                      "column 3: expected an operator or the end, found LIK; did you mean LIKE?",
		"EXIST subject":                  "column 7: expected an operator or the end, found subject; did you mean EXISTS for EXIST?",
		"EXISTS 'a'":                     "column 8: expected an attribute's name after EXISTS, found a string",
		"EXISTS a_b":                     "column 8: expected an attribute's name, which has letters and digits only, found a_b",
		"my_attr = 1":                    "column 1: expected an attribute's name, which has letters and digits only, found my_attr",
		"'it''s'":                        `column 5: expected an operator or the end, found a string; in a string ' is written \'`,
		"x = 2147483648":                 "column 5: expected an integer from -2147483648 to 2147483647, found 2147483648",
		"- 2147483648":                   "column 3: expected an integer",
		"+ 5":                            "column 3: expected a number directly after +, found 5",
		"a = 1 )":                        "column 7: expected an operator or the end, found )",
		"a\xffb":                         "column 2: expected text in UTF-8",
		strings.Repeat("(", 1<<10):       "column 101: expressions nest 100 deep at most",
		strings.Repeat("NOT ", 1<<10):    "column 401: expressions nest 100 deep at most",
		strings.Repeat("x", maxLength+1): "an expression has 16384 bytes at most",
	} {
		_, err := Parse(text)
		var e *SyntaxError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s gave %v, want %q", text, err, says)
		}
	}
}

// A long chain of operators is not nested.
func TestParseTakesLongChains(t *testing.T) {
	t.Parallel()
	if _, err := Parse("1" + strings.Repeat("+1", maxLength/2-1)); err != nil {
		t.Error(err)
	}
}

func TestParseCondition(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"type": "", "TRUE": "", "NOT 10": "", "a AND b": "", "EXISTS a": "", "BOOL(a)": "", "a IN (1)": "", "a LIKE 'x'": "", "1 < 2": "",
		"'text'": "this is a text", "1 + 1": "this is a number", "-a": "this is a number", "5": "a number",
		"LENGTH(a)": "a number", "LOWER(a)": "a text", "a ==": "column 4",
		"subject = merchant-01": "column 11: merchant-01 is a subtraction here: write a text in quotes, 'merchant-01'", "NOT (type != new-data-x)": "'new-data-x'",
		"subject = merchant": "", "sequence = total - 1": "", "sequence = (total-1)": "", "4-1 = 3": "",
	} {
		_, err := ParseCondition(text)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s gave %v, want %q", text, err, says)
		}
	}
}

func TestUnquoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"subject = merchant": "merchant", "a = 'x' AND NOT b != C": "c", "a = 'x'": "", "a ==": "", "a < b": ""} {
		if got := Unquoted(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestNoFunctionIsTold(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"F()": true, "ABS()": true, "a ==": false} {
		if _, err := Parse(text); errors.Is(err, ErrNoFunction) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// For any input, the parser returns an error with a column in the text, or a tree that can be
// printed and parsed again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"type = 'new-data' AND subject LIKE 'bot-%'", "a IN (1, 'b', TRUE) OR NOT EXISTS c", `CONCAT_WS(",", x, "\"") <> ''`,
		"-2147483648 % -x", "((", "x NOT LIKE '\\_'", "4-1", "'\\", "ä", "a\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x, err := Parse(text)
		if err != nil {
			var e *SyntaxError
			if !errors.As(err, &e) || e.Column < 1 || e.Column > len([]rune(text))+1 || e.Message == "" {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		written := show(x)
		if len(written) > maxLength || strings.Count(written, "(") > maxNesting {
			return
		}
		again, err := Parse(written)
		if err != nil || show(again) != written {
			t.Errorf("%q became %s and that %v, %v", text, written, again, err)
		}
	})
}

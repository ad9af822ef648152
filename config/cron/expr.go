package cron

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Expr is an expression that fires some time. The zero value never fires. Two expressions are equal
// only if their texts are the same.
type Expr struct {
	text  string
	every time.Duration // duration of @every; if set, the other fields are ignored
	clock clock
	days  days
	// wild says that the field of hours begins with a *. Then the expression follows the wall
	// clock, also when clocks change.
	wild bool
}

// named are the expressions that have a name.
var named = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
	"@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

const everyName = "@every"

// Parse parses an expression. An error names the wrong field and its possible values. An
// expression that could never fire is an error too.
func Parse(text string) (Expr, error) {
	words := strings.Fields(text)
	e := Expr{text: strings.Join(words, " ")}
	if len(words) > 0 && strings.HasPrefix(words[0], "@") {
		if words[0] == everyName {
			return e.parseEvery(words[1:])
		}
		known, ok := named[words[0]]
		if !ok || len(words) > 1 {
			return Expr{}, fmt.Errorf("%q is not an expression; the named ones are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and @every 90s", e.text)
		}
		words = strings.Fields(known)
	}
	return e.parseFields(words)
}

func (e Expr) parseFields(words []string) (Expr, error) {
	switch {
	case len(words) > 0 && strings.Contains(words[0], "TZ="):
		return Expr{}, fmt.Errorf("%q names a time zone, which has a separate key; remove %s", e.text, words[0])
	case len(words) == 5:
		words = append([]string{"0"}, words...)
	case len(words) != 6:
		return Expr{}, fmt.Errorf("%q has %d fields; write five (minute hour day-of-month month day-of-week), or six with seconds first", e.text, len(words))
	}
	var sets [6]valueSet
	for i, f := range fields {
		s, err := f.parse(words[i])
		if err != nil {
			return Expr{}, err
		}
		sets[i] = s
	}
	e.clock = clock{second: sets[0].bits, minute: sets[1].bits, hour: sets[2].bits}
	e.days = days{day: sets[3], month: sets[4].bits, weekday: sets[5]}
	e.wild = sets[2].star
	if !e.days.isPossible() {
		return Expr{}, fmt.Errorf("%q never fires: the day of month %s is in none of the months %s", e.text, words[3], words[4])
	}
	return e, nil
}

// String returns the expression as it was written, with single spaces.
func (e Expr) String() string { return e.text }

// field describes one of the six fields.
type field struct {
	name      string
	low, high int
	names     []string // names of the values, beginning with low
	days      bool     // whether ? is allowed
	last      bool     // whether L is allowed
}

var fields = [6]field{
	{name: "second", low: 0, high: 59},
	{name: "minute", low: 0, high: 59},
	{name: "hour", low: 0, high: 23},
	{name: "day of month", low: 1, high: 31, days: true, last: true},
	{name: "month", low: 1, high: 12, names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", low: 0, high: 7, days: true, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// valueSet contains the values of a field.
type valueSet struct {
	bits uint64
	star bool // whether it began with * or ?; Vixie cron then treats the field as not restricted
	last bool // the last day of the month
}

func (s valueSet) has(n int) bool { return s.bits>>n&1 == 1 }

func (f *field) parse(text string) (valueSet, error) {
	s := valueSet{star: text[0] == '*' || text[0] == '?'}
	for item := range strings.SplitSeq(text, ",") {
		if f.last && strings.EqualFold(item, "L") {
			s.last = true
			continue
		}
		bits, err := f.parseItem(item)
		if err != nil {
			return valueSet{}, fmt.Errorf("%s %q: %w", f.name, text, err)
		}
		s.bits |= bits
	}
	if f.high == 7 && s.has(7) {
		s.bits = s.bits&^(1<<7) | 1
	}
	return s, nil
}

// parseItem parses one item of a list.
func (f *field) parseItem(item string) (uint64, error) {
	spread, stepText, stepped := strings.Cut(item, "/")
	from, to, err := f.parseRange(spread, stepped)
	if err != nil {
		return 0, err
	}
	step := 1
	if stepped {
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.high {
			return 0, fmt.Errorf("the step %q must be a whole number from 1 to %d", stepText, f.high)
		}
	}
	var bits uint64
	for n := from; n <= to; n += step {
		bits |= 1 << n
	}
	return bits, nil
}

// parseRange parses *, a value or a range. A value with a step runs to the field's end.
func (f *field) parseRange(text string, stepped bool) (from, to int, err error) {
	if text == "*" || text == "?" && f.days {
		return f.low, f.greatest(), nil
	}
	first, last, ranged := strings.Cut(text, "-")
	if from, err = f.value(first); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		to, err = f.value(last)
	case stepped:
		to = f.greatest()
	default:
		to = from
	}
	switch {
	case err != nil:
		return 0, 0, err
	case to == 0 && from > 0 && f.high == 7:
		to = 7 // FRI-SUN
	case to < from:
		return 0, 0, fmt.Errorf("the range %q goes backwards; write it as two, such as %s-%d,%d-%s", text, first, f.greatest(), f.low, last)
	}
	return from, to, nil
}

// greatest returns the greatest value for *. Sunday has two numbers, and only 0 is used.
func (f *field) greatest() int {
	if f.high == 7 {
		return 6
	}
	return f.high
}

func (f *field) value(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.low + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.low || n > f.high || len(text) > 2 || text[0] == '+' || text[0] == '-' {
		return 0, fmt.Errorf("%q is not valid: %s", text, f.allowed())
	}
	return n, nil
}

// allowed describes the possible values of a field.
func (f *field) allowed() string {
	say := fmt.Sprintf("use %d-%d", f.low, f.high)
	if f.names != nil {
		say += fmt.Sprintf(" or %s-%s", f.names[0], f.names[len(f.names)-1])
	}
	say += ", *, lists (a,b), ranges (a-b) and steps (*/n)"
	if f.last {
		say += ", or L for the last"
	}
	return say
}

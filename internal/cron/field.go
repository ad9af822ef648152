package cron

import (
	"fmt"
	"strconv"
	"strings"
)

// field is one of an expression's six.
type field struct {
	name      string
	low, high int
	names     []string // of the values from low on
	days      bool     // takes ?
	last      bool     // takes L
}

var fields = [6]field{
	{name: "second", low: 0, high: 59},
	{name: "minute", low: 0, high: 59},
	{name: "hour", low: 0, high: 23},
	{name: "day of month", low: 1, high: 31, days: true, last: true},
	{name: "month", low: 1, high: 12, names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", low: 0, high: 7, days: true, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// set is the values of a field.
type set struct {
	bits uint64
	star bool // it began with * or ?, which is how Vixie cron tells that a field restricts nothing
	last bool // the last day of the month, whichever it is
}

func (s set) has(n int) bool { return s.bits>>n&1 == 1 }

func (f *field) parse(text string) (set, error) {
	s := set{star: text[0] == '*' || text[0] == '?'}
	for item := range strings.SplitSeq(text, ",") {
		if f.last && strings.EqualFold(item, "L") {
			s.last = true
			continue
		}
		bits, err := f.parseItem(item)
		if err != nil {
			return set{}, fmt.Errorf("%s %q: %w", f.name, text, err)
		}
		s.bits |= bits
	}
	if f.high == 7 && s.has(7) {
		s.bits = s.bits&^(1<<7) | 1
	}
	return s, nil
}

// parseItem reads one of a list.
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

// parseRange reads *, a value or a range. A value with a step goes on to the
// field's end.
func (f *field) parseRange(text string, stepped bool) (from, to int, err error) {
	if text == "*" || text == "?" && f.days {
		return f.low, f.top(), nil
	}
	first, last, ranged := strings.Cut(text, "-")
	if from, err = f.value(first); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		to, err = f.value(last)
	case stepped:
		to = f.top()
	default:
		to = from
	}
	switch {
	case err != nil:
		return 0, 0, err
	case to == 0 && from > 0 && f.high == 7:
		to = 7 // FRI-SUN
	case to < from:
		return 0, 0, fmt.Errorf("the range %q goes backwards; write it as two, such as %s-%d,%d-%s", text, first, f.top(), f.low, last)
	}
	return from, to, nil
}

// top is the greatest value that a * stands for: Sunday has two numbers, and
// counts once.
func (f *field) top() int {
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
		return 0, fmt.Errorf("%q is not one: %s", text, f.allowed())
	}
	return n, nil
}

// allowed says what the field may hold.
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

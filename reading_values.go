package tidemill

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// text reads a string, into memory of its own.
func (q *reading) text() string {
	from := q.at
	q.must('"')
	for q.at < len(q.data) {
		c := q.data[q.at]
		q.at++
		switch {
		case c == '"':
			return q.plain(q.data[from+1 : q.at-1])
		case c == '\\':
			return q.escaped(from)
		case c < ' ':
			q.giveUp()
		}
	}
	q.giveUp()
	return ""
}

// plain is a text without escapes. What is not UTF-8 encoding/json mends.
func (q *reading) plain(text []byte) string {
	if !utf8.Valid(text) {
		q.giveUp()
	}
	return string(text)
}

// escaped is a text with escapes, of which the first has just begun.
func (q *reading) escaped(from int) (s string) {
	for q.at++; q.at < len(q.data); q.at++ {
		if c := q.data[q.at]; c == '\\' {
			q.at++
		} else if c == '"' {
			q.at++
			if json.Unmarshal(q.data[from:q.at], &s) != nil {
				q.giveUp()
			}
			return s
		}
	}
	q.giveUp()
	return ""
}

// mostDigits a number may have that certainly is an int64.
const mostDigits = 18

// digits are how many come next, up to the first other byte.
func (q *reading) digits() int {
	from := q.at
	for q.at < len(q.data) && q.data[q.at]-'0' <= 9 {
		q.at++
	}
	return q.at - from
}

// minus, and digits that do not begin with a 0 unless that is all.
func (q *reading) integer() (n int) {
	q.is('-')
	zero := q.at < len(q.data) && q.data[q.at] == '0'
	if n = q.digits(); n == 0 || zero && n > 1 {
		q.giveUp()
	}
	return n
}

func (q *reading) int64() (n int64) {
	from := q.at
	if q.integer() > mostDigits {
		q.giveUp()
	}
	text, minus := bytes.CutPrefix(q.since(from), []byte("-"))
	for _, c := range text {
		n = 10*n + int64(c-'0')
	}
	if minus {
		return -n
	}
	return n
}

func (q *reading) int() int {
	n := q.int64()
	if int64(int(n)) != n {
		q.giveUp()
	}
	return int(n)
}

func (q *reading) duration() time.Duration { return time.Duration(q.int64()) }

// number passes over one.
func (q *reading) number() {
	q.integer()
	if q.is('.') && q.digits() == 0 {
		q.giveUp()
	}
	if q.is('e') || q.is('E') {
		if !q.is('+') {
			q.is('-')
		}
		if q.digits() == 0 {
			q.giveUp()
		}
	}
}

func (q *reading) float() float64 {
	from := q.at
	q.number()
	f, err := strconv.ParseFloat(string(q.since(from)), 64)
	if err != nil {
		q.giveUp()
	}
	return f
}

func (q *reading) bool() bool {
	yes := q.word("true")
	if !yes && !q.word("false") {
		q.giveUp()
	}
	return yes
}

// raw is a value as it lies there, in memory of its own. What null is to it is not
// for us to know.
func (q *reading) raw() json.RawMessage {
	from := q.at
	if q.word("null") {
		q.giveUp()
	}
	q.skip()
	return bytes.Clone(q.since(from))
}

// skip passes over a value.
func (q *reading) skip() {
	if q.over || q.at >= len(q.data) {
		q.giveUp()
		return
	}
	switch q.data[q.at] {
	case '{':
		q.object(func([]byte) { q.skip() })
	case '[':
		q.list(q.skip)
	case '"':
		q.skipText()
	case 't', 'f':
		q.bool()
	case 'n':
		if !q.word("null") {
			q.giveUp()
		}
	default:
		q.number()
	}
}

func (q *reading) skipText() {
	for q.at++; q.at < len(q.data); q.at++ {
		switch c := q.data[q.at]; {
		case c == '"':
			q.at++
			return
		case c < ' ':
			q.giveUp()
		case c == '\\':
			if q.at++; q.at >= len(q.data) || !bytes.ContainsRune([]byte(`"\/bfnrt`), rune(q.data[q.at])) {
				q.giveUp() // also at \u, which is rare
			}
		}
	}
	q.giveUp()
}

// any reads a value with encoding/json.
func (q *reading) any(into any) {
	from := q.at
	q.skip()
	if json.Unmarshal(q.since(from), into) != nil {
		q.giveUp()
	}
}

// listOf reads a list, or null.
func listOf[T any](q *reading, was []T, item func() T) []T {
	if was != nil {
		q.giveUp()
	}
	if q.word("null") {
		return nil
	}
	all := []T{}
	q.list(func() { all = append(all, item()) })
	return all
}

// mapOf reads a map, or null.
func mapOf[T any](q *reading, was map[string]T, item func() T) map[string]T {
	if was != nil {
		q.giveUp()
	}
	if q.word("null") {
		return nil
	}
	all := map[string]T{}
	q.enter('{')
	for more := !q.is('}'); more && !q.over; more = q.more('}') {
		name := q.text()
		q.must(':')
		all[name] = item()
	}
	q.deep--
	return all
}

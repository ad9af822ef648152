package fold

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/jsonscan"
)

// reading reads JSON as Tidemill writes it, several times as fast as encoding/json: no
// white space between members, known fields, each member once. For anything else it
// gives up, and encoding/json reads the whole document again and reports any fault.
// What reading does read is exactly what encoding/json would have read.
type reading struct {
	data []byte
	at   int
	over bool // whether it has given up
	deep int
}

// unmarshal is json.Unmarshal into an empty value.
func unmarshal[T any](data []byte, into *T) error {
	if read := quickReader(into); read != nil {
		q := reading{data: data}
		if read(&q); !q.over && q.at == len(data) {
			return nil
		}
		*into = *new(T)
	}
	return json.Unmarshal(data, into)
}

// quickReader returns the function that reads a type, or nil if only encoding/json does.
func quickReader(into any) func(*reading) {
	switch v := into.(type) {
	case *tidemill.RunRequested:
		return func(q *reading) { readRequested(q, v) }
	case *tidemill.RunStarted:
		return func(q *reading) { readStarted(q, v) }
	case *finishedFact:
		return func(q *reading) { readFinished(q, v) }
	case *rule:
		return func(q *reading) { readRule(q, v) }
	}
	return nil
}

// giveUp ends all loops, because no data is left to be read.
func (q *reading) giveUp() { q.data, q.at, q.over = nil, 0, true }

// skipByte skips a byte if it is the next.
func (q *reading) skipByte(c byte) bool {
	if q.at < len(q.data) && q.data[q.at] == c {
		q.at++
		return true
	}
	return false
}

func (q *reading) must(c byte) {
	if !q.skipByte(c) {
		q.giveUp()
	}
}

// skipTo moves to the end of a value that jsonscan has found, and returns its bytes.
func (q *reading) skipTo(end int) []byte {
	if end < 0 || q.over {
		q.giveUp()
		return nil
	}
	b := q.data[q.at:end]
	q.at = end
	return b
}

// skipNull skips the word null if it is next.
func (q *reading) skipNull() bool {
	end := jsonscan.SkipWord(q.data, q.at, "null")
	if end >= 0 {
		q.at = end
	}
	return end >= 0
}

// readObject reads an object. The function field reads the value of each field.
func (q *reading) readObject(field func(name []byte)) {
	q.readMembers('{', '}', func() {
		name := q.readQuoted()
		q.must(':')
		field(name)
	})
}

// readMembers reads the members between two brackets.
func (q *reading) readMembers(opening, closing byte, member func()) {
	if q.deep++; q.deep > jsonscan.MaxDepth {
		q.giveUp()
	}
	q.must(opening)
	for more := !q.skipByte(closing); more && !q.over; {
		member()
		if more = !q.skipByte(closing); more {
			q.must(',')
		}
	}
	q.deep--
}

// readQuoted returns a string without escapes as part of the data.
func (q *reading) readQuoted() []byte {
	if q.at >= len(q.data) || q.data[q.at] != '"' {
		q.giveUp()
		return nil
	}
	s := jsonscan.ReadString(q.data, q.at)
	if s.Escaped || s.End < 0 {
		q.giveUp()
		return nil
	}
	b := q.skipTo(s.End)
	return b[1 : len(b)-1]
}

// readText returns a string as a copy.
func (q *reading) readText() string {
	s, end, memory := jsonscan.Text(q.data, q.at, nil)
	if q.skipTo(end); q.over {
		return ""
	}
	if memory == nil {
		return strings.Clone(s)
	}
	return s
}

func (q *reading) int64() int64 {
	n, err := strconv.ParseInt(jsonscan.AsText(q.skipTo(jsonscan.SkipNumber(q.data, q.at))), 10, 64)
	if err != nil {
		q.giveUp()
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

func (q *reading) float() float64 {
	f, err := strconv.ParseFloat(jsonscan.AsText(q.skipTo(jsonscan.SkipNumber(q.data, q.at))), 64)
	if err != nil {
		q.giveUp()
	}
	return f
}

func (q *reading) bool() bool {
	yes := jsonscan.SkipWord(q.data, q.at, "true")
	q.skipTo(max(yes, jsonscan.SkipWord(q.data, q.at, "false")))
	return yes >= 0
}

// skip skips a value and returns its bytes.
func (q *reading) skip() []byte { return q.skipTo(jsonscan.SkipValue(q.data, q.at, q.deep)) }

// readRaw returns a copy of a value's bytes. Null is left to encoding/json, because its meaning
// depends on the field.
func (q *reading) readRaw() json.RawMessage {
	if q.skipNull() {
		q.giveUp()
	}
	return bytes.Clone(q.skip())
}

// readSlowly reads a value with encoding/json.
func (q *reading) readSlowly(into any) {
	if json.Unmarshal(q.skip(), into) != nil {
		q.giveUp()
	}
}

// listOf reads a list, or null.
func listOf[T any](q *reading, was []T, item func() T) []T {
	if was != nil {
		q.giveUp()
	}
	if q.skipNull() {
		return nil
	}
	all := []T{}
	q.readMembers('[', ']', func() { all = append(all, item()) })
	return all
}

// mapOf reads a map, or null.
func mapOf[T any](q *reading, was map[string]T, item func() T) map[string]T {
	if was != nil {
		q.giveUp()
	}
	if q.skipNull() {
		return nil
	}
	all := map[string]T{}
	q.readMembers('{', '}', func() {
		name := q.readText()
		q.must(':')
		all[name] = item()
	})
	return all
}

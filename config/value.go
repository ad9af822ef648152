package config

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// value is a node of a file, its place, and the report for its problems. Reading a value never
// fails: it reports a problem and returns false.
type value struct {
	node *yaml.Node
	file string
	path string
	to   *report
}

// field is a key that a mapping may have.
type field struct {
	key  string
	read func(value)
}

func (v value) problem(format string, args ...any) {
	v.problemAt(v.node, format, args...)
}

func (v value) problemAt(n *yaml.Node, format string, args ...any) {
	v.to.add(Problem{File: v.file, Line: n.Line, Path: v.path, Message: fmt.Sprintf(format, args...)})
}

// fields reads a mapping of known keys and reports the others.
func (v value) fields(fields ...field) {
	known := make([]string, len(fields))
	read := make(map[string]func(value), len(fields))
	for i, f := range fields {
		known[i], read[f.key] = f.key, f.read
	}
	for key, child := range v.pairs() {
		if r := read[key.Value]; r != nil {
			r(child)
			continue
		}
		child.problemAt(key, "%s", unknownKey(key.Value, known))
	}
}

// presentFields parses the given fields and returns the names of those that are present.
func (v value) presentFields(fields ...field) map[string]bool {
	seen := map[string]bool{}
	for i, f := range fields {
		fields[i].read = func(v value) { seen[f.key] = true; f.read(v) }
	}
	v.fields(fields...)
	return seen
}

// require reports a missing field. If the value is not a mapping, fields has reported that, and
// require reports nothing.
func (v value) require(at *yaml.Node, given map[string]bool, key, next string) {
	if !given[key] && (v.node.Kind == yaml.MappingNode || isNull(v.node)) {
		v.child(key, v.node).problemAt(at, "is missing; %s", next)
	}
}

// versioned calls fields for a whole file. Every file must give its version, because the
// version applies to that file alone.
func (v value) versioned(fields ...field) {
	given := v.presentFields(append([]field{{"version", readVersion}}, fields...)...)
	v.require(v.node, given, "version", fmt.Sprintf("begin the file with `version: %d`", fileVersion))
}

// nodeAt returns the YAML node of a key that is present.
func (v value) nodeAt(key string) *yaml.Node {
	for k, child := range v.pairs() {
		if k.Value == key {
			return child.node
		}
	}
	return v.node
}

// pairs iterates over a mapping. It skips the entries that strict has reported: keys that are
// not text, and all but the first of equal keys. An empty value (`streams:`) is an empty
// mapping, as when everything under it is commented out.
func (v value) pairs() iter.Seq2[*yaml.Node, value] {
	return func(yield func(*yaml.Node, value) bool) {
		if v.node.Kind != yaml.MappingNode {
			if v.node.Kind != yaml.AliasNode && !isNull(v.node) {
				v.problem("must be keys and values, not %s", describe(v.node))
			}
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(v.node.Content); i += 2 {
			key := v.node.Content[i]
			if keyFault(key) != "" || seen[key.Value] {
				continue
			}
			seen[key.Value] = true
			if !yield(key, v.child(key.Value, v.node.Content[i+1])) {
				return
			}
		}
	}
}

// items reads a list; a single text is not accepted as a list of one.
func (v value) items() []value {
	if v.node.Kind != yaml.SequenceNode {
		if v.node.Kind != yaml.AliasNode {
			v.problem("must be a list, such as [a, b], not %s", describe(v.node))
		}
		return nil
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = v.item(i, n)
	}
	return items
}

// text reads a text. A plain word that another YAML reader would take for a number or a boolean
// must be quoted, so that the file means the same to both.
func (v value) text() (string, bool) {
	n := v.node
	switch {
	case n.Kind == yaml.AliasNode || secretIn(n.Value) != "":
		return "", false // strict has reported it
	case n.Kind != yaml.ScalarNode || isNull(n):
		v.problem("must be text, not %s", describe(n))
	case n.ShortTag() != "!!str" || isBooleanElsewhere(n):
		v.problem("must be text, not %s; write it in quotes", describe(n))
	case n.Value == "":
		v.problem("is empty; write a text or remove the key")
	default:
		return n.Value, true
	}
	return "", false
}

// isEmptyText reports whether the value is a text in quotes without a letter.
func (v value) isEmptyText() bool {
	return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" && v.node.Value == ""
}

// scalar reads a text or a number as it is written.
func (v value) scalar() (string, bool) {
	switch {
	case v.node.Kind == yaml.AliasNode || secretIn(v.node.Value) != "":
		return "", false // strict has reported it
	case v.node.Kind != yaml.ScalarNode || isNull(v.node):
		v.problem("must be one value, not %s", describe(v.node))
		return "", false
	}
	return v.node.Value, true
}

var plainDigits = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

// integer reads a whole number within bounds.
func (v value) integer(low, high int) (int, bool) {
	n := v.node
	digits := n.Value
	if low < 0 {
		digits = strings.TrimPrefix(digits, "-")
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return 0, false
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || !plainDigits.MatchString(digits):
		v.problem("must be a whole number from %d to %d, not %s", low, high, describe(n))
		return 0, false
	}
	i, err := strconv.Atoi(n.Value)
	if err != nil || i < low || i > high {
		v.problem("must be a whole number from %d to %d, not %s", low, high, n.Value)
		return 0, false
	}
	return i, true
}

// oneOf reads one of several words.
func (v value) oneOf(words ...string) (string, bool) {
	s, ok := v.text()
	if !ok {
		return "", false
	}
	for _, w := range words {
		if s == w {
			return s, true
		}
	}
	v.problem("must be one of %s, not %s", strings.Join(words, ", "), show(s))
	return "", false
}

// boolean reads true or false.
func (v value) boolean() (bool, bool) {
	n := v.node
	switch {
	case n.Kind == yaml.AliasNode:
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" && isPlain(n):
		return strings.EqualFold(n.Value, "true"), true
	default:
		v.problem("must be true or false, not %s", describe(n))
	}
	return false, false
}

// span reads a duration within bounds, such as 1m30s.
func (v value) span(low, high time.Duration) (time.Duration, bool) {
	text, ok := v.scalar()
	if !ok {
		return 0, false
	}
	if !startsWithDigit(text) {
		v.problem("must be a time such as 10s, not %s", show(text))
		return 0, false
	}
	instead := "write " + showSpan(low) + " to " + showSpan(high)
	d, err := sumSpans(text, high, "is more than "+showSpan(high)+"; "+instead, instead)
	switch {
	case err != nil:
		v.problem("%s", err)
	case d < low:
		v.problem("%s is less than %s; %s", show(text), showSpan(low), instead)
	default:
		return d, true
	}
	return 0, false
}

func (v value) child(key string, n *yaml.Node) value {
	switch {
	case !plainKey.fits(key):
		v.path += "[" + show(key) + "]"
	case v.path == "":
		v.path = key
	default:
		v.path += "." + key
	}
	v.node = n
	return v
}

func (v value) item(i int, n *yaml.Node) value {
	v.path += "[" + strconv.Itoa(i) + "]"
	v.node = n
	return v
}

var plainKey = shaped(60, `^[A-Za-z0-9_-]+$`)

// shape is an expression and the greatest length of a text. The bound is not part of the
// expression, because a compiled {0,200} uses two hundred copies, in every process for its
// whole life.
type shape struct {
	most int
	as   *regexp.Regexp
}

func shaped(most int, as string) shape { return shape{most, regexp.MustCompile(as)} }

func (s shape) fits(text string) bool {
	return utf8.RuneCountInString(text) <= s.most && s.as.MatchString(text)
}

var spanUnits = map[byte]time.Duration{
	's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// sumSpans adds up whole numbers with units. If the sum exceeds most, its error is tooMuch. The
// text instead is the advice for a number that is too large.
func sumSpans(s string, most time.Duration, tooMuch, instead string) (time.Duration, error) {
	var sum time.Duration
	for rest := s; rest != ""; {
		n, unit, after, err := cutSpan(rest, instead)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", show(s), err)
		}
		if n > int64((most-sum)/unit) {
			return 0, fmt.Errorf("%s %s", show(s), tooMuch)
		}
		sum, rest = sum+time.Duration(n)*unit, after
	}
	return sum, nil
}

// cutSpan splits off the first number and its unit.
func cutSpan(s, instead string) (n int64, unit time.Duration, rest string, err error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	if digits == 0 {
		return 0, 0, "", errors.New("a number is missing; write a time such as 7d or 1d12h")
	}
	if digits == len(s) {
		return 0, 0, "", errors.New("the unit is missing; write s, m, h, d or w after the number")
	}
	unit, letters := spanUnits[s[digits]], 1
	switch {
	case strings.HasPrefix(s[digits:], "ms"):
		unit, letters = time.Millisecond, 2
	case unit == 0:
		return 0, 0, "", errors.New("unknown unit; use s, m, h, d or w after a whole number")
	}
	n, err = strconv.ParseInt(s[:digits], 10, 64)
	if err != nil {
		return 0, 0, "", errors.New("the number is too large; " + instead)
	}
	return n, unit, s[digits+letters:], nil
}

// showSpan returns the shortest text that sumSpans parses to the same duration.
func showSpan(d time.Duration) string {
	for _, unit := range []byte("wdhm") {
		if d%spanUnits[unit] == 0 {
			return strconv.FormatInt(int64(d/spanUnits[unit]), 10) + string(unit)
		}
	}
	if d%time.Second != 0 {
		return strconv.FormatInt(int64(d/time.Millisecond), 10) + "ms"
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

// byteUnits are the units of Kubernetes. A B may follow them.
var byteUnits = map[string]int64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// readBytes reads a size within bounds, such as 2Gi or 500MB.
func readBytes(to *int64, low, high int64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		n, err := parseBytes(text)
		switch {
		case err != nil:
			v.problem("%s", err)
		case n < low || n > high:
			v.problem("must be from %s to %s, not %s", showBytes(low), showBytes(high), show(text))
		default:
			*to = n
		}
	}
}

func parseBytes(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	number, unit := s[:digits], strings.TrimSuffix(s[digits:], "B")
	factor, known := byteUnits[unit]
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case digits == 0 || strings.HasPrefix(unit, "."):
		return 0, fmt.Errorf("must be a whole number of bytes with a unit, such as 500MB or 2Gi, not %s", show(s))
	case !known:
		return 0, fmt.Errorf("%s has an unknown unit; use k, M, G, T or Ki, Mi, Gi, Ti, as in 2Gi", show(s))
	case s == number:
		return 0, fmt.Errorf("%s has no unit; write one, such as 500MB or 2Gi", show(s))
	case err != nil || n > math.MaxInt64/factor:
		return 0, fmt.Errorf("%s is too much", show(s))
	}
	return n * factor, nil
}

// showBytes returns the shortest text that parseBytes parses to the same size.
func showBytes(n int64) string {
	for _, unit := range []string{"Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"} {
		if n != 0 && n%byteUnits[unit] == 0 {
			return strconv.FormatInt(n/byteUnits[unit], 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

const (
	minCores = 0.001
	maxCores = 1024
)

// readCores reads a number of processors, such as 0.5 or 500m.
func readCores(to *float64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		number, milli := strings.CutSuffix(text, "m")
		n, err := strconv.ParseFloat(number, 64)
		if milli {
			n /= 1000
		}
		switch {
		case err != nil || strings.Trim(number, "0123456789.") != "":
			v.problem("must be a number of processors, such as 2, 0.5 or 500m, not %s", show(text))
		case n < minCores || n > maxCores:
			v.problem("must be from 1m to %d processors, not %s", maxCores, show(text))
		default:
			*to = n
		}
	}
}

// ParseRate parses a rate as in the file: a whole number per second, minute or hour, such as 100/s.
func ParseRate(text string) (float64, error) { return parseRate(text) }

// Forever is the retention of a stream that never expires.
const Forever time.Duration = 0

const (
	forever      = "forever"
	minRetention = time.Minute
	maxRetention = 100 * 365 * 24 * time.Hour // Go's durations end at 292 years
)

// parseRetention parses whole numbers with units, such as 7d or 1d12h, or "forever".
func parseRetention(s string) (time.Duration, error) {
	if s == forever {
		return Forever, nil
	}
	if !startsWithDigit(s) {
		return 0, fmt.Errorf("must be a time such as 7d, or forever, not %s", show(s))
	}
	sum, err := sumSpans(s, maxRetention, "is more than a hundred years; write forever", "write forever")
	if err == nil && sum < minRetention {
		err = fmt.Errorf("%s is too short for anyone to read the events; write 1m or more, or forever", show(s))
	}
	return sum, err
}

// showRetention returns the shortest text that parseRetention parses to the same duration.
func showRetention(d time.Duration) string {
	if d == Forever {
		return forever
	}
	return showSpan(d)
}

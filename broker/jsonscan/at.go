package jsonscan

import "strconv"

// TextAt returns the text, number or boolean at a path in JSON, whose parts are names of members
// and indexes of elements. It is empty if no such value is there. Nothing after the last object or
// array on the path is read. The result points into the data unless the text has escapes.
func TextAt(data []byte, path []string) string {
	i := SkipSpace(data, 0)
	for depth, part := range path {
		if i = enter(data, i, depth+1, part); i < 0 {
			return ""
		}
	}
	if i >= len(data) {
		return ""
	}
	switch c := data[i]; {
	case c == '"':
		text, _, _ := Text(data, i, nil)
		return text
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f':
		return literal(data, i)
	}
	return ""
}

// literal returns a number or a word, unless more than it is there: 12x is no number.
func literal(data []byte, i int) string {
	end := SkipValue(data, i, 0)
	if end < 0 {
		return ""
	}
	if next := SkipSpace(data, end); next == end && next < len(data) && data[next] != ',' && data[next] != '}' && data[next] != ']' {
		return ""
	}
	return AsText(data[i:end])
}

// enter returns the index of a member or an element of the value at i, or -1.
func enter(data []byte, i, depth int, part string) int {
	if i >= len(data) {
		return -1
	}
	switch data[i] {
	case '{':
		return member(data, i, depth, part)
	case '[':
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			return element(data, i, depth, n)
		}
	}
	return -1
}

// member returns the index of a member's value. If several have the name, the last one
// counts, as for encoding/json. It returns what it found before a fault in the JSON.
func member(data []byte, i, depth int, name string) (found int) {
	found = -1
	i, more := Enter(data, i, '}', depth)
	for more && i < len(data) && data[i] == '"' {
		text := ReadString(data, i)
		value := SkipColon(data, text.End)
		if value < 0 {
			break
		}
		if text.Is(data, i, name) {
			found = value
		}
		if i = SkipValue(data, value, depth); i < 0 {
			break
		}
		i, more = Next(data, i, '}')
	}
	return found
}

func element(data []byte, i, depth, n int) int {
	i, more := Enter(data, i, ']', depth)
	for ; more; n-- {
		if n == 0 {
			return i
		}
		if i = SkipValue(data, i, depth); i < 0 {
			return -1
		}
		i, more = Next(data, i, ']')
	}
	return -1
}

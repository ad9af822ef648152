package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Metrics are the numbers of a JSON object, by their paths with dots. What
// stands in a list is none: a list of numbers is a curve or a matrix, and no
// gate judges it by its place.

// numbers adds those of an object.
func numbers(to map[string]float64, prefix string, from map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		switch v := from[name].(type) {
		case float64:
			to[prefix+name] = v
		case map[string]any:
			numbers(to, prefix+name+".", v)
		}
	}
}

// atMost leaves the first by name, so many and of so many letters, and says how
// many were left out.
func atMost(all map[string]float64, most, letters int) (left int) {
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if letters -= len(name); i >= most || letters < 0 {
			delete(all, name)
			left++
		}
	}
	return left
}

// alien finds a number that JSON does not know, but which many libraries write
// as if it did. The place is its first letter's.
func alien(text []byte) (word string, at int) {
	inside := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == 'N' || c == 'I' || c == '-' || c == 'n' || c == 'i':
			if word := alienAt(text[i:]); word != "" {
				return word, i
			}
		}
	}
	return "", -1
}

func alienAt(text []byte) string {
	for _, word := range []string{"NaN", "-Infinity", "Infinity", "nan", "-inf", "inf", "-NaN", "-nan"} {
		if bytes.HasPrefix(text, []byte(word)) {
			return word
		}
	}
	return ""
}

// withoutAliens is the text with null for each of them.
func withoutAliens(text []byte) []byte {
	var clean []byte
	for {
		word, at := alien(text)
		if at < 0 {
			return append(clean, text...)
		}
		clean = append(append(clean, text[:at]...), "null"...)
		text = text[at+len(word):]
	}
}

// object reads a JSON object. The error says what is wrong where.
func object(text []byte) (map[string]any, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, explain(text, err)
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is no object: write {\"accuracy\": 0.9}, say")
	}
	return o, nil
}

func explain(text []byte, err error) error {
	if word, at := alien(text); at >= 0 {
		return fmt.Errorf("line %d: %s is not JSON, and nothing can be judged by it: write null, or leave it out", lineOf(text, at), word)
	}
	var wrong *json.SyntaxError
	var number *json.UnmarshalTypeError
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("it is empty: write an object, at its end and at once")
	case errors.As(err, &number):
		return fmt.Errorf("line %d: %s cannot be held: it is beyond the numbers there are", lineOf(text, int(number.Offset)), number.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("line %d: that is not JSON: %w", lineOf(text, int(wrong.Offset)), err)
	}
	return err
}

func lineOf(text []byte, at int) int { return 1 + bytes.Count(text[:min(at, len(text))], []byte("\n")) }

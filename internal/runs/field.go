package runs

import (
	"encoding/json"
	"strconv"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// Field is what stands in a place of an event: an attribute by its name, or
// data.PATH, a text, number or boolean in its JSON data, where the path's parts
// are names of members and numbers of elements. It is false where nothing of
// that sort stands.
func Field(v *broker.View, place string) (string, bool) {
	path, inData := strings.CutPrefix(place, config.KeyData)
	if !inData {
		text, ok := v.Attribute(place)
		return text, ok && text != ""
	}
	var at any
	d := json.NewDecoder(strings.NewReader(string(v.Data)))
	d.UseNumber() // 12345678901234567890 is a key as it stands
	if d.Decode(&at) != nil {
		return "", false
	}
	for part := range strings.SplitSeq(path, ".") {
		at = member(at, part)
	}
	return plainText(at)
}

func member(of any, part string) any {
	switch of := of.(type) {
	case map[string]any:
		return of[part]
	case []any:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(of) {
			return of[i]
		}
	}
	return nil
}

func plainText(x any) (string, bool) {
	switch x := x.(type) {
	case string:
		return x, x != ""
	case json.Number:
		return x.String(), true
	case bool:
		return strconv.FormatBool(x), true
	}
	return "", false
}

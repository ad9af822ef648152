package pick

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// CheckPath says what is wrong with a path: data, data.text, data.items[0].x,
// data["odd name"], or an attribute such as subject. key is the record's.
func CheckPath(path string) error {
	_, err := parsePath(path)
	return err
}

// rootData begins the paths into an event's data.
const rootData = "data"

// parsed is a path that was read: an attribute's name, or the steps into the data.
type parsed struct {
	attribute string // empty for data
	steps     []step
}

// step is a member of an object, or an element of an array.
type step struct {
	name    string
	index   int
	element bool
}

func (s step) String() string {
	if s.element {
		return "[" + strconv.Itoa(s.index) + "]"
	}
	if s.name == "" || strings.ContainsAny(s.name, `.[]"`) {
		return "[" + strconv.Quote(s.name) + "]"
	}
	return "." + s.name
}

func parsePath(path string) (p parsed, err error) {
	rest, inData := strings.CutPrefix(path, rootData)
	if !inData || (rest != "" && rest[0] != '.' && rest[0] != '[') {
		return parsed{attribute: path}, checkAttribute(path)
	}
	for rest != "" {
		var s step
		if s, rest, err = cutStep(rest); err != nil {
			return parsed{}, fmt.Errorf("path %q %w", path, err)
		}
		p.steps = append(p.steps, s)
	}
	return p, nil
}

// checkAttribute knows what names CloudEvents allows.
func checkAttribute(name string) error {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Errorf("path %q is neither data (data.text, data.items[0].x, data[\"odd name\"]) nor the name of an attribute, which is a-z and 0-9", name)
		}
	}
	if name == "" {
		return errors.New("path is empty; write data.text, say, or the name of an attribute")
	}
	return nil
}

func cutStep(path string) (s step, rest string, err error) {
	if path[0] == '[' {
		return cutBrackets(path[1:])
	}
	if path[0] != '.' {
		return step{}, "", fmt.Errorf("goes on with %q, where a dot or a bracket is wanted", path)
	}
	path = path[1:]
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	name := path[:end]
	if name == "" {
		return step{}, "", errors.New("has a dot with no name behind it")
	}
	if strings.ContainsAny(name, `]"`) {
		return step{}, "", fmt.Errorf("has an odd name, %q; write it as [\"…\"]", name)
	}
	return step{name: name}, path[end:], nil
}

// cutBrackets reads what stands behind an opening bracket: a number, or a name in
// quotes as JSON has them.
func cutBrackets(path string) (s step, rest string, err error) {
	if strings.HasPrefix(path, `"`) {
		end := scanString([]byte(path), 0).end
		if end < 0 || !strings.HasPrefix(path[end:], "]") {
			return step{}, "", errors.New(`has a name in brackets that does not end with "]`)
		}
		err = json.Unmarshal([]byte(path[:end]), &s.name)
		return s, path[end+1:], err
	}
	digits, rest, closed := strings.Cut(path, "]")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !closed || err != nil {
		return step{}, "", fmt.Errorf("has [%s, which is no place in an array; write [0] for the first, or [\"name\"]", path)
	}
	return step{index: int(n), element: true}, rest, nil
}

package infer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseCard is the one document of model.yaml; nil if the file says nothing.
func parseCard(data []byte) (root *yaml.Node, err error) {
	defer func() { // the parser is not ours
		if r := recover(); r != nil {
			root, err = nil, fmt.Errorf("%w: %s: the YAML parser failed: %v", ErrUnfit, CardFile, r)
		}
	}()
	if len(data) > maxCard {
		return nil, fmt.Errorf("%w: %s has %d bytes; at most %d are read", ErrUnfit, CardFile, len(data), maxCard)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %s", ErrUnfit, CardFile, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s: it must hold one document", ErrUnfit, CardFile)
	}
	return doc.Content[0], plain(doc.Content[0], 0)
}

// plain refuses what makes a file mean more than is seen: aliases, which can also
// grow a small file beyond all bounds, tags, and depth.
func plain(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return wrong(n, "it is nested more than %d deep", maxDepth)
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return wrong(n, "anchors and aliases are refused; write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		return wrong(n, "tags (!name) are refused; write the plain value")
	}
	for _, child := range n.Content {
		if err := plain(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// fields reads a mapping of known keys.
func fields(n *yaml.Node, path string, known map[string]func(*yaml.Node) error) error {
	names := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	if n.Kind != yaml.MappingNode {
		return wrong(n, "%s must have keys: %s", strings.TrimSuffix("it."+path, "."), names)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		read := known[name.Value]
		switch {
		case read == nil:
			return wrong(name, "%s%s is not known; there are %s", path, name.Value, names)
		case seen[name.Value]:
			return wrong(name, "%s%s stands twice", path, name.Value)
		}
		seen[name.Value] = true
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

// size reads a size such as 64MiB.
func size(s string) (int64, error) {
	units := []struct {
		name string
		by   int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
		{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.name); ok {
			if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > 0 && n <= math.MaxInt64/u.by {
				return n * u.by, nil
			}
		}
	}
	return 0, errors.New("it is no size")
}

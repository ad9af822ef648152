package access

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/config"
)

// page is a file's text, a line each, and where its tokens stand. It is changed
// by whole lines, because whatever writes YAML anew loses blank lines, quotes
// and the place of comments.
type page struct {
	lines []string // with their ends
	end   string   // of a line
	root  *yaml.Node
}

func readPage(text []byte) (*page, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	p := &page{lines: strings.SplitAfter(string(text), "\n"), end: "\n"}
	if doc.Kind == yaml.DocumentNode {
		p.root = doc.Content[0]
	}
	if strings.Contains(p.lines[0], "\r\n") {
		p.end = "\r\n"
	}
	last := len(p.lines) - 1
	if p.lines[last] == "" {
		p.lines = p.lines[:last]
	} else {
		p.lines[last] += p.end
	}
	if !isBlock(p.root) {
		return nil, errByHand
	}
	return p, nil
}

func isBlock(n *yaml.Node) bool {
	return n != nil && n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0
}

func (p *page) text() []byte { return []byte(strings.Join(p.lines, "")) }

// find is a key of a mapping, its value, and the line of the next key, which is
// the given one if there is none.
func find(in *yaml.Node, key string, end int) (k, v *yaml.Node, next int) {
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value != key {
			continue
		}
		if i+2 < len(in.Content) {
			end = in.Content[i+2].Line
		}
		return in.Content[i], in.Content[i+1], end
	}
	return nil, nil, end
}

// tokens is where the tokens stand: their key, their value and the line behind.
func (p *page) tokens() (k, v *yaml.Node, end int) { return find(p.root, "tokens", len(p.lines)+1) }

// add puts an entry behind the others.
func (p *page) add(t config.Token) error {
	key, tokens, end := p.tokens()
	switch {
	case key == nil:
		at := p.behind(len(p.lines)+1, 0)
		p.insert(at, append([]string{"", "tokens:"}, entry(t, "  ", "  ")...))
	case isBlock(tokens):
		indent := column(tokens.Content[0])
		p.insert(p.behind(end, len(indent)), entry(t, indent, p.step(tokens, indent)))
	case len(tokens.Content) == 0:
		line := &p.lines[key.Line-1]
		*line = strings.Replace(*line, " {}", "", 1)
		p.insert(key.Line+1, entry(t, column(key)+"  ", "  "))
	default:
		return errByHand
	}
	return nil
}

// replace puts an entry where the one of its name stands.
func (p *page) replace(t config.Token) error {
	from, to, indent, err := p.place(t.Name)
	if err != nil {
		return err
	}
	_, tokens, _ := p.tokens()
	step := p.step(tokens, indent)
	p.lines = slices.Delete(p.lines, from-1, to-1)
	p.insert(from, entry(t, indent, step))
	return nil
}

// remove takes an entry out, and the comment right above it, which would else
// speak of the next one.
func (p *page) remove(name string) error {
	from, to, indent, err := p.place(name)
	if err != nil {
		return err
	}
	for from > 1 && strings.HasPrefix(p.lines[from-2], indent+"#") {
		from--
	}
	if p.blank(from-1) && p.blank(to) { // one of the two that stood around it is enough
		to++
	}
	p.lines = slices.Delete(p.lines, from-1, to-1)
	return nil
}

// place is the lines of an entry, from one to before another.
func (p *page) place(name string) (from, to int, indent string, err error) {
	_, tokens, end := p.tokens()
	if !isBlock(tokens) {
		return 0, 0, "", errByHand
	}
	key, _, next := find(tokens, name, end)
	indent = column(key)
	return key.Line, max(p.behind(next, len(indent)+1), key.Line+1), indent, nil
}

// behind is the line behind what stands before another: blank lines, and
// comments that are less indented than that, belong to what follows.
func (p *page) behind(line, indent int) int {
	for line > 1 {
		above := strings.TrimRight(p.lines[line-2], "\r\n\t ")
		text := strings.TrimLeft(above, " ")
		if text != "" && (text[0] != '#' || len(above)-len(text) >= indent) {
			break
		}
		line--
	}
	return line
}

func (p *page) blank(line int) bool {
	return line <= len(p.lines) && strings.TrimSpace(p.lines[line-1]) == ""
}

// insert puts lines before one, which counts from 1.
func (p *page) insert(before int, lines []string) {
	for i, l := range lines {
		p.lines = slices.Insert(p.lines, before-1+i, l+p.end)
	}
}

// column is the space before a key in its line.
func column(key *yaml.Node) string { return strings.Repeat(" ", key.Column-1) }

// step is how much deeper than their name what is said of a token stands.
func (p *page) step(tokens *yaml.Node, indent string) string {
	for i := 1; i < len(tokens.Content); i += 2 {
		if v := tokens.Content[i]; isBlock(v) && len(v.Content) > 0 && v.Column-1 > len(indent) {
			return strings.Repeat(" ", v.Column-1-len(indent))
		}
	}
	return "  "
}

package features

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// CheckPath reports what is wrong with a path. Paths are data, data.text,
// data.items[0].x, data["odd name"], or an attribute such as subject. key is the
// record's key.
func CheckPath(path string) error {
	_, err := parsePath(path)
	return err
}

// rootData begins the paths into an event's data.
const rootData = "data"

// parsed is a path after parsing: an attribute's name, or steps into the data.
type parsed struct {
	attribute string // empty if the path is into the data
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

// checkAttribute checks a name against the rules of CloudEvents.
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
		return step{}, "", fmt.Errorf("continues with %q, where a dot or a bracket is expected", path)
	}
	path = path[1:]
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	name := path[:end]
	if name == "" {
		return step{}, "", errors.New("has a dot without a name after it")
	}
	if strings.ContainsAny(name, `]"`) {
		return step{}, "", fmt.Errorf("has an odd name, %q; write it as [\"…\"]", name)
	}
	return step{name: name}, path[end:], nil
}

// cutBrackets reads the text after an opening bracket: a number, or a name in JSON's
// quotes.
func cutBrackets(path string) (s step, rest string, err error) {
	if strings.HasPrefix(path, `"`) {
		end := jsonscan.ReadString([]byte(path), 0).End
		if end < 0 || !strings.HasPrefix(path[end:], "]") {
			return step{}, "", errors.New(`has a name in brackets that does not end with "]`)
		}
		err = json.Unmarshal([]byte(path[:end]), &s.name)
		return s, path[end+1:], err
	}
	digits, rest, closed := strings.Cut(path, "]")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !closed || err != nil {
		return step{}, "", fmt.Errorf("has [%s, which is not an index of an array; write [0] for the first, or [\"name\"]", path)
	}
	return step{index: int(n), element: true}, rest, nil
}

// Field is an input of a model and the path of its values.
type Field struct {
	Input string // name of the tensor; may be empty if the model has one
	Path  string // see CheckPath
	// Default is JSON that is read if the value is missing or null. If it is empty, the value must be
	// there.
	Default string
}

// maxInputs bounds what a reader keeps on its stack.
const maxInputs = 256

// Plan reads events for one set of inputs. It is safe for concurrent use.
type Plan struct {
	slots      []slot // by input
	attributes []int  // indexes of slots that are read from attributes
	root       *node  // tree of the wanted paths into the data; nil if there are none
}

// slot is an input and its path.
type slot struct {
	tensor.Spec
	at   parsed
	path string
	def  []byte // default, JSON; nil if there is none
	open bool   // the events determine a size other than the number of rows
}

// node is a place in the data. Slots are at it or below it.
type node struct {
	depth    int // number of objects and arrays around it
	slots    []int
	under    []int // slots below it, without its own
	members  []member
	elements []element
}

type member struct {
	name string
	to   *node
}

type element struct {
	index int
	to    *node
}

// New makes a plan. Inputs without a field are read from data.<name>.
func New(fields []Field, inputs []tensor.Spec) (*Plan, error) {
	if len(inputs) == 0 || len(inputs) > maxInputs {
		return nil, fmt.Errorf("map the inputs of a model: it has %d, and 1 to %d are taken", len(inputs), maxInputs)
	}
	p := &Plan{slots: make([]slot, len(inputs))}
	for i, spec := range inputs {
		s, err := newSlot(spec)
		if err != nil {
			return nil, fmt.Errorf("map input %q: %w", spec.Name, err)
		}
		p.slots[i] = s
	}
	for _, f := range fields {
		if err := p.place(f); err != nil {
			return nil, fmt.Errorf("map input %q: %w", f.Input, err)
		}
	}
	p.compile()
	return p, nil
}

func newSlot(spec tensor.Spec) (slot, error) {
	switch spec.Type {
	case tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String:
	default:
		return slot{}, fmt.Errorf("no event can be read into a tensor of ONNX's type %d; float, double, int32, int64, bool and string are taken", spec.Type)
	}
	if len(spec.Shape) == 0 {
		return slot{}, errors.New("the model takes one number, not rows of them; export it with a first dimension for the batch")
	}
	s := slot{Spec: spec}
	for _, n := range spec.Shape[1:] {
		s.open = s.open || n < 0
	}
	return s, nil
}

// place sets the path of an input.
func (p *Plan) place(f Field) error {
	i, err := p.input(f.Input)
	if err != nil {
		return err
	}
	s := &p.slots[i]
	if s.path != "" {
		return fmt.Errorf("it is mapped twice, to %s and to %s", s.path, f.Path)
	}
	s.path = f.Path
	if s.at, err = parsePath(f.Path); err != nil || f.Default == "" {
		return err
	}
	s.def = []byte(f.Default)
	return p.checkDefault(i)
}

// checkDefault makes sure that the default can be read as a row.
func (p *Plan) checkDefault(i int) error {
	in := make([]tensor.Tensor, len(p.slots))
	p.Begin(in, 1)
	r := reader{plan: p, in: in}
	if !r.readDefault(i) {
		return fmt.Errorf("its default is %s; %s", quoted(string(p.slots[i].def)), p.slots[i].expectedValues())
	}
	return nil
}

func (p *Plan) input(name string) (int, error) {
	if name == "" && len(p.slots) == 1 {
		return 0, nil
	}
	names := make([]string, len(p.slots))
	for i := range p.slots {
		if names[i] = p.slots[i].Name; names[i] == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the model has no such input; it has %s", strings.Join(names, ", "))
}

// compile makes one tree of all paths into the data.
func (p *Plan) compile() {
	for i := range p.slots {
		s := &p.slots[i]
		if s.path == "" {
			s.at.steps = []step{{name: s.Name}}
			s.path = rootData + s.at.steps[0].String()
		}
		if s.at.attribute != "" {
			p.attributes = append(p.attributes, i)
			continue
		}
		if p.root == nil {
			p.root = &node{}
		}
		n := p.root
		for _, at := range s.at.steps {
			n.under = append(n.under, i)
			n = n.child(at)
		}
		n.slots = append(n.slots, i)
	}
}

// child returns the node one step below, and makes it if it is missing.
func (n *node) child(s step) *node {
	if s.element {
		for _, e := range n.elements {
			if e.index == s.index {
				return e.to
			}
		}
		to := &node{depth: n.depth + 1}
		n.elements = append(n.elements, element{s.index, to})
		return to
	}
	for _, m := range n.members {
		if m.name == s.name {
			return m.to
		}
	}
	to := &node{depth: n.depth + 1}
	n.members = append(n.members, member{s.name, to})
	return to
}

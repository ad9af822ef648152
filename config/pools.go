package config

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// DefaultPool is the pool of recipes that name no pool. Every config has it.
const DefaultPool = "default"

// Pool is a kind of hardware.
type Pool struct {
	Name     string
	Resource string        // GPU resource, such as nvidia.com/gpu
	Slots    int           // attempts that run at once; 0 means the machine's number of processors
	Linger   time.Duration // time for which an idle pod stays
	Cards    Cards

	// Settings for a cluster; a laptop ignores them.
	Nodes         map[string]string // labels of its nodes
	Tolerations   []Toleration      // tolerations for the taints of its nodes
	PriorityClass string
	Queue         string // queue of Kueue; empty if there is none
	RuntimeClass  string // such as nvidia
}

// Toleration is a toleration of Kubernetes, which the pods of a pool get.
type Toleration struct{ Key, Operator, Value, Effect string }

// Cards orders GPU cards from new to old.
type Cards struct {
	Label       string // label of nodes
	NewestFirst []string
}

// Pool finds a pool by its name.
func (c *Config) Pool(name string) (Pool, bool) {
	i := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Name == name })
	if i < 0 {
		return Pool{}, false
	}
	return c.Pools[i], true
}

const (
	maxSlots  = 100_000
	maxLinger = 24 * time.Hour
	maxCards  = 100
)

func (d *draft) readPools(v value) {
	for key, child := range v.pairs() {
		if !d.admit(key, child, len(d.pools), "pool") {
			continue
		}
		p := Pool{Name: key.Value}
		child.fields(append([]field{
			{"resource", p.readResource},
			{"slots", readInteger(&p.Slots, 1, maxSlots)},
			{"linger", readWait(&p.Linger, time.Second, maxLinger)},
			{"cards", p.Cards.read},
		}, p.nodeFields()...)...)
		d.pools = append(d.pools, p)
	}
}

// allPools returns the pools of the files and the default pool, sorted by name.
func (d *draft) allPools() []Pool {
	all := slices.Clone(d.pools)
	if !slices.ContainsFunc(all, isDefaultPool) {
		all = append(all, Pool{Name: DefaultPool})
	}
	slices.SortFunc(all, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func isDefaultPool(p Pool) bool { return p.Name == DefaultPool }

var (
	// An extended resource of Kubernetes has a domain as its prefix.
	kubernetesResource = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	kubernetesLabel    = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	kubernetesValue    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

const maxResource = 253 // characters

func (p *Pool) readResource(v value) {
	if text, ok := v.shaped(kubernetesResource, maxResource, "is not a resource of Kubernetes; write it like nvidia.com/gpu"); ok {
		p.Resource = text
	}
}

// shaped reads a text that must match an expression.
func (v value) shaped(shape *regexp.Regexp, most int, wrong string) (string, bool) {
	text, ok := v.text()
	if ok && (len(text) > most || !shape.MatchString(text)) {
		v.problem("%s %s", show(text), wrong)
		return "", false
	}
	return text, ok
}

func (c *Cards) read(v value) {
	given := v.presentFields(
		field{"label", func(v value) {
			if text, ok := v.shaped(kubernetesLabel, maxResource, "is not a label of nodes; write it like nvidia.com/gpu.product"); ok {
				c.Label = text
			}
		}},
		field{"newestFirst", c.readOrder},
	)
	v.require(v.node, given, "label", "name the label of nodes with the model of their cards, such as nvidia.com/gpu.product")
	v.require(v.node, given, "newestFirst", "list the label's values, the newest card first")
}

func (c *Cards) readOrder(v value) {
	items := v.items()
	if len(items) > maxCards {
		v.problem("has more than %d cards", maxCards)
		return
	}
	for _, item := range items {
		text, ok := item.shaped(kubernetesValue, maxKubernetes, "is not a value that a label of nodes can have")
		switch {
		case !ok:
		case slices.Contains(c.NewestFirst, text):
			item.problem("%s appears twice; keep one", show(text))
		default:
			c.NewestFirst = append(c.NewestFirst, text)
		}
	}
}

// The words and bounds below are Kubernetes' own. So if the config is accepted, the API server
// accepts the pods too.

const (
	maxNodeLabels  = 50
	maxTolerations = 50
)

// kubernetesName matches the names of most kinds of Kubernetes objects.
var kubernetesName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// readObject reads the name of a Kubernetes object; the argument what is the kind for the
// message.
func readObject(to *string, what string, most int) func(value) {
	return func(v value) {
		if text, ok := v.shaped(kubernetesName, most, "is not a name of a "+what+", which has a-z, 0-9 and, inside, '-' and '.'"); ok {
			*to = text
		}
	}
}

// nodeFields are the fields of a pool about the nodes of a cluster.
func (p *Pool) nodeFields() []field {
	return []field{
		{"nodes", p.readNodes},
		{"tolerations", p.readTolerations},
		{"priorityClass", readObject(&p.PriorityClass, "PriorityClass", maxResource)},
		{"queue", readObject(&p.Queue, "queue of Kueue", maxKubernetes)}, // it becomes a label's value
		{"runtimeClass", readObject(&p.RuntimeClass, "RuntimeClass", maxResource)},
	}
}

// readNodes reads labels and their values. The label of a node's role has an empty value.
func (p *Pool) readNodes(v value) {
	for key, child := range v.pairs() {
		if len(p.Nodes) == maxNodeLabels {
			child.problemAt(key, "is one label more than %d", maxNodeLabels)
			return
		}
		if len(key.Value) > maxResource || !kubernetesLabel.MatchString(key.Value) {
			child.problemAt(key, "%s is not a label of nodes; write it like nvidia.com/gpu.product", show(key.Value))
			continue
		}
		if text, ok := child.labelValue("is not a value that a label of nodes can have"); ok {
			put(&p.Nodes, key.Value, text)
		}
	}
}

// labelValue reads a label's value, which may be empty.
func (v value) labelValue(wrong string) (string, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" && v.node.Value == "" {
		return "", true
	}
	return v.shaped(kubernetesValue, maxKubernetes, wrong)
}

// The operators of a toleration.
const (
	tolerateEqual  = "Equal" // the default, as in Kubernetes
	tolerateExists = "Exists"
)

func (p *Pool) readTolerations(v value) {
	items := v.items()
	if len(items) > maxTolerations {
		v.problem("has more than %d tolerations", maxTolerations)
		return
	}
	for _, item := range items {
		t, wrong := Toleration{Operator: tolerateEqual}, v.to.count()
		given := item.presentFields(
			field{"key", func(v value) {
				if text, ok := v.shaped(kubernetesLabel, maxResource, "is not a key of a taint; write it like nvidia.com/gpu"); ok {
					t.Key = text
				}
			}},
			field{"operator", readOneOf(&t.Operator, tolerateEqual, tolerateExists)},
			field{"value", func(v value) { t.Value, _ = v.labelValue("is not a value of a taint") }},
			field{"effect", readOneOf(&t.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")},
		)
		t.check(item, given)
		if v.to.count() == wrong && slices.Contains(p.Tolerations, t) {
			item.problem("appears twice; keep one")
		}
		p.Tolerations = append(p.Tolerations, t)
	}
}

func (t Toleration) check(v value, given map[string]bool) {
	switch {
	case t.Operator == tolerateExists && given["value"]:
		v.valueOf("value").problem("goes with operator: %s; %s takes every value", tolerateEqual, tolerateExists)
	case t.Operator == tolerateEqual:
		v.require(v.node, given, "key", "name the taint's, or write operator: "+tolerateExists+" for every taint")
	}
}

// readOneOf reads one of several words.
func readOneOf(to *string, words ...string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(words...); ok {
			*to = word
		}
	}
}

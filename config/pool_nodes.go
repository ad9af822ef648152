package config

import (
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// What stands here is Kubernetes' own, in its words and bounds, so that a file
// which is read is one whose pods the API server takes.

const (
	maxNodeLabels  = 50
	maxTolerations = 50
)

// kubernetesName is what most objects of Kubernetes can be called.
var kubernetesName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// readObject reads the name of an object of Kubernetes; what says of which.
func readObject(to *string, what string, most int) func(value) {
	return func(v value) {
		if text, ok := v.shaped(kubernetesName, most, "is no name of a "+what+", which has a-z, 0-9 and, inside, '-' and '.'"); ok {
			*to = text
		}
	}
}

// nodeFields are what a pool says of the nodes of a cluster.
func (p *Pool) nodeFields() []field {
	return []field{
		{"nodes", p.readNodes},
		{"tolerations", p.readTolerations},
		{"priorityClass", readObject(&p.PriorityClass, "PriorityClass", maxResource)},
		{"queue", readObject(&p.Queue, "queue of Kueue", maxKubernetes)}, // it becomes a label's value
		{"runtimeClass", readObject(&p.RuntimeClass, "RuntimeClass", maxResource)},
	}
}

// readNodes reads labels with their values, of which a role of nodes has none.
func (p *Pool) readNodes(v value) {
	for key, child := range v.pairs() {
		if len(p.Nodes) == maxNodeLabels {
			child.problemAt(key, "is one label more than %d", maxNodeLabels)
			return
		}
		if len(key.Value) > maxResource || !kubernetesLabel.MatchString(key.Value) {
			child.problemAt(key, "%s is no label of nodes; write it like nvidia.com/gpu.product", show(key.Value))
			continue
		}
		if text, ok := child.labelValue("is no value that a label of nodes can have"); ok {
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

// The words of a toleration.
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
		given := item.given(
			field{"key", func(v value) {
				if text, ok := v.shaped(kubernetesLabel, maxResource, "is no key of a taint; write it like nvidia.com/gpu"); ok {
					t.Key = text
				}
			}},
			field{"operator", readOneOf(&t.Operator, tolerateEqual, tolerateExists)},
			field{"value", func(v value) { t.Value, _ = v.labelValue("is no value of a taint") }},
			field{"effect", readOneOf(&t.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")},
		)
		t.check(item, given)
		if v.to.count() == wrong && slices.Contains(p.Tolerations, t) {
			item.problem("stands twice; keep one")
		}
		p.Tolerations = append(p.Tolerations, t)
	}
}

func (t Toleration) check(v value, given map[string]bool) {
	switch {
	case t.Operator == tolerateExists && given["value"]:
		v.at1("value").problem("goes with operator: %s; %s takes every value", tolerateEqual, tolerateExists)
	case t.Operator == tolerateEqual:
		v.require(v.node, given, "key", "name the taint's, or write operator: "+tolerateExists+" for every taint")
	}
}

// readOneOf reads one of some words.
func readOneOf(to *string, words ...string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(words...); ok {
			*to = word
		}
	}
}

package config

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

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

// allPools are those of the files and the one that every config has, by name.
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
	// A resource of Kubernetes that is not its own has a domain before it.
	kubernetesResource = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	kubernetesLabel    = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	kubernetesValue    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

const maxResource = 253 // letters

func (p *Pool) readResource(v value) {
	if text, ok := v.shaped(kubernetesResource, maxResource, "is no resource of Kubernetes; write it like nvidia.com/gpu"); ok {
		p.Resource = text
	}
}

// shaped reads a text of a shape.
func (v value) shaped(shape *regexp.Regexp, most int, wrong string) (string, bool) {
	text, ok := v.text()
	if ok && (len(text) > most || !shape.MatchString(text)) {
		v.problem("%s %s", show(text), wrong)
		return "", false
	}
	return text, ok
}

func (c *Cards) read(v value) {
	given := v.given(
		field{"label", func(v value) {
			if text, ok := v.shaped(kubernetesLabel, maxResource, "is no label of nodes; write it like nvidia.com/gpu.product"); ok {
				c.Label = text
			}
		}},
		field{"newestFirst", c.readOrder},
	)
	v.require(v.node, given, "label", "name the label of nodes that tells their cards, such as nvidia.com/gpu.product")
	v.require(v.node, given, "newestFirst", "list the label's values, the newest card first")
}

func (c *Cards) readOrder(v value) {
	items := v.items()
	if len(items) > maxCards {
		v.problem("has more than %d cards", maxCards)
		return
	}
	for _, item := range items {
		text, ok := item.shaped(kubernetesValue, maxKubernetes, "is no value that a label of nodes can have")
		switch {
		case !ok:
		case slices.Contains(c.NewestFirst, text):
			item.problem("%s stands twice; keep one", show(text))
		default:
			c.NewestFirst = append(c.NewestFirst, text)
		}
	}
}

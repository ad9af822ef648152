package config

import (
	"slices"
	"time"
)

// DefaultPool is the pool of recipes that name none. Every config has it.
const DefaultPool = "default"

// Pool is a kind of hardware.
type Pool struct {
	Name     string
	Resource string        // of a GPU, such as nvidia.com/gpu
	Slots    int           // attempts at once; 0 is as many as the machine has processors
	Linger   time.Duration // how long an idle pod stays
	Cards    Cards

	// What a cluster has to say of it; a laptop has no use for these.
	Nodes         map[string]string // labels that its nodes bear
	Tolerations   []Toleration      // of the taints that keep others off its nodes
	PriorityClass string
	Queue         string // of Kueue; empty is none
	RuntimeClass  string // such as nvidia
}

// Toleration is a taint of nodes that a pool's pods bear, as Kubernetes writes it.
type Toleration struct{ Key, Operator, Value, Effect string }

// Cards tell new hardware from old.
type Cards struct {
	Label       string // of nodes
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

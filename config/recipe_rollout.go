package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Rollout says how a change of a recipe reaches its keys.
type Rollout struct {
	Keys []float64     // shares of the keys that take part, in rising order; the last is 1
	Hold time.Duration // least time of each share
	Stop []string      // CEL over the figures of the fleet; if a clause is true, the keys are rolled back
}

const (
	defaultStepHold = 24 * time.Hour
	maxStepHold     = 90 * 24 * time.Hour
	maxShares       = 20
)

// The defaults of a rollout.
var (
	defaultShares = []float64{0.01, 0.1, 1}
	defaultStop   = []string{"fleet.worse > 0.02", "fleet.failed > 0.2"}
)

func (d *draft) readRollout(v value) *Rollout {
	r := &Rollout{Keys: slices.Clone(defaultShares), Hold: defaultStepHold, Stop: slices.Clone(defaultStop)}
	v.fields(
		field{"keys", func(v value) { r.Keys = readShares(v) }},
		field{"hold", readWait(&r.Hold, 0, maxStepHold)},
		field{"stop", func(v value) { r.Stop = d.readStop(v) }},
	)
	return r
}

// readShares reads rising percentages whose last is 100%.
func readShares(v value) (all []float64) {
	items := v.items()
	if len(items) > maxShares {
		v.problem("has more than %d shares", maxShares)
		return nil
	}
	for _, item := range items {
		text, ok := item.text()
		if !ok {
			continue
		}
		share, err := parseShare(text)
		switch {
		case err != nil:
			item.problem("%s", err)
		case len(all) > 0 && share <= all[len(all)-1]:
			item.problem("%s is not more than the share before it; write rising shares, such as [1%%, 10%%, 100%%]", show(text))
		default:
			all = append(all, share)
		}
	}
	if n := len(all); v.node.Kind == yaml.SequenceNode && len(all) == len(items) && (n == 0 || all[n-1] != 1) {
		v.problem("must end with 100%%, such as [1%%, 10%%, 100%%], because a rollout ends with all keys")
	}
	return all
}

// parseShare reads a percentage such as 0.5%.
func parseShare(text string) (float64, error) {
	number, found := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(percent > 0 && percent <= 100) {
		return 0, fmt.Errorf("%s is not a share; write a percentage above 0%% and up to 100%%, such as 1%%", show(text))
	}
	return percent / 100, nil
}

// readStop reads one clause or a list.
func (d *draft) readStop(v value) []string {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = v.items()
	}
	return d.readClauses(v, items, &stopClauses)
}

// checkRollout requires a recipe with keys that makes models.
func (r *Recipe) checkRollout(v value) {
	at := v.valueOf("rollout")
	switch {
	case r.Rollout == nil || at.node == nil:
	case r.Key == KeyNone:
		at.problem("brings a change to the keys step by step, and the recipe has none (key: none); remove the key")
	case v.valueOf("makes").valueOf("model").node == nil:
		at.problem("is for a recipe that makes a model; write makes: {model: \"%s/{key}\"}, or remove the key", r.Name)
	}
}

// Way is the part of a recipe that a rollout brings to its keys step by step: what runs, and on which inputs. The
// other keys of a recipe, such as its pool, deadline and gate, apply to all of its runs at once. The hash of a way
// must not change with the version of Tidemill, so a new field is omitted when empty.
type Way struct {
	Image   string            `json:"image,omitempty"`
	Dir     string            `json:"dir,omitempty"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	GPUs    int               `json:"gpus,omitempty"`
	Workers int               `json:"workers,omitempty"`
	Servers *tidemill.Servers `json:"servers,omitempty"`
	User    *int64            `json:"user,omitempty"`
	Volumes []tidemill.Volume `json:"volumes,omitempty"`
	Inputs  []hashedInput     `json:"inputs,omitempty"`
}

// Way returns the way in which a recipe makes its models, and names it by its hash. Its MAC is empty.
func (r *Recipe) Way() tidemill.Way {
	j := &r.Run
	w := Way{Image: j.Image, Dir: j.Dir, Command: j.Command, Env: j.Env, Secrets: j.Secrets, GPUs: j.GPUs,
		Workers: j.Workers, Servers: j.Servers, User: j.Inside.User, Volumes: j.Inside.Volumes}
	for _, in := range r.Inputs {
		w.Inputs = append(w.Inputs, hashedInput(in))
	}
	made, _ := json.Marshal(w) // texts and numbers cannot fail
	return tidemill.Way{Hash: tidemill.ID("way", r.Name, string(made)), Made: made}
}

// In returns the recipe with another way.
func (r Recipe) In(w tidemill.Way) (Recipe, error) {
	var way Way
	if err := json.Unmarshal(w.Made, &way); err != nil {
		return r, fmt.Errorf("read the way of recipe %s before its rollout: %w", r.Name, err)
	}
	j := &r.Run
	j.Image, j.Dir, j.Command, j.Env, j.Secrets, j.GPUs = way.Image, way.Dir, way.Command, way.Env, way.Secrets, way.GPUs
	j.Workers, j.Servers, j.Inside.User, j.Inside.Volumes, r.Inputs = way.Workers, way.Servers, way.User, way.Volumes, nil
	for _, in := range way.Inputs {
		r.Inputs = append(r.Inputs, InputFrom(in))
	}
	return r, nil
}

type hashedRollout struct {
	Keys []float64 `json:"keys"`
	Hold string    `json:"hold"`
	Stop []string  `json:"stop"`
}

func (r *Rollout) hashed() *hashedRollout {
	if r == nil {
		return nil
	}
	return &hashedRollout{r.Keys, showSpan(r.Hold), r.Stop}
}

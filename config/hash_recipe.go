package config

import (
	"time"

	"tidemill.dev"
)

type hashedPool struct {
	Name     string   `json:"name"`
	Resource string   `json:"resource,omitempty"`
	Slots    int      `json:"slots,omitempty"`
	Linger   string   `json:"linger,omitempty"`
	Label    string   `json:"label,omitempty"`
	Cards    []string `json:"cards,omitempty"`
}

type hashedRecipe struct {
	Name       string             `json:"name"`
	Team       string             `json:"team,omitempty"`
	Key        string             `json:"key"`
	When       []hashedRecipeWhen `json:"when,omitempty"`
	Inputs     []hashedInput      `json:"inputs,omitempty"`
	Run        hashedJob          `json:"run"`
	Model      string             `json:"model,omitempty"`
	Dataset    string             `json:"dataset,omitempty"`
	Branch     string             `json:"branch,omitempty"`
	Gate       []string           `json:"gate,omitempty"`
	GateOn     string             `json:"gateOn,omitempty"`  // empty is the default
	Promote    string             `json:"promote,omitempty"` // as well
	MaxRunning int                `json:"maxRunning,omitempty"`
	Keep       int                `json:"keep"`
}

type hashedRecipeWhen struct {
	hashedWhen
	Schedule string `json:"schedule,omitempty"`
	Each     bool   `json:"each,omitempty"`
	Spread   string `json:"spread,omitempty"`
	Debounce string `json:"debounce,omitempty"`
	MaxWait  string `json:"maxWait,omitempty"`
	Priority int    `json:"priority,omitempty"`
}

type hashedInput struct {
	Name    string   `json:"name"`
	Dataset string   `json:"dataset,omitempty"`
	Branch  string   `json:"branch,omitempty"`
	AtCause bool     `json:"atCause,omitempty"`
	URI     string   `json:"uri,omitempty"`
	Allow   []string `json:"allow,omitempty"`
}

type hashedJob struct {
	Image     string            `json:"image,omitempty"`
	Dir       string            `json:"dir,omitempty"`
	Command   []string          `json:"command,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Secrets   map[string]string `json:"secrets,omitempty"`
	CPU       float64           `json:"cpu,omitempty"`
	Memory    int64             `json:"memory,omitempty"`
	GPUs      int               `json:"gpus,omitempty"`
	Pool      string            `json:"pool"`
	Priority  int               `json:"priority,omitempty"`
	Deadline  string            `json:"deadline"`
	Grace     string            `json:"grace"`
	Attempts  int               `json:"attempts"`
	First     string            `json:"first"`
	Cap       string            `json:"cap"`
	MaxOutput int64             `json:"maxOutput"`
	MaxLog    int64             `json:"maxLog"`
}

// isDefault finds the pool that every config has, where nobody has changed it.
func (p Pool) isDefault() bool {
	return p.Name == DefaultPool && p.Resource == "" && p.Slots == 0 && p.Linger == 0 && p.Cards.Label == ""
}

func (p Pool) hashed() hashedPool {
	return hashedPool{p.Name, p.Resource, p.Slots, showWait(p.Linger), p.Cards.Label, p.Cards.NewestFirst}
}

func (r Recipe) hashed() hashedRecipe {
	h := hashedRecipe{Name: r.Name, Team: r.Team, Key: r.Key, Run: r.Run.hashed(), Model: r.Makes.Model, Dataset: r.Makes.Dataset,
		Branch: r.Makes.Branch, Gate: r.Gate, MaxRunning: r.MaxRunning, Keep: r.Keep}
	if r.GateOn == tidemill.GateOnRecorded {
		h.GateOn = gateOnRecorded
	}
	if r.Promote == tidemill.PromoteManual {
		h.Promote = string(r.Promote)
	}
	for _, w := range r.When { // in their order, which decides between equals
		h.When = append(h.When, hashedRecipeWhen{hashedWhen(w.When), w.Schedule, w.Each, showWait(w.Spread),
			showWait(w.Debounce), showWait(w.MaxWait), w.Priority})
	}
	for _, in := range r.Inputs {
		h.Inputs = append(h.Inputs, hashedInput(in))
	}
	return h
}

func (j Job) hashed() hashedJob {
	return hashedJob{j.Image, j.Dir, j.Command, j.Env, j.Secrets, j.CPU, j.Memory, j.GPUs, j.Pool, j.Priority,
		showSpan(j.Deadline), showSpan(j.Grace), j.Attempts, showSpan(j.Backoff.First), showSpan(j.Backoff.Cap), j.MaxOutput, j.MaxLog}
}

// showWait is empty for no time at all.
func showWait(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return showSpan(d)
}

package config

import (
	"reflect"
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

	Nodes         map[string]string  `json:"nodes,omitempty"`
	Tolerations   []hashedToleration `json:"tolerations,omitempty"`
	PriorityClass string             `json:"priorityClass,omitempty"`
	Queue         string             `json:"queue,omitempty"`
	RuntimeClass  string             `json:"runtimeClass,omitempty"`
}

type hashedToleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
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

	Workers     int            `json:"workers,omitempty"` // what one is, is none
	Servers     *hashedServers `json:"servers,omitempty"`
	User        *int64         `json:"user,omitempty"`
	PullSecrets []string       `json:"pullSecrets,omitempty"`
	Shm         int64          `json:"shm,omitempty"`
	Volumes     []hashedVolume `json:"volumes,omitempty"`
}

type hashedServers struct {
	Count   int      `json:"count"`
	Command []string `json:"command,omitempty"`
	CPU     float64  `json:"cpu,omitempty"`
	Memory  int64    `json:"memory,omitempty"`
}

type hashedVolume struct {
	Claim    string `json:"claim,omitempty"`
	Secret   string `json:"secret,omitempty"`
	Config   string `json:"config,omitempty"`
	At       string `json:"at"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// isDefault finds the pool that every config has, where nobody has changed it.
func (p Pool) isDefault() bool { return reflect.DeepEqual(p, Pool{Name: DefaultPool}) }

func (p Pool) hashed() hashedPool {
	h := hashedPool{Name: p.Name, Resource: p.Resource, Slots: p.Slots, Linger: showWait(p.Linger), Label: p.Cards.Label, Cards: p.Cards.NewestFirst,
		Nodes: p.Nodes, PriorityClass: p.PriorityClass, Queue: p.Queue, RuntimeClass: p.RuntimeClass}
	for _, t := range p.Tolerations {
		h.Tolerations = append(h.Tolerations, hashedToleration(t))
	}
	return h
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
	h := hashedJob{Image: j.Image, Dir: j.Dir, Command: j.Command, Env: j.Env, Secrets: j.Secrets, CPU: j.CPU, Memory: j.Memory, GPUs: j.GPUs,
		Pool: j.Pool, Priority: j.Priority, Deadline: showSpan(j.Deadline), Grace: showSpan(j.Grace), Attempts: j.Attempts,
		First: showSpan(j.Backoff.First), Cap: showSpan(j.Backoff.Cap), MaxOutput: j.MaxOutput, MaxLog: j.MaxLog,
		Workers: j.Workers, User: j.Inside.User, PullSecrets: j.Inside.PullSecrets, Shm: j.Inside.Shm}
	if j.Servers != nil {
		h.Servers = new(hashedServers(*j.Servers))
	}
	for _, v := range j.Inside.Volumes {
		h.Volumes = append(h.Volumes, hashedVolume(v))
	}
	return h
}

// showWait is empty for no time at all.
func showWait(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return showSpan(d)
}

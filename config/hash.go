package config

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// hashed is the input of a hash. Its JSON names are part of the hash, so they stay when the
// fields of Config are renamed. A new name must be omitted when empty, so that a config that
// does not use it keeps its hash.
type hashed struct {
	Name      string           `json:"name"`
	Streams   []hashedStream   `json:"streams"`
	Triggers  []hashedTrigger  `json:"triggers,omitempty"`
	Schedules []hashedSchedule `json:"schedules,omitempty"`
	Pools     []hashedPool     `json:"pools,omitempty"`
	Recipes   []hashedRecipe   `json:"recipes,omitempty"`
	Scorers   []hashedScorer   `json:"scorers,omitempty"`
	Engine    string           `json:"engine,omitempty"` // empty means the default
}

type hashedStream struct {
	Name       string   `json:"name"`
	Partitions int      `json:"partitions"`
	Retention  string   `json:"retention"`
	Types      []string `json:"types,omitempty"`
	KeyOrdered bool     `json:"keyOrdered"`
	Dedupe     string   `json:"dedupe,omitempty"` // empty means the default
}

type hashedTrigger struct {
	Name     string         `json:"name"`
	When     []hashedWhen   `json:"when"`
	To       hashedTarget   `json:"to"`
	Delivery hashedDelivery `json:"delivery"`
}

type hashedWhen struct {
	Stream string   `json:"stream,omitempty"`
	Types  []string `json:"types,omitempty"`
	Where  string   `json:"where,omitempty"`
}

type hashedTarget struct {
	URL        string `json:"url,omitempty"`
	Service    string `json:"service,omitempty"`
	Function   string `json:"function,omitempty"`
	BearerFile string `json:"bearerFile,omitempty"`
	BasicFile  string `json:"basicFile,omitempty"`
	Header     string `json:"header,omitempty"`
	HeaderFile string `json:"headerFile,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
}

type hashedDelivery struct {
	Attempts    int    `json:"attempts"`
	Backoff     string `json:"backoff"`
	First       string `json:"first"`
	Cap         string `json:"cap"`
	Jitter      bool   `json:"jitter"`
	Timeout     string `json:"timeout"`
	KeyOrdered  bool   `json:"keyOrdered"`
	Concurrency int    `json:"concurrency"`
	Rate        string `json:"rate,omitempty"` // attempts per second
	Replies     bool   `json:"replies"`

	ReplyTypes  []string `json:"replyTypes,omitempty"`
	ReplyAnyKey bool     `json:"replyAnyKey,omitempty"`
}

type hashedSchedule struct {
	Name     string   `json:"name"`
	Cron     string   `json:"cron"`
	TimeZone string   `json:"timeZone"`
	Missed   string   `json:"missed"`
	Keys     []string `json:"keys,omitempty"`
	Each     bool     `json:"each,omitempty"`
	Spread   string   `json:"spread,omitempty"`
}

// Hash names the config by its meaning: two files with the same meaning have the same hash,
// whatever their layout. Every fact contains the hash of the config that applied to it.
func (c *Config) Hash() string {
	h := hashed{Name: c.Name}
	if c.Engine != engineAuto {
		h.Engine = c.Engine
	}
	for _, s := range c.Streams {
		if isLater(s) {
			continue
		}
		h.Streams = append(h.Streams, hashedStream{s.Name, s.Partitions, showRetention(s.Retention), s.Types, s.KeyOrdered, hashedDedupe(s)})
	}
	for _, t := range c.Triggers {
		if !t.Builtin { // a built-in trigger follows from its recipe, which is hashed
			h.Triggers = append(h.Triggers, t.hashed())
		}
	}
	for _, s := range c.Schedules {
		h.Schedules = append(h.Schedules, s.hashed())
	}
	for _, p := range c.Pools {
		if !p.isDefault() {
			h.Pools = append(h.Pools, p.hashed())
		}
	}
	for _, r := range c.Recipes {
		h.Recipes = append(h.Recipes, r.hashed())
	}
	for _, s := range c.Scorers {
		from, _ := c.Stream(s.From)
		h.Scorers = append(h.Scorers, s.hashed(from.Partitions))
	}
	text, _ := json.Marshal(h) // strings, numbers and booleans cannot fail
	return tidemill.ID("config", string(text))
}

// Revision differs if a running process has to apply a config. It is the hash, and the triggers whose
// ignored replies are reported. No fact has it, so a later version may add to it.
func (c *Config) Revision() string {
	text := c.Hash()
	for _, t := range c.Triggers {
		if t.Delivery.Replies.Unsaid {
			text += " " + t.Name
		}
	}
	return text
}

// isLater reports whether a stream is one of the built-in streams that are younger than the
// first configs, and is unchanged. A config that does not change them keeps its hash.
func isLater(s Stream) bool {
	later := s.Name == tidemill.StreamCommands || s.Name == tidemill.StreamClock || s.Name == tidemill.StreamGroupOffsets || s.Name == tidemill.StreamOutcomes
	return later && slices.ContainsFunc(builtins(), func(b Stream) bool {
		return b.Name == s.Name && b.Partitions == s.Partitions && b.Retention == s.Retention
	})
}

func (t Trigger) hashed() hashedTrigger {
	c, y := t.To.Credentials, t.Delivery
	h := hashedTrigger{
		Name: t.Name,
		To: hashedTarget{t.To.URL, t.To.Service, t.To.Function, c.BearerFile, c.BasicFile,
			c.Header, c.HeaderFile, c.CAFile, c.CertFile, c.KeyFile},
		Delivery: hashedDelivery{y.Attempts, string(y.Backoff.Kind), showSpan(y.Backoff.First), showSpan(y.Backoff.Cap), y.Backoff.Jitter,
			showSpan(y.Timeout), y.Ordered, y.Concurrency, showRate(y.Rate), y.Replies.Accept, y.Replies.Types, y.Replies.AnyKey},
	}
	for _, w := range t.When {
		h.When = append(h.When, hashedWhen(w))
	}
	slices.SortFunc(h.When, compareFilters) // the order does not change which events match
	return h
}

func compareFilters(a, b hashedWhen) int {
	return cmp.Or(strings.Compare(a.Stream, b.Stream), slices.Compare(a.Types, b.Types), strings.Compare(a.Where, b.Where))
}

func showRate(rate float64) string {
	if rate == 0 {
		return ""
	}
	return strconv.FormatFloat(rate, 'g', -1, 64)
}

func (s Schedule) hashed() hashedSchedule {
	return hashedSchedule{s.Name, s.Cron, s.TimeZone, string(s.Missed), s.Keys, s.Each, showWait(s.Spread)}
}

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
	Name       string               `json:"name"`
	Team       string               `json:"team,omitempty"`
	Key        string               `json:"key"`
	When       []hashedRecipeWhen   `json:"when,omitempty"`
	Inputs     []hashedInput        `json:"inputs,omitempty"`
	Run        hashedJob            `json:"run"`
	Model      string               `json:"model,omitempty"`
	Dataset    string               `json:"dataset,omitempty"`
	Branch     string               `json:"branch,omitempty"`
	Gate       []string             `json:"gate,omitempty"`
	GateOn     string               `json:"gateOn,omitempty"`  // empty means the default
	Promote    string               `json:"promote,omitempty"` // empty means the default
	Trial      *tidemill.TrialTerms `json:"trial,omitempty"`
	MaxRunning int                  `json:"maxRunning,omitempty"`
	Keep       int                  `json:"keep"`
	Rollout    *hashedRollout       `json:"rollout,omitempty"`
	Canary     *tidemill.Canary     `json:"canary,omitempty"`
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

	Outcomes string        `json:"outcomes,omitempty"`
	Last     time.Duration `json:"last,omitempty"`
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

	Workers     int            `json:"workers,omitempty"` // empty for one worker
	Servers     *hashedServers `json:"servers,omitempty"`
	User        *int64         `json:"user,omitempty"`
	PullSecrets []string       `json:"pullSecrets,omitempty"`
	Shm         int64          `json:"shm,omitempty"`
	Disk        int64          `json:"disk,omitempty"`
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

// isDefault reports whether this is the unchanged pool that every config has.
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
		Branch: r.Makes.Branch, Gate: r.Gate, Trial: r.Trial, MaxRunning: r.MaxRunning, Keep: r.Keep, Rollout: r.Rollout.hashed(), Canary: r.Canary}
	if r.GateOn == tidemill.GateOnRecorded {
		h.GateOn = gateOnRecorded
	}
	if r.Promote == tidemill.PromoteManual {
		h.Promote = string(r.Promote)
	}
	for _, w := range r.When { // kept in order, because the first wins among equals
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
		Workers: j.Workers, User: j.Inside.User, PullSecrets: j.Inside.PullSecrets, Shm: j.Inside.Shm, Disk: j.Inside.Disk}
	if j.Servers != nil {
		h.Servers = new(hashedServers(*j.Servers))
	}
	for _, v := range j.Inside.Volumes {
		h.Volumes = append(h.Volumes, hashedVolume(v))
	}
	return h
}

// showWait returns an empty text for a zero duration.
func showWait(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return showSpan(d)
}

type hashedScorer struct {
	Name        string            `json:"name"`
	From        string            `json:"from"`
	To          string            `json:"to"`
	Types       []string          `json:"types,omitempty"`
	Key         string            `json:"key"`
	Model       string            `json:"model"`
	Map         map[string]string `json:"map,omitempty"`
	Defaults    map[string]string `json:"defaults,omitempty"`
	NoModel     string            `json:"noModel"`
	Instead     string            `json:"instead,omitempty"`
	AtLeastOnce bool              `json:"atLeastOnce,omitempty"`
	Latest      bool              `json:"latest,omitempty"`
	Hold        string            `json:"hold"`
	MaxBatch    int               `json:"maxBatch"`
	Engine      string            `json:"engine,omitempty"` // empty means the default
	Top         int               `json:"top,omitempty"`
	Replicas    *hashedReplicas   `json:"replicas,omitempty"` // nil means the default
	Labels      *hashedLabels     `json:"labels,omitempty"`
	Drift       *hashedDrift      `json:"drift,omitempty"`
}

type hashedReplicas struct {
	Min  int    `json:"min,omitempty"`
	Max  int    `json:"max"`
	Lag  int64  `json:"lag"`
	Idle string `json:"idle"`
}

// hashed returns the hash's input for a scorer whose stream has this many partitions.
func (s Scorer) hashed(partitions int) hashedScorer {
	h := hashedScorer{Name: s.Name, From: s.From, To: s.To, Types: s.Types, Key: s.Key, Model: s.Model,
		NoModel: string(s.NoModel.Action), Instead: s.NoModel.Model, AtLeastOnce: s.AtLeastOnce, Latest: s.Latest,
		Hold: showSpan(s.Hold), MaxBatch: s.MaxBatch, Top: s.Top, Labels: s.Labels.hashed(), Drift: s.Drift.hashed()}
	if s.Engine != engineAuto {
		h.Engine = s.Engine
	}
	if r := s.Replicas; r != defaultReplicas(partitions) {
		h.Replicas = &hashedReplicas{r.Min, r.Max, r.Lag, showSpan(r.Idle)}
	}
	if len(s.Map) > 0 {
		h.Map = make(map[string]string, len(s.Map))
		for _, m := range s.Map {
			h.Map[m.Input] = m.Path
			if m.Default != "" {
				put(&h.Defaults, m.Input, m.Default)
			}
		}
	}
	return h
}

package config

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
)

// hashed is what a hash covers. The names in it are part of the hash and stay
// when the fields of Config are renamed; new ones must be omitted when empty,
// so that a config that does not use them keeps its hash.
type hashed struct {
	Name      string           `json:"name"`
	Streams   []hashedStream   `json:"streams"`
	Triggers  []hashedTrigger  `json:"triggers,omitempty"`
	Schedules []hashedSchedule `json:"schedules,omitempty"`
	Pools     []hashedPool     `json:"pools,omitempty"`
	Recipes   []hashedRecipe   `json:"recipes,omitempty"`
	Scorers   []hashedScorer   `json:"scorers,omitempty"`
}

type hashedStream struct {
	Name       string   `json:"name"`
	Partitions int      `json:"partitions"`
	Retention  string   `json:"retention"`
	Types      []string `json:"types,omitempty"`
	KeyOrdered bool     `json:"keyOrdered"`
	Dedupe     string   `json:"dedupe,omitempty"` // empty is the default
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
	Rate        string `json:"rate,omitempty"` // a second
	Replies     bool   `json:"replies"`
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

// Hash names the config by its meaning: two files that mean the same, whatever
// their layout, have one hash. Every fact names the config that applied by it.
func (c *Config) Hash() string {
	h := hashed{Name: c.Name}
	for _, s := range c.Streams {
		if isLater(s) {
			continue
		}
		h.Streams = append(h.Streams, hashedStream{s.Name, s.Partitions, showRetention(s.Retention), s.Types, s.KeyOrdered, hashedDedupe(s)})
	}
	for _, t := range c.Triggers {
		if !t.Builtin { // what they say, their recipes say
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

// isLater finds the built-in streams that came after the first configs, where
// nobody has changed them: a config without them keeps its hash.
func isLater(s Stream) bool {
	later := s.Name == tidemill.StreamActs || s.Name == tidemill.StreamClock
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
			showSpan(y.Timeout), y.Ordered, y.Concurrency, showRate(y.Rate), y.Replies},
	}
	for _, w := range t.When {
		h.When = append(h.When, hashedWhen(w))
	}
	slices.SortFunc(h.When, compareFilters) // in whatever order, the same events match
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

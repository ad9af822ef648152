package config

import (
	"slices"
	"time"

	"tidemill.dev"
)

// Recipe is how a model or a dataset is made of inputs.
type Recipe struct {
	Name       string
	Team       string
	Key        string       // where an event's key stands: subject, an attribute, data.PATH, or none; that of a schedule's tick is its subject
	When       []RecipeWhen // an event asks for a run if one of them matches; of several, the first with the shortest debounce counts
	Inputs     []InputFrom  // by name
	Run        Job
	Makes      Makes
	Gate       []string         // what a version has to pass, in CEL
	GateOn     tidemill.GateOn  // empty without a model
	Promote    tidemill.Promote // empty without a model
	MaxRunning int              // runs at once; 0 is no bound
	Keep       int              // versions, or commits of what it makes, that are not collected
}

// RecipeWhen is a filter over events that ask for a run.
type RecipeWhen struct {
	When                   // a schedule's is filled in
	Schedule string        // whose ticks ask; empty for other events
	Each     bool          // a tick without a key asks for every key that is known
	Spread   time.Duration // over which those are laid evenly
	Debounce time.Duration // how long it must be quiet before the run begins
	MaxWait  time.Duration // beyond which no further event puts it off
	Priority int           // added to the recipe's
}

// InputFrom says where an input comes from: either a dataset or a URI.
type InputFrom struct {
	Name    string
	Dataset string   // a template
	Branch  string   // whose head; main
	AtCause bool     // the commit that the newest cause names, and not the head
	URI     string   // a template over the newest cause
	Allow   []string // what the URI must begin with
}

// Job is what a run does.
type Job struct {
	Image, Dir string // one of them; a folder is as it stands in the file, relative to it
	Command    []string
	Env        map[string]string // values are templates
	Secrets    map[string]string // variable → name/key
	CPU        float64           // cores
	Memory     int64             // bytes; 0 is no bound
	GPUs       int
	Pool       string
	Priority   int
	Deadline   time.Duration // of one attempt
	Grace      time.Duration // between SIGTERM and SIGKILL
	Attempts   int
	Backoff    Backoff // exponential
	MaxOutput  int64   // bytes
	MaxLog     int64

	Workers int               // that work on one attempt together; 0 is one
	Servers *tidemill.Servers // of parameters; nil is none

	Inside tidemill.Inside // what a cluster has to know of the container
}

// Makes is what a recipe makes: a model, a commit on a dataset, or nothing that
// is kept.
type Makes struct {
	Model   string // a template
	Dataset string // a template
	Branch  string
}

// Recipe finds a recipe by its name.
func (c *Config) Recipe(name string) (Recipe, bool) {
	i := slices.IndexFunc(c.Recipes, func(r Recipe) bool { return r.Name == name })
	if i < 0 {
		return Recipe{}, false
	}
	return c.Recipes[i], true
}

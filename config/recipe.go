package config

import (
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Recipe says how a model or a dataset is made from inputs.
type Recipe struct {
	Name       string
	Team       string
	Key        string       // place of an event's key: subject, an attribute, data.PATH, or none; a schedule's tick has it in its subject
	When       []RecipeWhen // an event asks for a run if an entry matches; among several entries the first with the shortest debounce counts
	Inputs     []InputFrom  // sorted by name
	Run        Job
	Makes      Makes
	Gate       []string             // clauses in CEL that a version must pass
	GateOn     tidemill.GateOn      // empty if the recipe makes no model
	Promote    tidemill.Promote     // empty if the recipe makes no model
	Trial      *tidemill.TrialTerms // nil means that a version which passes its gate is promoted
	MaxRunning int                  // runs at once; 0 means no limit
	Keep       int                  // number of versions, or commits of the dataset, that are kept
	Rollout    *Rollout             // nil if a change of the recipe reaches all keys at once
	Canary     *tidemill.Canary     // nil if a version that passed its gate becomes the champion at once
}

// RecipeWhen is a filter for the events that ask for a run.
type RecipeWhen struct {
	When                   // filled in if the entry names a schedule
	Schedule string        // schedule whose ticks ask; empty for other events
	Each     bool          // a tick without a key asks for a run of every known key
	Spread   time.Duration // time over which these runs are distributed evenly
	Debounce time.Duration // quiet time before the run begins
	MaxWait  time.Duration // longest time for which further events can delay the run
	Priority int           // added to the recipe's priority
}

// InputFrom says where an input comes from: a dataset or a URI.
type InputFrom struct {
	Name    string
	Dataset string   // a template
	Branch  string   // branch whose newest commit is read; default main
	AtCause bool     // use the commit that the newest cause names, not the newest of the branch
	URI     string   // template over the newest cause
	Allow   []string // prefixes; the URI must begin with one of them

	Outcomes string        // scorer whose answers are read, together with their truth
	Last     time.Duration // age of the oldest outcome that is read
}

// Job describes the work of a run.
type Job struct {
	Image, Dir string // exactly one is set; Dir is written as in the file and is relative to it
	Command    []string
	Env        map[string]string // values are templates
	Secrets    map[string]string // variable → name/key
	CPU        float64           // cores
	Memory     int64             // bytes; 0 means no limit
	GPUs       int
	Pool       string
	Priority   int
	Deadline   time.Duration // limit for one attempt
	Grace      time.Duration // between SIGTERM and SIGKILL
	Attempts   int
	Backoff    Backoff // exponential
	MaxOutput  int64   // bytes
	MaxLog     int64

	Workers int               // workers of one attempt; 0 means one
	Servers *tidemill.Servers // parameter servers; nil if there are none

	Inside tidemill.Inside // settings of the container in a cluster
}

// Makes is the output of a recipe: a model, a commit on a dataset, or nothing that is kept.
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

const (
	// The words of Recipe.Key that are not the name of an attribute.
	KeySubject = "subject" // the default
	KeyNone    = "none"    // a recipe without keys
	// KeyData is the prefix of the path of a field in the event's data.
	KeyData = "data."

	defaultKeep   = 10
	maxKeep       = 10_000
	maxRunningAll = 100_000
)

func (d *draft) readRecipes(v value) {
	for key, child := range v.pairs() {
		if !d.admit(key, child, len(d.recipes), "recipe") {
			continue
		}
		d.recipes = append(d.recipes, d.readRecipe(key, child))
	}
}

func (d *draft) readRecipe(key *yaml.Node, v value) Recipe {
	r := Recipe{Name: key.Value, Key: KeySubject, Keep: defaultKeep, Run: defaultJob()}
	var whens []whenRead
	given := v.presentFields(append([]field{
		{"team", r.readTeam},
		{"key", r.readKey},
		{"when", func(v value) { whens = d.readRecipeWhens(v) }},
		{"inputs", func(v value) { r.Inputs = d.readInputs(v) }},
		{"run", func(v value) { d.readJob(v, &r.Run); d.place.checkRun(v) }},
		{"makes", r.Makes.read},
		{"maxRunning", readInteger(&r.MaxRunning, 1, maxRunningAll)},
		{"keep", readInteger(&r.Keep, 1, maxKeep)},
		{"canary", func(v value) { r.Canary = readCanary(v) }},
		{"rollout", func(v value) { r.Rollout = d.readRollout(v) }},
	}, d.judgeFields(&r)...)...)
	v.require(key, given, "run", "say what a run does, such as {dir: trainer, command: [python3, train.py]}")
	if v.node.Kind == yaml.MappingNode {
		r.checkTemplates(v)
		r.checkJudge(v, given)
		r.checkRollout(v)
	}
	for _, w := range whens {
		r.When = append(r.When, w.RecipeWhen)
		r.checkLoop(w)
	}
	d.later = append(d.later, func() { d.checkSchedules(r, whens) })
	if r.Trial != nil && r.Makes.Model != "" {
		d.later = append(d.later, func() { d.checkTrial(v.valueOf("trial"), &r) })
	}
	return r
}

func (r *Recipe) readTeam(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := tidemill.CheckLabel(text); err != nil {
		v.problem("%s is not a team's name, which %s", show(text), err)
		return
	}
	r.Team = text
}

var (
	// A CloudEvents attribute. Names longer than the specification advises are accepted too.
	attributeName = shaped(40, `^[a-z0-9]+$`)
	dataPath      = regexp.MustCompile(`^data(\.[^.\s{}]+)+$`)
)

func (r *Recipe) readKey(v value) { readKeyPlace(v, &r.Key) }

// readKeyPlace reads where in an event its key is.
func readKeyPlace(v value, to *string) {
	text, ok := v.text()
	switch {
	case !ok:
	case text+"." == KeyData:
		v.problem("names no field of the data; write a path such as data.bot.id")
	case len(text) > maxKey || !attributeName.fits(text) && !dataPath.MatchString(text):
		v.problem("%s is not a place of a key; write subject, an attribute such as shop, data.PATH such as data.bot.id, or none", show(text))
	default:
		*to = text
	}
}

// places returns the templates of a recipe, without those of URIs.
func (r *Recipe) places(v value) (all []value) {
	for key, child := range v.pairs() {
		switch key.Value {
		case "inputs":
			for _, input := range child.mappingValues() {
				all = append(all, input.valueOf("dataset"), input.valueOf("uri"), input)
			}
		case "makes":
			all = append(all, child.valueOf("model"), child.valueOf("dataset"))
		case "run":
			all = append(all, child.valueOf("env").mappingValues()...)
		}
	}
	return slices.DeleteFunc(all, func(v value) bool { return v.node == nil || v.node.Kind != yaml.ScalarNode })
}

// checkTemplates reports fields for which this recipe has no value.
func (r *Recipe) checkTemplates(v value) {
	for _, at := range r.places(v) {
		for _, f := range templateFields(at.node.Value) {
			switch {
			case f == "key" && r.Key == KeyNone:
				at.problem("names {key}, and the recipe has none (key: none)")
			case f == "team" && r.Team == "":
				at.problem("names {team}, and the recipe says no team; write one, or remove the field")
			}
		}
	}
}

// mappingValues returns the values of a mapping; none if the value is not a mapping, which has
// been reported.
func (v value) mappingValues() (all []value) {
	if v.node != nil && v.node.Kind == yaml.MappingNode {
		for _, child := range v.pairs() {
			all = append(all, child)
		}
	}
	return all
}

// valueOf returns the value of one key of a mapping. Its node is nil if the key is missing.
func (v value) valueOf(name string) value {
	if v.node != nil && v.node.Kind == yaml.MappingNode {
		for key, child := range v.pairs() {
			if key.Value == name {
				return child
			}
		}
	}
	v.node = nil
	return v
}

// read reads a model or a dataset; having both is a problem.
func (m *Makes) read(v value) {
	given := v.presentFields(
		field{"model", func(v value) { m.Model = readNameTemplate(v, "model") }},
		field{"dataset", func(v value) { m.Dataset = readNameTemplate(v, "dataset") }},
		field{"branch", func(v value) { m.Branch = readBranch(v) }},
	)
	switch {
	case given["model"] && given["dataset"]:
		v.problem("has a model and a dataset; a recipe makes one of them, keep one")
	case given["model"] && given["branch"]:
		v.child("branch", v.nodeAt("branch")).problem("is for a dataset, and models have no branches; remove the key")
	case !given["dataset"]:
		v.require(v.node, given, "model", "say what it makes, such as {model: \"intent/{key}\"} or {dataset: \"features/{key}\"}, or remove makes")
	case m.Branch == "":
		m.Branch = MainBranch
	}
}

// MainBranch is the default branch of a dataset.
const MainBranch = "main"

// sample is the value of every field when a template is checked.
const sample = "x"

// readNameTemplate reads a template for the name of a dataset or model.
func readNameTemplate(v value, what string) string { return readName(v, what, faultOf) }

// readName reads such a template. The function fault says what is wrong with a field.
func readName(v value, what string, fault func(field string) string) string {
	text, ok := v.template(fault)
	if !ok {
		return ""
	}
	name, err := Expand(text, func(string) (string, bool) { return sample, true })
	if err == nil {
		err = tidemill.CheckDataset(name)
	}
	if err != nil {
		v.problem("%s is not a %s's name, which %s", show(text), what, plain(err.Error()))
		return ""
	}
	return text
}

func readBranch(v value) string {
	text, ok := v.text()
	if !ok {
		return ""
	}
	if err := tidemill.CheckLabel(text); err != nil {
		v.problem("%s is not a branch's name, which %s", show(text), err)
		return ""
	}
	return text
}

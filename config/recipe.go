package config

import (
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

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

const (
	// The words of Recipe.Key that name no attribute.
	KeySubject = "subject" // the default
	KeyNone    = "none"    // a recipe without keys
	// KeyData begins the path of a field of the event's data.
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
	given := v.given(append([]field{
		{"team", r.readTeam},
		{"key", r.readKey},
		{"when", func(v value) { whens = d.readRecipeWhens(v) }},
		{"inputs", func(v value) { r.Inputs = readInputs(v) }},
		{"run", func(v value) { d.readJob(v, &r.Run); d.place.checkRun(v) }},
		{"makes", r.Makes.read},
		{"maxRunning", readInteger(&r.MaxRunning, 1, maxRunningAll)},
		{"keep", readInteger(&r.Keep, 1, maxKeep)},
	}, d.judgeFields(&r)...)...)
	v.require(key, given, "run", "say what a run does, such as {dir: trainer, command: [python3, train.py]}")
	if v.node.Kind == yaml.MappingNode {
		r.checkTemplates(v)
		r.checkJudge(v, given)
	}
	for _, w := range whens {
		r.When = append(r.When, w.RecipeWhen)
		r.checkLoop(w)
	}
	d.later = append(d.later, func() { d.checkSchedules(r, whens) })
	return r
}

func (r *Recipe) readTeam(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := tidemill.CheckLabel(text); err != nil {
		v.problem("%s is no team's name, which %s", show(text), err)
		return
	}
	r.Team = text
}

var (
	// A CloudEvents attribute; those longer than the specification advises are
	// taken too.
	attributeName = shaped(40, `^[a-z0-9]+$`)
	dataPath      = regexp.MustCompile(`^data(\.[^.\s{}]+)+$`)
)

func (r *Recipe) readKey(v value) { readKeyPlace(v, &r.Key) }

// readKeyPlace reads where an event's key stands.
func readKeyPlace(v value, to *string) {
	text, ok := v.text()
	switch {
	case !ok:
	case text+"." == KeyData:
		v.problem("names no field of the data; write a path such as data.bot.id")
	case len(text) > maxKey || !attributeName.fits(text) && !dataPath.MatchString(text):
		v.problem("%s is no place of a key; write subject, an attribute such as shop, data.PATH such as data.bot.id, or none", show(text))
	default:
		*to = text
	}
}

// places are where the templates of a recipe stand, besides those of URIs.
func (r *Recipe) places(v value) (all []value) {
	for key, child := range v.pairs() {
		switch key.Value {
		case "inputs":
			for _, input := range child.quiet() {
				all = append(all, input.at1("dataset"), input.at1("uri"), input)
			}
		case "makes":
			all = append(all, child.at1("model"), child.at1("dataset"))
		case "run":
			all = append(all, child.at1("env").quiet()...)
		}
	}
	return slices.DeleteFunc(all, func(v value) bool { return v.node == nil || v.node.Kind != yaml.ScalarNode })
}

// checkTemplates finds fields that this recipe has no value for.
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

// quiet are the values of a mapping; none if it is no mapping, which has been
// reported.
func (v value) quiet() (all []value) {
	if v.node != nil && v.node.Kind == yaml.MappingNode {
		for _, child := range v.pairs() {
			all = append(all, child)
		}
	}
	return all
}

// at1 is the value of one key of a mapping, without a node if there is none.
func (v value) at1(name string) value {
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

// Makes of a recipe is one of the two.
func (m *Makes) read(v value) {
	given := v.given(
		field{"model", func(v value) { m.Model = readNameTemplate(v, "model") }},
		field{"dataset", func(v value) { m.Dataset = readNameTemplate(v, "dataset") }},
		field{"branch", func(v value) { m.Branch = readBranch(v) }},
	)
	switch {
	case given["model"] && given["dataset"]:
		v.problem("has a model and a dataset; a recipe makes one of them, keep one")
	case given["model"] && given["branch"]:
		v.child("branch", v.at("branch")).problem("is for a dataset, and models have no branches; remove the key")
	case !given["dataset"]:
		v.require(v.node, given, "model", "say what it makes, such as {model: \"intent/{key}\"} or {dataset: \"features/{key}\"}, or remove makes")
	case m.Branch == "":
		m.Branch = MainBranch
	}
}

// MainBranch is the branch of a dataset that is meant where none is named.
const MainBranch = "main"

// sample stands for what a field will have, to see what a template makes of it.
const sample = "x"

// readNameTemplate reads a template of the name of a dataset or model.
func readNameTemplate(v value, what string) string { return readName(v, what, faultOf) }

// readName reads such a template, of the fields in which fault finds nothing
// wrong.
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
		v.problem("%s is no %s's name, which %s", show(text), what, plain(err.Error()))
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
		v.problem("%s is no branch's name, which %s", show(text), err)
		return ""
	}
	return text
}

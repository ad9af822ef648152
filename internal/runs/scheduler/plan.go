package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
)

// unfit is why a plan cannot be made, now or later: somebody has to change the
// config, the event or the data.
type unfit struct{ reason string }

// Error is for people.
func (u *unfit) Error() string { return u.reason }

func unfitf(format string, args ...any) error { return &unfit{fmt.Sprintf(format, args...)} }

// writer fills a recipe's templates in for one run.
type writer struct {
	recipe config.Recipe
	key    string
	cause  broker.View // the newest; empty if it cannot be read
	fault  error       // the first
}

func newWriter(r config.Recipe, run *tidemill.Run) *writer {
	w := &writer{recipe: r, key: run.Key}
	if broker.UnmarshalStructured(run.Event, &w.cause) != nil {
		w.cause = broker.View{}
	}
	return w
}

// value is what a field of a template stands for.
func (w *writer) value(field string) (string, bool) {
	switch field {
	case "key":
		return w.key, true
	case "recipe":
		return w.recipe.Name, true
	case "team":
		return w.recipe.Team, w.recipe.Team != ""
	}
	return Field(&w.cause, field)
}

// text fills a template in; what says what it is for.
func (w *writer) text(what, template string) string {
	text, err := config.Expand(template, w.value)
	if err != nil {
		w.fail("%s cannot be told: %v; the newest event that asked is %s from %s", what, err, w.cause.ID, w.cause.Source)
	}
	return text
}

// name fills in what has to be a dataset's or a model's name.
func (w *writer) name(what, template string) string {
	if template == "" {
		return ""
	}
	name := w.text(what, template)
	if err := tidemill.CheckDataset(name); err != nil && w.fault == nil {
		w.fail("%s would be %q, which %v; the key may be at fault", what, name, err)
	}
	return name
}

func (w *writer) fail(format string, args ...any) {
	if w.fault == nil {
		w.fault = unfitf(format, args...)
	}
}

// draft is what a run will do, but for what its datasets' branches hold: that
// is looked up afterwards. An error is *unfit.
func draft(r config.Recipe, run *tidemill.Run, dir string) (tidemill.Plan, error) {
	w, j := newWriter(r, run), r.Run
	p := tidemill.Plan{Team: r.Team, Image: j.Image, Dir: below(dir, j.Dir), Command: j.Command, Secrets: j.Secrets,
		CPU: j.CPU, Memory: j.Memory, GPUs: j.GPUs, Pool: j.Pool, Priority: j.Priority + run.Priority,
		Deadline: j.Deadline, Grace: j.Grace, Attempts: j.Attempts, Backoff: tidemill.Backoff{First: j.Backoff.First, Cap: j.Backoff.Cap},
		Env: w.env(), Inputs: w.inputs(),
		Model: w.name("the model that it makes", r.Makes.Model), Dataset: w.name("the dataset that it makes", r.Makes.Dataset),
		MaxOutput: j.MaxOutput, MaxLog: j.MaxLog, Workers: j.Workers, Servers: j.Servers, Inside: j.Inside}
	if p.Dataset != "" {
		p.Branch = either(r.Makes.Branch, config.MainBranch)
	}
	if p.Model != "" {
		judge := r.Judge() // the run keeps it, whatever the config says once it has ended
		p.Judge = &judge
	}
	return p, w.fault
}

// below is a folder of the config's, which says where it lies from where the
// config lies.
func below(dir, sub string) string {
	if sub == "" || filepath.IsAbs(sub) {
		return sub
	}
	return filepath.Join(dir, sub)
}

func (w *writer) env() map[string]string {
	if len(w.recipe.Run.Env) == 0 {
		return nil
	}
	env := make(map[string]string, len(w.recipe.Run.Env))
	for name, template := range w.recipe.Run.Env {
		env[name] = w.text("the variable "+name, template)
	}
	return env
}

func (w *writer) inputs() []tidemill.Input {
	var all []tidemill.Input
	for _, from := range w.recipe.Inputs {
		if from.URI != "" {
			all = append(all, w.uri(from))
		} else {
			all = append(all, w.dataset(from))
		}
	}
	return all
}

func (w *writer) uri(from config.InputFrom) tidemill.Input {
	in := tidemill.Input{Name: from.Name, URI: w.text("the input "+from.Name, from.URI), Allow: from.Allow}
	if err := from.CheckURI(in.URI); err != nil {
		w.fail("%v", err)
	}
	return in
}

// dataset names the commit if the newest event does and the recipe wants that
// one. An event that brings none, such as a tick, asks for what is newest.
func (w *writer) dataset(from config.InputFrom) tidemill.Input {
	in := tidemill.Input{Name: from.Name, Dataset: w.name("the input "+from.Name, from.Dataset), Branch: either(from.Branch, config.MainBranch)}
	of, _ := w.cause.Attribute(tidemill.AttrDataset)
	if commit, ok := w.cause.Attribute(tidemill.AttrCommit); ok && from.AtCause && of == in.Dataset {
		branch, _ := w.cause.Attribute(tidemill.AttrBranch)
		in.Commit, in.Branch = commit, either(branch, in.Branch)
	}
	return in
}

// found is the input with what was looked up for it.
func found(in tidemill.Input, c api.Commit) tidemill.Input {
	in.Commit, in.Tree, in.Files, in.Bytes = c.ID, c.Tree, c.Files, c.Bytes
	return in
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// unmade is the plan of a run that has none: it is begun with it, for the log
// knows no other way to an end, and nothing is ever launched by it.
func unmade(r config.Recipe, run *tidemill.Run) tidemill.Plan {
	return tidemill.Plan{Team: r.Team, Pool: r.Run.Pool, Priority: r.Run.Priority + run.Priority, Attempts: 1}
}

// made reports whether anything can be launched by a plan.
func made(p tidemill.Plan) bool { return p.Image != "" || p.Dir != "" }

// settlePlan makes the plan of a run's first attempt. An error that is *unfit
// comes with a plan all the same, by which nothing can be launched.
func (f *Foreman) settlePlan(ctx context.Context, r config.Recipe, run *tidemill.Run) (tidemill.Plan, error) {
	p, err := draft(r, run, f.opt.Dir)
	if err == nil {
		err = f.lookUp(ctx, &p)
	}
	if err == nil {
		p.Champion, err = f.champion(ctx, p.Model)
	}
	if _, hopeless := errors.AsType[*unfit](err); hopeless {
		return unmade(r, run), err
	}
	return p, err
}

// lookUp finds what a plan's datasets hold.
func (f *Foreman) lookUp(ctx context.Context, p *tidemill.Plan) error {
	for i, in := range p.Inputs {
		if in.Dataset == "" {
			continue
		}
		c, err := f.commitOf(ctx, in)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return missing(in)
		case errors.Is(err, store.ErrInvalid):
			return unfitf("the input %s cannot be told: %v; the newest event names it so", in.Name, err)
		case errors.Is(err, store.ErrCorrupt):
			return unfitf("the input %s cannot be read: %v; put its files again", in.Name, err)
		case err != nil:
			return fmt.Errorf("look the input %s up: %w", in.Name, err)
		}
		p.Inputs[i] = found(in, c)
	}
	return nil
}

func (f *Foreman) commitOf(ctx context.Context, in tidemill.Input) (api.Commit, error) {
	if in.Commit != "" {
		return f.opt.Store.FindCommit(ctx, in.Dataset, in.Commit)
	}
	return f.opt.Store.Head(ctx, in.Dataset, in.Branch)
}

// champion is the version that a run measures beside its own; nil if there is
// none. One that changes while the run is under way is found out when the version
// is judged.
func (f *Foreman) champion(ctx context.Context, model string) (*tidemill.Champion, error) {
	if model == "" {
		return nil, nil
	}
	m, err := f.ledger.Model(ctx, model)
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", model, err)
	}
	if m.Champion == 0 {
		return nil, nil
	}
	all, err := f.ledger.Versions(ctx, model, m.Champion)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, m.Champion), err)
	case len(all) == 0:
		return nil, fmt.Errorf("look up %s: it has changed meanwhile", tidemill.VersionName(model, m.Champion))
	}
	return f.laidOut(ctx, model, &tidemill.Champion{Version: m.Champion, Artifact: all[0].Artifact})
}

// laidOut is the champion if it can be laid before a command. Where its files are
// lost the model is made all the same: only so there can be another.
func (f *Foreman) laidOut(ctx context.Context, model string, c *tidemill.Champion) (*tidemill.Champion, error) {
	_, err := f.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		f.log.Warn("the champion's files are lost, and a run is given none to measure", "model", model, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the files of %s: %w", tidemill.VersionName(model, c.Version), err)
	}
	return c, nil
}

func missing(in tidemill.Input) error {
	if in.Commit != "" {
		return unfitf("the input %s is not there: dataset %s has no commit %s, which the newest event names", in.Name, in.Dataset, in.Commit)
	}
	return unfitf("the input %s is not there: dataset %s has no commit on branch %s yet; put files there with `tidemill data put`, and ask again", in.Name, in.Dataset, in.Branch)
}

// Field is what stands in a place of an event: an attribute by its name, or
// data.PATH, a text, number or boolean in its JSON data, where the path's parts
// are names of members and numbers of elements. It is false where nothing of
// that sort stands.
func Field(v *broker.View, place string) (string, bool) {
	path, inData := strings.CutPrefix(place, config.KeyData)
	if !inData {
		text, ok := v.Attribute(place)
		return text, ok && text != ""
	}
	var at any
	d := json.NewDecoder(strings.NewReader(string(v.Data)))
	d.UseNumber() // 12345678901234567890 is a key as it stands
	if d.Decode(&at) != nil {
		return "", false
	}
	for part := range strings.SplitSeq(path, ".") {
		at = member(at, part)
	}
	return plainText(at)
}

func member(of any, part string) any {
	switch of := of.(type) {
	case map[string]any:
		return of[part]
	case []any:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(of) {
			return of[i]
		}
	}
	return nil
}

func plainText(x any) (string, bool) {
	switch x := x.(type) {
	case string:
		return x, x != ""
	case json.Number:
		return x.String(), true
	case bool:
		return strconv.FormatBool(x), true
	}
	return "", false
}

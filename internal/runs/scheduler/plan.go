package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/keys"
)

// planError is the reason why a plan cannot be made. Unless again is set, only a change of the config,
// the event or the data helps.
type planError struct {
	reason string
	again  bool // the next attempt may succeed, because the store may be behind the log
}

// Error returns the reason for people.
func (u *planError) Error() string { return u.reason }

func unfitf(format string, args ...any) error {
	return &planError{reason: fmt.Sprintf(format, args...)}
}

// Hopeless marks an error of [Options.Outcomes] that another try would meet too. The run then fails with its text.
func Hopeless(err error) error { return &planError{reason: err.Error()} }

// writer expands a recipe's templates for one run.
type writer struct {
	recipe config.Recipe
	key    string
	cause  broker.View // newest cause; empty if it cannot be read
	fault  error       // first fault
}

func newWriter(r config.Recipe, run *tidemill.Run) *writer {
	w := &writer{recipe: r, key: run.Key}
	if broker.UnmarshalStructured(run.Event, &w.cause) != nil {
		w.cause = broker.View{}
	}
	return w
}

// value returns the value of a template's field.
func (w *writer) value(field string) (string, bool) {
	switch field {
	case "key":
		return w.key, true
	case "recipe":
		return w.recipe.Name, true
	case "team":
		return w.recipe.Team, w.recipe.Team != ""
	}
	place := keys.NewPlace(field)
	text := place.Of(&w.cause)
	return text, text != ""
}

// text expands a template. The parameter what names the template's purpose in errors.
func (w *writer) text(what, template string) string {
	text, err := config.Expand(template, w.value)
	if err != nil {
		w.fail("%s cannot be computed: %v; the newest cause is %s from %s", what, err, w.cause.ID, w.cause.Source)
	}
	return text
}

// name expands the template of a dataset's or a model's name, and checks the name.
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

// draft returns a run's plan without the content of its datasets' branches, which is looked up
// later. An error is *planError.
func draft(r config.Recipe, run *tidemill.Run, dir string) (tidemill.Plan, error) {
	w, j := newWriter(r, run), r.Run
	p := tidemill.Plan{Team: r.Team, Image: j.Image, Dir: configFolder(dir, j.Dir), Command: j.Command, Secrets: j.Secrets,
		CPU: j.CPU, Memory: j.Memory, GPUs: j.GPUs, Pool: j.Pool, Priority: j.Priority + run.Priority,
		Deadline: j.Deadline, Grace: j.Grace, Attempts: j.Attempts, Backoff: backoffOf(r),
		Env: w.env(), Inputs: w.inputs(),
		Model: w.name("the model that it makes", r.Makes.Model), Dataset: w.name("the dataset that it makes", r.Makes.Dataset),
		MaxOutput: j.MaxOutput, MaxLog: j.MaxLog, Workers: j.Workers, Servers: j.Servers, Inside: j.Inside}
	if p.Dataset != "" {
		p.Branch = either(r.Makes.Branch, config.MainBranch)
	}
	if p.Model != "" {
		judge := r.Judge() // the run keeps its judge even if the config changes
		p.Judge = &judge
	}
	return p, w.fault
}

// configFolder returns a folder of the config, which is relative to the config's own folder.
func configFolder(dir, sub string) string {
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
		switch {
		case from.URI != "":
			all = append(all, w.uri(from))
		case from.Outcomes != "":
			all = append(all, tidemill.Input{Name: from.Name, Outcomes: from.Outcomes})
		default:
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

// dataset names a commit if the recipe wants the cause's commit and the newest event names one. For
// an event without a commit, such as a tick, it is the newest commit.
func (w *writer) dataset(from config.InputFrom) tidemill.Input {
	in := tidemill.Input{Name: from.Name, Dataset: w.name("the input "+from.Name, from.Dataset), Branch: either(from.Branch, config.MainBranch)}
	of, _ := w.cause.Attribute(tidemill.AttrDataset)
	if commit, ok := w.cause.Attribute(tidemill.AttrCommit); ok && from.AtCause && of == in.Dataset {
		branch, _ := w.cause.Attribute(tidemill.AttrBranch)
		in.Commit, in.Branch = commit, either(branch, in.Branch)
	}
	return in
}

// withCommit returns the input with the commit that was looked up for it.
func withCommit(in tidemill.Input, c api.Commit) tidemill.Input {
	in.Commit, in.Tree, in.Files, in.Bytes = c.ID, c.Tree, c.Files, c.Bytes
	return in
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// unmade returns a plan for a run whose plan cannot be made. The run begins with this plan only
// because a run must begin before it can end; no attempt is launched. The backoff is for a plan that
// the next attempt makes again.
func unmade(r config.Recipe, run *tidemill.Run) tidemill.Plan {
	return tidemill.Plan{Team: r.Team, Pool: r.Run.Pool, Priority: r.Run.Priority + run.Priority, Attempts: 1, Backoff: backoffOf(r)}
}

func backoffOf(r config.Recipe) tidemill.Backoff {
	return tidemill.Backoff{First: r.Run.Backoff.First, Cap: r.Run.Backoff.Cap}
}

// made reports whether a plan can be launched.
func made(p tidemill.Plan) bool { return p.Image != "" || p.Dir != "" }

// settlePlan makes the plan of a run's first attempt. With a *planError it returns the plan of
// unmade.
func (f *Foreman) settlePlan(ctx context.Context, r config.Recipe, run *tidemill.Run) (tidemill.Plan, error) {
	p, err := draft(r, run, f.opt.Dir)
	if err == nil {
		err = f.lookUp(ctx, run, &p)
	}
	if err == nil {
		err = f.storeOutcomes(ctx, r, run, &p)
	}
	if err == nil {
		p.Champion, err = f.champion(ctx, p.Model)
	}
	if _, unfit := errors.AsType[*planError](err); unfit {
		return unmade(r, run), err
	}
	return p, err
}

// lookUp looks up the commits of a plan's datasets. The causes may be events of commits, and these may be on
// the log in another order than the commits.
func (f *Foreman) lookUp(ctx context.Context, run *tidemill.Run, p *tidemill.Plan) error {
	if !slices.ContainsFunc(p.Inputs, func(in tidemill.Input) bool { return in.Dataset != "" }) {
		return nil
	}
	causes, err := f.causes(ctx, run)
	if err != nil {
		return fmt.Errorf("read the events that asked for the run: %w", err)
	}
	for i, in := range p.Inputs {
		if in.Dataset == "" {
			continue
		}
		named, number := "", int64(0)
		for k := range causes {
			if id, n := commitNamed(&causes[k], in); id != "" && (n == 0 || n >= number) {
				named, number = id, n
			}
		}
		if in.Commit != "" && named != "" { // the input has the commit of its cause
			in.Commit = named
		}
		c, err := f.commitOf(ctx, in)
		switch {
		case errors.Is(err, store.ErrNotFound):
			in.Commit = either(in.Commit, named)
			return missing(in)
		case err == nil && c.Number < number:
			in.Commit = named
			return missing(in)
		case errors.Is(err, store.ErrInvalid):
			return unfitf("the input %s cannot be computed: %v; the newest event names it", in.Name, err)
		case errors.Is(err, store.ErrCorrupt):
			return unfitf("the input %s cannot be read: %v; put its files again", in.Name, err)
		case err != nil:
			return fmt.Errorf("look the input %s up: %w", in.Name, err)
		}
		p.Inputs[i] = withCommit(in, c)
	}
	return nil
}

// storeOutcomes stores the outcomes that a plan's inputs read, as they are now. The plan keeps the tree, so
// all attempts get the same files.
func (f *Foreman) storeOutcomes(ctx context.Context, r config.Recipe, run *tidemill.Run, p *tidemill.Plan) error {
	for i, in := range p.Inputs {
		if in.Outcomes == "" {
			continue
		}
		scorer, known := f.opt.Config().Scorer(in.Outcomes)
		if !known || f.opt.Outcomes == nil {
			return unfitf("the input %s reads the outcomes of scorer %s, which is not in the config any more", in.Name, in.Outcomes)
		}
		key := run.Key
		if r.Key == config.KeyNone {
			key = ""
		}
		from := slices.IndexFunc(r.Inputs, func(from config.InputFrom) bool { return from.Name == in.Name })
		stored, err := f.opt.Outcomes(ctx, scorer, key, r.Inputs[from].Last)
		if _, unfit := errors.AsType[*planError](err); unfit {
			return unfitf("make the input %s: %v", in.Name, err)
		}
		if err != nil {
			return fmt.Errorf("make the input %s: %w", in.Name, err)
		}
		stored.Name = in.Name
		p.Inputs[i] = stored
	}
	return nil
}

func (f *Foreman) commitOf(ctx context.Context, in tidemill.Input) (api.Commit, error) {
	if in.Commit != "" {
		return f.opt.Store.FindCommit(ctx, in.Dataset, in.Commit)
	}
	return f.opt.Store.Head(ctx, in.Dataset, in.Branch)
}

// champion returns the version that a run measures next to its own; nil if the model has no
// champion. If the champion changes during the run, the judge of its version notices that.
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

// laidOut returns the champion if its files are in the store. If its files are lost, the run goes
// on without a champion, because a new version must replace it.
func (f *Foreman) laidOut(ctx context.Context, model string, c *tidemill.Champion) (*tidemill.Champion, error) {
	_, err := f.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		f.log.Warn("scheduler: the champion's files are lost; the run measures no champion", "model", model, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the files of %s: %w", tidemill.VersionName(model, c.Version), err)
	}
	return c, nil
}

// causes returns the newest events that asked for a run, the newest last.
func (f *Foreman) causes(ctx context.Context, run *tidemill.Run) (all []broker.View, err error) {
	events := []json.RawMessage{run.Event}
	if run.Causes > 1 && f.opt.Broker != nil {
		if events, err = f.requestEvents(ctx, run); err != nil {
			return nil, err
		}
	}
	for _, e := range events {
		var v broker.View
		if broker.UnmarshalStructured(e, &v) == nil {
			all = append(all, v)
		}
	}
	return all, nil
}

// commitNamed returns the id and the number of the commit of an input's branch that an event names.
// The branch has that commit, or a newer one, once the store is as new as the log.
func commitNamed(e *broker.View, in tidemill.Input) (id string, number int64) {
	dataset, _ := e.Attribute(tidemill.AttrDataset)
	branch, _ := e.Attribute(tidemill.AttrBranch)
	if e.Type != tidemill.TypeNewData || dataset != in.Dataset || either(branch, config.MainBranch) != in.Branch {
		return "", 0
	}
	id, _ = e.Attribute(tidemill.AttrCommit)
	var d struct{ Number int64 }
	if json.Unmarshal(e.Data, &d) != nil {
		return id, 0 // the event of somebody else's program
	}
	return id, d.Number
}

// missing returns the error for an input without a commit. A commit that an event names was in a
// store when the event was published. A bucket that is a copy, or was restored, may get it later.
func missing(in tidemill.Input) error {
	if in.Commit != "" {
		return &planError{again: true, reason: fmt.Sprintf("the input %s is not there: dataset %s has no commit %s, which the newest event names; "+
			"if the object store is a copy or was restored, wait until it has the commit; else put the files there again", in.Name, in.Dataset, in.Commit)}
	}
	return unfitf("the input %s is not there: dataset %s has no commit on branch %s yet; put files there with `tidemill data put`, and ask again", in.Name, in.Dataset, in.Branch)
}

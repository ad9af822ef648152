package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/filter"
	"tidemill.dev/triggers/keys"
)

// Asker writes requests to the log.
type Asker interface {
	Request(context.Context, scheduler.Request) (scheduler.Answer, error)
}

// Options configure the function.
type Options struct {
	Config func() *config.Config
	Asker  Asker
	// Keys calls fn with every key that a recipe knows.
	Keys func(ctx context.Context, recipe string, fn func(string) bool) error
	// Progress stores how far ticks without a key have come.
	Progress Progress
}

// New returns the function for one recipe.
func New(o Options, recipe string) functions.ViewFunc {
	t := &trainer{opt: o, recipe: recipe}
	return func(ctx context.Context, v *broker.View) error {
		if err := t.take(ctx, v); err != nil {
			return marked(fmt.Errorf("request a run of recipe %s: %w", recipe, err))
		}
		return nil
	}
}

type trainer struct {
	opt    Options
	recipe string
	rules  compiled
}

// errStale reports that our config has no rule for a dispatched event. It may be older
// or newer than the dispatcher's, and soon both have the same. If that has no rule for
// the event either, the event becomes a dead letter and is not lost silently.
var errStale = errors.New("the config here wants no such event; if it was changed just now, this passes")

func (t *trainer) take(ctx context.Context, v *broker.View) error {
	r, err := t.rules.of(t.opt.Config(), t.recipe)
	if err != nil {
		return err
	}
	w, ok := r.choose(v)
	if !ok {
		return errStale
	}
	if w.Each && v.Subject == "" {
		return t.takeEach(ctx, v, w)
	}
	key, err := r.keyOf(v, w)
	if err != nil {
		return functions.Permanent(err)
	}
	_, err = t.opt.Asker.Request(ctx, request(v, t.recipe, key, w))
	return err
}

// catchingUp is the time after which an event is delivered again while the ledger is catching up.
const catchingUp = 2 * time.Second

// marked marks an error by whether the event shall come again.
func marked(err error) error {
	switch {
	case errors.Is(err, broker.ErrTooLarge), errors.Is(err, scheduler.ErrKey):
		return functions.Permanent(err)
	case errors.Is(err, scheduler.ErrCatchingUp):
		return functions.RetryAfter(err, catchingUp)
	}
	return err
}

const (
	// maxData is how much of an event's data is stored with the run that it asked for.
	// Facts never expire, and a run only needs to know what the event is about.
	maxData = 64 << 10
	// attrLeftOut replaces larger data and has its size. The event itself can be found
	// by its source and id.
	attrLeftOut = "dataleftout"
)

// request returns the request of an event for a key.
func request(v *broker.View, recipe, key string, w config.RecipeWhen) scheduler.Request {
	correlation, _ := v.Attribute(tidemill.AttrCorrelationID)
	if correlation == "" {
		correlation = v.ID
	}
	trace, _ := v.Attribute(tidemill.AttrTraceParent)
	return scheduler.Request{Recipe: recipe, Key: key, Cause: tidemill.Cause{Source: v.Source, ID: v.ID},
		Events: []json.RawMessage{asRunSees(v)}, Debounce: w.Debounce, MaxWait: w.MaxWait, Priority: w.Priority,
		Correlation: correlation, Trace: trace}
}

// asRunSees returns an event in the form that the run sees.
func asRunSees(v *broker.View) json.RawMessage {
	if len(v.Data) <= maxData {
		return broker.MarshalStructured(v)
	}
	short := v.Clone()
	short.Data = nil
	short.Extensions = append(short.Extensions, broker.Attribute{Name: attrLeftOut, Value: strconv.Itoa(len(v.Data))})
	return broker.MarshalStructured(&short)
}

// rules are the conditions of a recipe on events.
type rules struct {
	recipe config.Recipe
	where  []*filter.Filter // filter of each entry; nil accepts every event of its types
}

// compiled caches the rules of the present config.
type compiled struct {
	mu    sync.Mutex
	from  *config.Config
	rules *rules
	err   error
}

func (c *compiled) of(now *config.Config, recipe string) (*rules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != now {
		c.from = now
		c.rules, c.err = compile(now, recipe)
	}
	return c.rules, c.err
}

func compile(c *config.Config, recipe string) (*rules, error) {
	r, ok := c.Recipe(recipe)
	if !ok {
		return nil, fmt.Errorf("%w; if the config was changed just now, this passes", scheduler.ErrNoRecipe)
	}
	all := &rules{recipe: r, where: make([]*filter.Filter, len(r.When))}
	for i, w := range r.When {
		if w.Where == "" {
			continue
		}
		var err error
		if all.where[i], err = filter.Compile(w.Where); err != nil {
			return nil, functions.Permanent(fmt.Errorf("entry %d of its when: %w", i+1, err)) // a config that was loaded has no such error
		}
	}
	return all, nil
}

// choose returns the entry of the recipe's when for an event: among the entries that match, the
// first with the shortest debounce. The event's stream is not known here, so an entry for all
// types of a stream counts as matching.
//
// The dispatcher has evaluated these filters already, but it cannot pass the result on. It knows
// only that the recipe's trigger wants the event. A parked event does not record which entry
// matched, the dispatcher may have another config by now, and in a cluster it is another process.
// So the filters are evaluated again here, but never for an entry that could not be chosen.
func (r *rules) choose(v *broker.View) (w config.RecipeWhen, found bool) {
	for i, one := range r.recipe.When {
		switch {
		case found && one.Debounce >= w.Debounce:
		case len(one.Types) > 0 && !slices.Contains(one.Types, v.Type):
		case r.where[i] != nil && !r.where[i].Match(v):
		default:
			w, found = one, true
		}
	}
	return w, found
}

// keyOf returns the key that an event asks for. A schedule's tick has it as subject,
// wherever other events have it.
func (r *rules) keyOf(v *broker.View, w config.RecipeWhen) (string, error) {
	place := r.recipe.Key
	switch {
	case place == config.KeyNone:
		return r.recipe.Name, nil
	case w.Schedule != "":
		place = config.KeySubject
	}
	at := keys.NewPlace(place)
	key := at.Of(v)
	if key == "" {
		return "", fmt.Errorf("event %s from %s has no key: there is no text at %s; publish it with one, or change `key` of the recipe", v.ID, v.Source, place)
	}
	if err := scheduler.CheckKeyOf(&r.recipe, key); err != nil {
		return "", fmt.Errorf("event %s from %s: the value at %s: %w", v.ID, v.Source, place, err)
	}
	return key, nil
}

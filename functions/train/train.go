package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/data/store"
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
		return t.takeEach(ctx, v, r, w)
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

const (
	// eachAtOnce is how many requests of one tick are sent at once: enough to be written in batches.
	eachAtOnce = 128
	// eachPart is the number of keys after which the progress of a tick is stored.
	eachPart = 2000
)

// Progress stores how far a tick without a key has come, so that its next try continues there, in
// any process. A store's notes do that.
type Progress interface {
	Note(ctx context.Context, name string) ([]byte, error)
	PutNote(ctx context.Context, name string, data []byte) error
	RemoveNote(ctx context.Context, name string) error
}

// takeEach requests a run for every key that the recipe knows, in the order of the keys. If it is
// interrupted the tick comes again, and continues after the last part that was finished. Requests of
// an unfinished part are repeated, and those that are on the log already write nothing.
//
// The recipe may have changed since it learned a key, so that the key would make an invalid name. Such a key gets no
// run, and the error says so after all others were requested.
func (t *trainer) takeEach(ctx context.Context, v *broker.View, r *rules, w config.RecipeWhen) error {
	keys, err := t.keys(ctx)
	if err != nil {
		return fmt.Errorf("list its keys: %w", err)
	}
	all, unfit := len(keys), error(nil)
	keys = slices.DeleteFunc(keys, func(key string) bool {
		err := scheduler.CheckKeyOf(&r.recipe, key)
		unfit = cmp.Or(unfit, err)
		return err != nil
	})
	event := request(v, t.recipe, "", w)
	event.Once = true
	if err := t.askParts(ctx, v, event, keys, w.Spread); err != nil || unfit == nil {
		return err
	}
	return functions.Permanent(fmt.Errorf("for %d of %d keys, which the recipe can have no longer: %w; the others were requested; "+
		"change the recipe, or remove such a key with tidemill forget", all-len(keys), all, unfit))
}

// askParts requests a run for each key, part by part.
func (t *trainer) askParts(ctx context.Context, v *broker.View, event scheduler.Request, keys []string, spread time.Duration) error {
	if len(keys) <= eachPart {
		return t.askAll(ctx, event, keys, spread)
	}
	name := "each-" + tidemill.ID(t.recipe, v.Source, v.ID)
	after, err := t.opt.Progress.Note(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read for how many keys it was requested: %w", err)
	}
	slices.Sort(keys)
	from, done := slices.BinarySearch(keys, string(after))
	if done {
		from++
	}
	for part := range slices.Chunk(keys[from:], eachPart) {
		if err := t.askAll(ctx, event, part, spread); err != nil {
			return err
		}
		if err := t.opt.Progress.PutNote(ctx, name, []byte(part[len(part)-1])); err != nil {
			return fmt.Errorf("store for how many keys it was requested: %w", err)
		}
	}
	return t.opt.Progress.RemoveNote(ctx, name)
}

// askAll requests a run for each of some keys.
func (t *trainer) askAll(ctx context.Context, event scheduler.Request, keys []string, spread time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan string)
	var askers sync.WaitGroup
	for range min(eachAtOnce, len(keys)) {
		askers.Go(func() {
			for key := range todo {
				if err := t.askOne(ctx, event, key, spread); err != nil {
					cancel(fmt.Errorf("for key %s: %w", key, err)) // the first error counts
				}
			}
		})
	}
	hand(ctx, todo, keys)
	askers.Wait()
	return context.Cause(ctx)
}

func hand(ctx context.Context, todo chan<- string, keys []string) {
	defer close(todo)
	for _, key := range keys {
		select {
		case todo <- key:
		case <-ctx.Done():
			return
		}
	}
}

func (t *trainer) askOne(ctx context.Context, r scheduler.Request, key string, spread time.Duration) error {
	r.Key, r.Delay = key, place(key, spread)
	_, err := t.opt.Asker.Request(ctx, r)
	return err
}

func (t *trainer) keys(ctx context.Context) (all []string, err error) {
	err = t.opt.Keys(ctx, t.recipe, func(key string) bool {
		all = append(all, key)
		return ctx.Err() == nil
	})
	return all, err
}

// place returns the delay of a key within a spread. It is a hash of the key, so the
// delays are even, and a key has the same delay every night.
func place(key string, spread time.Duration) time.Duration {
	if spread <= 0 {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	return time.Duration(mix(h.Sum64()) % uint64(spread))
}

// mix spreads the close results that FNV has for keys which differ only in their last
// letter. It is the finalizer of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

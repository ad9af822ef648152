package score

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/keys"
)

// keyPlace is where an event has its key.
type keyPlace struct {
	place keys.Place
	need  bool // whether the model's name contains the key, so that there is no model without one
}

func newKeyPlace(place, model string) keyPlace {
	if place == "" {
		place = config.KeySubject
	}
	return keyPlace{place: keys.NewPlace(place), need: strings.Contains(model, "{key}")}
}

// keyOf returns an event's key, which may point into the event.
func (k *keyPlace) keyOf(v *broker.View) (string, error) {
	key := k.place.Of(v)
	if key == "" && !k.need {
		return "", nil
	}
	if key == "" {
		return "", fmt.Errorf("it has no key: there is no text at %s; publish it with one, or change `key` of the scorer", k.place.String())
	}
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("the value at %s %w", k.place.String(), err)
	}
	return key, nil
}

// maxKey is the longest key, as for recipes.
const maxKey = 256

// checkKey returns why a text cannot be a key. Such a text has no model either.
func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("is not a key: it has %d bytes, and a key may have %d", len(key), maxKey)
	}
	plain := true
	for i := range len(key) {
		plain = plain && key[i] >= ' ' && key[i] < 0x7f
	}
	if plain {
		return nil
	}
	return checkOddKey(key)
}

func checkOddKey(key string) error {
	if !utf8.ValidString(key) {
		return errors.New("cannot be a key: it is not valid UTF-8")
	}
	if strings.ContainsFunc(key, unicode.IsControl) {
		return errors.New("is not a key: it has a control character")
	}
	return nil
}

// target is a model, by its name.
type target struct {
	name string
	slot *serving.Slot // nil until the model has a champion, because an event may name any model

	batch uint64 // batch of the group
	group int32

	waiting []item // events that wait for the model, in the order of arrival
	queued  bool   // whether the session lists it among its queues
	version int    // version that text is of
	text    string

	asked   []askedKey   // keys with parked events that wait for the model
	kept    *infer.Model // model kept for the present batch
	watched bool         // whether a change of the slot wakes the pipeline
	pace    pace
	away    int       // number of times in a row that ONNX Runtime's process did not take the model
	back    time.Time // time at which the model is asked again
}

// keyEntry is a key of past events.
type keyEntry struct {
	key    string
	target *target
	// assignment and version that scored the last event of the key here
	assignment *assignment
	model      string
	version    int
}

// cache finds the model of a key. It forgets a key after as many other keys have been
// looked up.
type cache struct {
	template    string
	most        int
	keys, older map[string]*keyEntry
	targets     map[string]*target
}

const mostKeys = 1 << 16

func newCache(template string, most int) *cache {
	return &cache{template: template, most: most, keys: map[string]*keyEntry{}, targets: map[string]*target{}}
}

// entryOf returns the entry of a key, which may point into an event.
func (c *cache) entryOf(key string) (*keyEntry, error) {
	if k := c.keys[key]; k != nil {
		return k, nil
	}
	k := c.older[key]
	if k == nil {
		name, err := config.Expand(c.template, func(string) (string, bool) { return key, true })
		if err == nil {
			err = tidemill.CheckDataset(name)
		}
		if err != nil {
			return nil, fmt.Errorf("its key names no model: %w", err)
		}
		k = &keyEntry{key: string([]byte(key)), target: c.target(name)}
	}
	c.keep(k)
	return k, nil
}

func (c *cache) keep(k *keyEntry) {
	if len(c.keys) >= c.most {
		c.older, c.keys = c.keys, make(map[string]*keyEntry, c.most)
		c.sweep()
	}
	c.keys[k.key] = k
}

// sweep forgets the models of forgotten keys, unless events wait for them.
func (c *cache) sweep() {
	used := map[*target]bool{}
	for _, k := range c.older {
		used[k.target] = true
	}
	for name, t := range c.targets {
		if !used[t] && len(t.waiting)+len(t.asked) == 0 {
			delete(c.targets, name)
		}
	}
}

// target returns the target of a model's name.
func (c *cache) target(name string) *target {
	t := c.targets[name]
	if t == nil {
		t = &target{name: name}
		c.targets[name] = t
	}
	return t
}

package live

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// The topics without an argument.
const (
	Fleet     = "fleet"     // facts about runs and models
	Runs      = "runs"      // facts about runs
	Approvals = "approvals" // decisions about versions of models
	Commands  = "commands"  // the stream commands

	DeadLetters = "dead-letters"
	Streams     = "streams"
	Triggers    = "triggers"
	Scorers     = "scorers"
	Trials      = "trials"
	Rollouts    = "rollouts"
	Pools       = "pools"
	Schedules   = "schedules"
	Data        = "data"
	Health      = "health"
)

// The topics with an argument after a colon.
const (
	recipePrefix = "fleet:"
	runPrefix    = "run:"
	modelPrefix  = "model:"
	keyPrefix    = "key:"
)

// Topics describes all topics, for messages.
const Topics = "fleet, fleet:RECIPE, runs, run:ID, model:NAME, key:KEY, approvals, commands, dead-letters, streams, triggers, scorers, trials, rollouts, pools, schedules, data, health"

// isPolled reports whether the content of a topic is compared from time to time, because it has no log. The progress of
// a run is not on the log of facts.
func isPolled(topic string) bool { return hasNoFacts(topic) || strings.HasPrefix(topic, runPrefix) }

// hasNoFacts reports whether facts do not change a topic.
func hasNoFacts(topic string) bool {
	switch topic {
	case DeadLetters, Streams, Triggers, Scorers, Trials, Rollouts, Pools, Schedules, Data, Health:
		return true
	}
	return false
}

// Check returns an error if there is no such topic.
func Check(topic string) error {
	switch topic {
	case Fleet, Runs, Approvals, Commands:
		return nil
	}
	if kind, of := Cut(topic); hasNoFacts(topic) || kind != "" && of != "" {
		return nil
	}
	return fmt.Errorf("there is no topic %q; the topics: %s", topic, Topics)
}

// Cut splits a topic with an argument, such as run:ID, into its kind and its argument. The kind is empty if the
// topic has no argument.
func Cut(topic string) (kind, of string) {
	for _, prefix := range []string{recipePrefix, runPrefix, modelPrefix, keyPrefix} {
		if of, ok := strings.CutPrefix(topic, prefix); ok {
			return strings.TrimSuffix(prefix, ":"), of
		}
	}
	return "", ""
}

// OfFact returns the topics that a fact changes. A fact about a model changes the run that made the version too.
func OfFact(v *broker.View) []string {
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	model, _ := v.Attribute(tidemill.AttrModel)
	run, _ := v.Attribute(tidemill.AttrRun)
	var all []string
	if v.Type != tidemill.TypeModelMeasured { // figures come all the time, and no list has them
		all = append(all, Fleet)
	}
	add := func(prefix, of string) {
		if of != "" {
			all = append(all, prefix+of)
		}
	}
	add(recipePrefix, recipe)
	add(runPrefix, run)
	add(modelPrefix, model)
	add(keyPrefix, tidemill.OwnerOf(recipe, v.Subject))
	switch {
	case strings.HasPrefix(v.Type, "tidemill.run."):
		all = append(all, Runs)
	case v.Type != tidemill.TypeModelRegistered && v.Type != tidemill.TypeModelLoaded && v.Type != tidemill.TypeModelMeasured && model != "":
		all = append(all, Approvals)
	}
	return all
}

// Version is the version of a topic, as text. It is opaque: two versions are equal or not. Gateways that have read the
// same facts about a topic give the topic the same version.
type Version string

const versionBytes = 6

// versionOf returns the text of a number.
func versionOf(n uint64) Version {
	b := binary.BigEndian.AppendUint64(nil, n)
	return Version(base64.RawURLEncoding.EncodeToString(b[8-versionBytes:]))
}

// VersionOf returns the version of a content.
func VersionOf(content []byte) Version {
	h := fnv.New64a()
	_, _ = h.Write(content) // never fails
	return versionOf(h.Sum64())
}

// Known has the versions of the topics that a viewer knows.
type Known map[string]Version

const nameBytes = 4

// nameSum identifies a topic within an id.
func nameSum(topic string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic)) // never fails
	return string(h.Sum(nil))
}

// ID returns the known versions as text for a URL. It takes 14 bytes a topic.
func (k Known) ID() string {
	b := make([]byte, 0, len(k)*(nameBytes+versionBytes))
	for _, topic := range slices.Sorted(maps.Keys(k)) {
		version, err := base64.RawURLEncoding.DecodeString(string(k[topic]))
		if err == nil {
			b = append(append(b, nameSum(topic)...), version...)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseID returns the versions of some topics in an id. A topic that the id lacks has no version.
func ParseID(id string, topics []string) (Known, error) {
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(b)%(nameBytes+versionBytes) != 0 {
		return nil, errors.New("it is not the id of an update: use one as it was given, in full, or leave it out")
	}
	versions := map[string]Version{}
	for one := range slices.Chunk(b, nameBytes+versionBytes) {
		versions[string(one[:nameBytes])] = Version(base64.RawURLEncoding.EncodeToString(one[nameBytes:]))
	}
	known := Known{}
	for _, topic := range topics {
		if v, ok := versions[nameSum(topic)]; ok {
			known[topic] = v
		}
	}
	return known, nil
}

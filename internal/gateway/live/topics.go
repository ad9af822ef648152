package live

import (
	"fmt"
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

package config

import (
	"slices"
	"time"

	"tidemill.dev"
)

// The functions of ours that work for a whole install, each with a trigger of
// the same name.
const (
	FunctionPromote = "promote" // registers, judges and promotes what runs have made
	FunctionForget  = "forget"  // removes all of a key that has gone
)

// reservedTrigger finds the names that no file may give a trigger.
func reservedTrigger(name string) bool { return name == FunctionPromote || name == FunctionForget }

// ownTriggers are those that an install has for what its recipes make. People see
// them among the others. They work through what is undone of hours, for nobody
// else would.
func ownTriggers(recipes []Recipe) (all []Trigger) {
	if slices.ContainsFunc(recipes, func(r Recipe) bool { return r.Makes.Model != "" }) {
		all = append(all, ownTrigger(FunctionPromote, 5*time.Minute,
			When{Types: []string{tidemill.TypeRunFinished}, Where: "outcome = 'succeeded' AND EXISTS model"}))
	}
	if len(recipes) > 0 {
		all = append(all, ownTrigger(FunctionForget, 10*time.Minute,
			When{Types: []string{tidemill.TypeBotDeleted}}, When{Types: []string{tidemill.TypeKeyForgetting}}))
	}
	return all
}

func ownTrigger(name string, timeout time.Duration, when ...When) Trigger {
	return Trigger{Name: name, Builtin: true, When: when, To: Target{Function: name},
		Delivery: Delivery{Attempts: 300, Backoff: defaultBackoff(), Timeout: timeout, Ordered: true, Concurrency: 32}}
}

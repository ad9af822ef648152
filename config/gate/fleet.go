package gate

import (
	"fmt"

	"cel.dev/cel-go/common/types"
)

// The figures of a rollout that its stop clauses may name, after the name fleet.
const (
	FleetWorse    = "worse"    // lower bound of how much worse the new versions are
	FleetFailed   = "failed"   // lower bound of the share of runs that fail
	FleetRefused  = "refused"  // lower bound of the share of versions that their gate refuses
	FleetRuns     = "runs"     // number of runs that have ended
	FleetKeys     = "keys"     // number of keys with a judged version
	FleetPromoted = "promoted" // number of keys with a promoted version
	FleetMeasured = "measured" // number of keys whose gate has compared the version with the champion
	FleetLabelled = "labelled" // number of keys with enough outcomes of both versions
)

// FleetFigures lists the figures that stop clauses may name.
func FleetFigures() []string {
	return []string{FleetFailed, FleetKeys, FleetLabelled, FleetMeasured, FleetPromoted, FleetRefused, FleetRuns, FleetWorse}
}

// fleetShape returns the shape of what a stop clause may name.
func fleetShape() *shape { return of().with(ofFleet, of(FleetFigures()...)) }

// CheckStop is like [Check], for a stop clause of a rollout.
func CheckStop(text string) error { return checkIn(ofFleets, text) }

// Stops returns the first clause that is true of a rollout's figures; empty if none is. A clause that cannot be
// decided, such as one that divides by zero, is an error.
func Stops(clauses []string, figures map[string]float64) (string, error) {
	fleet := map[string]any{}
	for name, v := range figures {
		fleet[name] = v
	}
	g, err := compileIn(ofFleets, clauses)
	if err != nil {
		return "", err
	}
	for _, c := range g.clauses {
		out, _, err := c.program.Eval(map[string]any{ofFleet: fleet})
		if err != nil {
			return "", fmt.Errorf("decide the stop clause %s: %w", brief(c.text), err)
		}
		stop, is := out.(types.Bool)
		if !is {
			return "", fmt.Errorf("decide the stop clause %s: it is neither true nor false", brief(c.text))
		}
		if stop {
			return c.text, nil
		}
	}
	return "", nil
}

package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"cel.dev/cel-go/common/types"

	"tidemill.dev"
)

// CheckStream is like [Check], for a clause of a trial.
func CheckStream(text string) error { return checkIn(ofStreams, text) }

// CompileStream is like [Compile], for the clauses of a trial.
func CompileStream(clauses []string) (*Gate, error) { return compileIn(ofStreams, clauses) }

// StreamFigures are the figures of a trial.
type StreamFigures struct {
	tidemill.TrialCounts
	Lead tidemill.Estimate
	P99  float64 // milliseconds
}

// JudgeStream decides all clauses of a trial. A figure that is not known yet makes its clauses fail.
func (g *Gate) JudgeStream(f StreamFigures) (all []tidemill.Clause) {
	stream := map[string]any{"answered": float64(f.Answered), "labelled": float64(f.Labelled), "errors": float64(f.Errors)}
	if f.Answered > 0 {
		stream["disagree"], stream["p99"] = float64(f.Answered-f.Agreed)/float64(f.Answered), f.P99
	}
	if f.Labelled > 0 {
		stream["lead"] = map[string]any{"low": f.Lead.Low, "value": f.Lead.Value, "high": f.Lead.High}
	}
	absent := func(p path, _ int, _ map[string]any) string {
		if p.needsLabels() {
			return "no label has come yet"
		}
		return "no event is answered yet"
	}
	for _, k := range g.clauses {
		all = append(all, decide(k, map[string]any{ofStream: stream}, absent))
	}
	return all
}

// NeedsLabels reports whether a clause of a trial names a figure that needs labels.
func (g *Gate) NeedsLabels() bool {
	return slices.ContainsFunc(g.clauses, func(k clause) bool { return slices.ContainsFunc(k.names, path.needsLabels) })
}

func (p path) needsLabels() bool {
	return len(p.steps) > 1 && p.steps[0] == ofStream && (p.steps[1] == "lead" || p.steps[1] == "labelled")
}

// StreamFailures lists the failed clauses of a trial with their figures, in words.
func (g *Gate) StreamFailures(clauses []tidemill.Clause) string {
	return g.failures(Facts{}, tidemill.Judgement{Clauses: clauses})
}

// StreamValues lists the figures of clauses, in words.
func StreamValues(clauses []tidemill.Clause) string {
	seen, text := map[string]bool{}, ""
	for _, c := range clauses {
		if c.Note != "" || seen[c.Text] {
			continue
		}
		seen[c.Text] = true
		if text != "" {
			text += ", "
		}
		text += brief(c.Text)
		for _, name := range slices.Sorted(maps.Keys(c.Values)) {
			text += fmt.Sprintf(" (%s is %s)", name, show(c.Values[name]))
		}
	}
	return text
}

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
// decided, such as one that divides by zero, is an error if no other clause is true.
func Stops(clauses []string, figures map[string]float64) (string, error) {
	fleet := map[string]any{}
	for name, v := range figures {
		fleet[name] = v
	}
	g, err := compileIn(ofFleets, clauses)
	if err != nil {
		return "", err
	}
	var undecided []error
	for _, c := range g.clauses {
		out, _, err := c.program.Eval(map[string]any{ofFleet: fleet})
		stop, is := out.(types.Bool)
		switch {
		case err != nil:
			undecided = append(undecided, fmt.Errorf("decide the stop clause %s: %w", brief(c.text), err))
		case !is:
			undecided = append(undecided, fmt.Errorf("decide the stop clause %s: it is neither true nor false", brief(c.text)))
		case bool(stop):
			return c.text, nil
		}
	}
	return "", errors.Join(undecided...)
}

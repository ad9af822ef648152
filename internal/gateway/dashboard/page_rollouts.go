package dashboard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func rolloutPages() []*page {
	return []*page{{path: "/ui/rollouts", nav: "/ui/rollouts", title: named("Rollouts"), regions: []region{part("rollouts", "rollouts commands", asked[api.Rollouts]("/api/v1/rollouts"), showRollouts)},
		main: still(func(v *view) Node {
			return list(h.H1(say(v.Title)), lead(say("A change of a recipe's image, command or inputs reaches a part of its keys first. It stops by itself if the new models are worse.")), v.Region("rollouts"))
		})}}
}

func rolloutURL(recipe string) string { return queryURL("/ui/rollouts", "recipe", recipe) }

func showRollouts(v *visit, all *api.Rollouts) Node {
	chosen := all.Rollouts
	if recipe := v.Q("recipe"); recipe != "" {
		chosen = slices.DeleteFunc(slices.Clone(chosen), func(r api.Rollout) bool { return r.Recipe != recipe })
		if len(chosen) == 0 {
			return list(nothing(say("The recipe "), text(recipe), say(" has no rollouts. "), anchor("/ui/rollouts", say("All rollouts"))))
		}
	}
	if len(chosen) == 0 {
		return hint{what: "No recipe of the config has rollouts. A recipe with rollout: brings its changes to 1 %, 10 % and then all of its keys."}.node()
	}
	return list(each(chosen, func(r *api.Rollout) Node { return v.rollout(r) }), when(len(chosen) < len(all.Rollouts), anchor("/ui/rollouts", say("All rollouts"))))
}

// rollout shows one recipe with its newest rollout.
func (v *visit) rollout(r *api.Rollout) Node {
	title := []Node{anchor(recipeURL(r.Recipe), text(r.Recipe))}
	if r.Rollout != "" {
		title = append(title, say(" "), quiet(text(r.Rollout)))
	}
	return h.Section(h.Aria("label", "Rollout of "+word(r.Recipe)), h.H2(title...), v.rolloutState(r), v.rolloutActions(r), rolloutSteps(r),
		facts(when(r.Began != nil, fact("Began", v.ago(r.Began))), when(r.Since != nil && rolloutIsOpen(r), fact("This share or state since", v.ago(r.Since))), fact("Least time of a share", say(holdOf(r))),
			fact("It stops if", each(r.Stop, func(c *string) Node { return h.Div(h.Code(say(titled(*c)))) }), when(len(r.Stop) == 0, say("no clause is given")))),
		rolloutFigures(r), rolledBack(r))
}

func rolloutIsOpen(r *api.Rollout) bool { return r.State != api.RolloutNone }

// rolloutState shows the state of a rollout, and the person or the clause that has changed it.
func (v *visit) rolloutState(r *api.Rollout) Node {
	share := percentOf(r.Share) + " of the keys"
	var line g.Group
	switch r.State {
	case api.RolloutRunning:
		line = g.Group{badge(r.State), say(" The change has reached " + share + ".")}
	case api.RolloutPaused:
		line = g.Group{badge(r.State), say(" at " + share), by(r.By), because(r.Reason), say(". It still stops by itself.")}
	case api.RolloutStopped:
		line = g.Group{badge(r.State), say(" at " + share + ", because this clause was true: "), h.Code(say(titled(r.Reason))), say(". Its keys go back, and it waits for you: resume or abort it.")}
	case api.RolloutAborting:
		line = g.Group{badge(r.State), say(" at " + share), by(r.By), because(r.Reason), say(". Its keys go back.")}
	default:
		line = g.Group{say("No rollout is open: all keys are trained in the same way.")}
		if r.Last != "" {
			line = append(line, say(" The last one: "), badge(r.Last), say(" "), v.ago(r.LastAt), say("."))
		}
	}
	return list(lead(line), when(r.Wait != "" && rolloutIsOpen(r), h.P(quiet(say("It waits ")), say(titled(r.Wait)))))
}

// rolloutActions are the commands that change something now.
func (v *visit) rolloutActions(r *api.Rollout) Node {
	var all g.Group
	if r.State == api.RolloutRunning {
		all = append(all, v.Act("pause-rollout", "recipe", r.Recipe), say(" "))
	}
	if r.State == api.RolloutPaused || r.State == api.RolloutStopped || r.State == api.RolloutNone && r.Last == "aborted" {
		all = append(all, v.Act("resume-rollout", "recipe", r.Recipe), say(" "))
	}
	if rolloutIsOpen(r) && r.State != api.RolloutAborting {
		all = append(all, v.Act("abort-rollout", "recipe", r.Recipe), say(" "))
	}
	return actions(append(all, button(runsURL(r.Recipe), "Runs of the recipe"))...)
}

// rolloutSteps draws the shares of the keys, the present one marked.
func rolloutSteps(r *api.Rollout) Node {
	return h.Ol(h.Class("steps"), h.Aria("label", "Shares of the keys"), each(r.Keys, func(at *float64) Node {
		i, share := slices.Index(r.Keys, *at), *at
		keys, state, now := "? keys", "", rolloutIsOpen(r) && share == r.Share
		if i < len(r.Cohorts) {
			keys = count(r.Cohorts[i]) + " " + one(r.Cohorts[i], "key", "keys")
		}
		switch {
		case now:
			state = "now"
		case rolloutIsOpen(r) && share < r.Share:
			state = "reached"
		case rolloutIsOpen(r):
			state = "to come"
		}
		return h.Li(when(now, h.Aria("current", "step")), h.B(say(percentOf(share))), say(keys), when(state != "", say(" · "), quiet(say(state))))
	}))
}

// percentOf writes a share as the config has it, such as 0.5 %.
func percentOf(share float64) string { return number(100*share) + " %" }

// rolloutFigures shows the evidence with its bounds.
func rolloutFigures(r *api.Rollout) Node {
	if len(r.Figures) == 0 {
		return when(rolloutIsOpen(r), note(say("No version of the rollout is judged yet, so there is no evidence.")))
	}
	n := func(name string) string { return count(r.Figures[name]) }
	worse := "no evidence yet"
	if low, known := r.Figures["worse"]; known && low > -1 {
		worse = signedPoints(low) + " points"
		if mean, known := r.Figures["worse.mean"]; known {
			worse += "; mean " + signedPoints(mean)
		}
	}
	share := func(name string) string {
		low, known := r.Figures[name]
		if !known {
			return "?"
		}
		return points(low) + " %"
	}
	line := func(name, title, value, from string) Node {
		return h.Tr(rowName(h.Code(say("fleet."+name))), cell(say(title)), figure(say(value)), cell(say(from)), acts(rolloutClauses(r, name)))
	}
	return scroll("narrow", heads("Figure", "Lower bound of", "#Now", "From", "Decides"), rows(
		line("worse", "how much worse the new versions are", worse, n("measured")+" keys compared by gates, "+n("labelled")+" by outcomes"),
		line("failed", "the share of runs that fail", share("failed"), n("runs")+" runs"),
		line("refused", "the share of versions that gates refuse", share("refused"), n("keys")+" keys judged, "+n("promoted")+" promoted")))
}

// rolloutClauses names the stop clauses that have a figure.
func rolloutClauses(r *api.Rollout, figure string) Node {
	named := slices.DeleteFunc(slices.Clone(r.Stop), func(c string) bool { return !strings.Contains(c, "fleet."+figure) })
	return each(named, func(c *string) Node { return list(h.Code(say(titled(*c))), say(" ")) })
}

// holdOf writes the least time of a share, such as 24 h.
func holdOf(r *api.Rollout) string {
	if d, err := time.ParseDuration(r.Hold); err == nil {
		return short(d)
	}
	return word(r.Hold)
}

// rolledBack counts the keys that go back.
func rolledBack(r *api.Rollout) Node {
	if r.RolledBack+r.Remaining+r.Left == 0 {
		return nil
	}
	return list(h.P(say(fmt.Sprintf("%s %s gone back to the version before, %s still to go, %s cannot.", count(r.RolledBack), one(r.RolledBack, "key has", "keys have"), count(r.Remaining), count(r.Left)))),
		when(len(r.Why) > 0, details("Models that cannot go back", scroll("narrow", heads("Model", "Reason"), rows(g.Map(slices.Sorted(maps.Keys(r.Why)), func(model string) Node {
			return h.Tr(rowName(modelLink(model, 0)), cell(say(titled(r.Why[model]))))
		})...)))))
}

package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// actionTable lists all commands of the API that a person gives by hand.
func actionTable() []action {
	return slices.Concat(pauseActions(), runActions(), modelActions(), rolloutActions(), eventActions(), dataActions())
}

// The fields that several actions have.

func reasonField(required bool) field {
	return field{name: "reason", label: "Reason", hint: "shown later with the change", required: required}
}

func named1(name, label string) field { return field{name: name, label: label, required: true} }

// pauseActions pause and resume the four things that can be paused.
func pauseActions() (all []action) {
	for _, of := range []struct{ thing, plural, pause, resume string }{
		{"trigger", "triggers", "Its events wait. After it is resumed, they are delivered in order. Events that wait for longer than half of their stream's retention become dead letters.", "The waiting events are delivered in order."},
		{"schedule", "schedules", "It does not tick until it is resumed. Its setting missed selects which ticks of the pause are sent then.", "It ticks again. Its setting missed selects which ticks of the pause are sent."},
		{"recipe", "recipes", "Running attempts continue to their end. Requests wait, and become one run of each key when the recipe is resumed.", "Waiting runs begin when slots are free."},
		{"pool", "pools", "Running attempts continue to their end, and no attempt begins. Use it to empty a machine.", "Waiting runs begin when slots are free."},
	} {
		for _, verb := range []struct{ name, title, will, undo string }{{"pause", "Pause", of.pause, "resume"}, {"resume", "Resume", of.resume, "pause"}} {
			all = append(all, action{
				name: verb.name + "-" + of.thing, title: verb.title, heading: verb.title + " a " + of.thing, role: access.Operate, will: verb.will,
				fields: []field{named1(of.thing, strings.ToUpper(of.thing[:1])+of.thing[1:])},
				call: func(a arguments, _ bool) (call, error) {
					return call{path: "/api/v1/" + of.plural + "/" + a.Get(of.thing) + "/" + verb.name}, nil
				},
				command: func(a arguments) *commandLine { return newCommand(of.plural, verb.name, a.Get(of.thing)) },
				read: func(body []byte) (outcome, error) {
					return readChanged(body, verb.name+"d", "It was "+verb.name+"d before: nothing has changed.")
				},
				undo: verb.undo + "-" + of.thing,
			})
		}
	}
	return all
}

// selectionFields select runs that have no id in the form.
func selectionFields() []field {
	return []field{{name: "run", label: "Runs, one a line", kind: lines}, {name: "recipe", label: "Or all of this recipe"}, {name: "key", label: "Or all of this key"},
		{name: "state", label: "In these states", hint: "waiting,running"}, {name: "since", label: "Requested since", hint: "-1h or a time"},
		{name: "where", label: "Condition", hint: "subject LIKE 'test-%'"}}
}

func selectRuns(a arguments, dry bool) (s api.RunsSelected, err error) {
	s = api.RunsSelected{Runs: a.all("run"), Recipe: a.Get("recipe"), Key: a.Get("key"), Where: a.Get("where"), Reason: a.Get("reason"), DryRun: dry}
	for state := range strings.SplitSeq(a.Get("state"), ",") {
		if state = strings.TrimSpace(state); state != "" {
			s.States = append(s.States, tidemill.RunState(state))
		}
	}
	if s.Since, err = a.since("since", time.Now()); err != nil {
		return s, err
	}
	s.Rate, err = a.number("rate")
	return s, err
}

func selectionCommand(a arguments, words ...string) *commandLine {
	return newCommand(append(words, a.all("run")...)...).flag("recipe", a.Get("recipe")).flag("key", a.Get("key")).
		flag("state", a.Get("state")).flag("since", a.Get("since")).flag("where", a.Get("where"))
}

func rateField() field { return field{name: "rate", label: "No faster than", hint: "50/s"} }

// rateFlag returns a rate as the commands want it.
func rateFlag(a arguments) string {
	text := strings.TrimSpace(a.Get("rate"))
	if text == "" || strings.Contains(text, "/") {
		return text
	}
	return text + "/s"
}

func runActions() []action {
	return []action{
		{name: "start-runs", title: "Start…", heading: "Start runs of a recipe", role: access.Operate, dry: true,
			will:   "If a run of a key waits already, the request is merged into it. A recipe without keys is started without a key.",
			fields: []field{named1("recipe", "Recipe"), {name: "key", label: "Keys, one a line", kind: lines}, {name: "all", label: "All keys of the recipe", kind: checkbox}, {name: "where", label: "With all: condition", hint: "subject LIKE 'bot-%'"}, rateField(), {name: "priority", label: "Priority", hint: "0"}},
			call: func(a arguments, dry bool) (call, error) {
				rate, err := a.number("rate")
				if err != nil {
					return call{}, err
				}
				priority, err := a.whole("priority")
				return call{path: "/api/v1/runs", body: api.RunsAsked{Recipe: a.Get("recipe"), Keys: a.all("key"), All: a.flag("all"), Where: a.Get("where"), Rate: rate, Priority: priority, DryRun: dry}}, err
			},
			command: func(a arguments) *commandLine {
				return newCommand("runs", "start", a.Get("recipe")).flag("key", keyFlags(a)...).toggle("all", a.flag("all")).flag("where", a.Get("where")).flag("rate", rateFlag(a)).flag("priority", a.Get("priority"))
			},
			read: readRuns("cancel-runs")},
		{name: "cancel-runs", title: "Cancel…", heading: "Cancel runs", role: access.Operate, danger: true, dry: true,
			will:   "A waiting run ends at once. The command of a running one gets SIGTERM, so that it can save its state, and is killed if it does not exit.",
			fields: append(selectionFields(), reasonField(false)),
			call: func(a arguments, dry bool) (call, error) {
				s, err := selectRuns(a, dry)
				return call{path: "/api/v1/runs/cancel", body: s}, err
			},
			command: func(a arguments) *commandLine {
				return selectionCommand(a, "runs", "cancel").flag("reason", a.Get("reason"))
			},
			read: readRuns("retry-runs")},
		{name: "retry-runs", title: "Retry…", heading: "Retry runs that have ended", role: access.Operate, dry: true,
			will:   "Each gets a new run for the same events, with the newest data.",
			fields: append(selectionFields(), rateField()),
			call: func(a arguments, dry bool) (call, error) {
				s, err := selectRuns(a, dry)
				return call{path: "/api/v1/runs/retry", body: s}, err
			},
			command: func(a arguments) *commandLine { return selectionCommand(a, "runs", "retry").flag("rate", rateFlag(a)) },
			read:    readRuns("cancel-runs")},
	}
}

// keyFlags returns the keys as the flag --key of runs start takes them.
func keyFlags(a arguments) []string {
	keys := a.all("key")
	for i := range keys {
		keys[i] = strings.ReplaceAll(keys[i], ",", `\,`)
	}
	return keys
}

// promotion makes the call of an action on one model.
func promotion(path string) func(a arguments, dry bool) (call, error) {
	return func(a arguments, dry bool) (call, error) {
		name, number := splitVersion(a)
		version, err := arguments{url.Values{"version": {number}}}.whole("version")
		if err != nil {
			return call{}, err
		}
		body := api.PromotionAsked{Model: name, Version: version, Force: a.flag("force"), Reason: a.Get("reason"), DryRun: dry}
		if a.Get("basis") != "" {
			seen, err := a.whole("basis")
			if err != nil {
				return call{}, err
			}
			body.Basis = &seen
		}
		return call{path: "/api/v1/model/" + path, body: body}, nil
	}
}

// splitVersion returns the model and the version that it is about. The field of the models takes
// names such as intent/bot-42@3 too, so that several models may have different versions. A button writes an @ after the
// name of a model that ends like that of a version.
func splitVersion(a arguments) (model, version string) {
	text := strings.TrimSpace(a.Get("model"))
	model, version, err := tidemill.CutVersionName(text)
	if err != nil {
		model = text // the API says what is wrong
	}
	return model, cmp.Or(version, strings.TrimSpace(a.Get("version")))
}

// versionOf returns the name of a version, or of the model if no version is given.
func versionOf(a arguments) string {
	model, version := splitVersion(a)
	if version != "" && version != "0" {
		return model + "@" + version
	}
	return tidemill.WholeName(model)
}

func modelActions() []action {
	model, version := field{name: "model", label: "Models, one a line", kind: lines, required: true}, field{name: "version", label: "Version"}
	basis := field{name: "basis", label: "Only if the champion is still version", hint: "any"}
	return []action{
		{name: "promote", each: "model", title: "Promote…", heading: "Promote a version", role: access.Approve, dry: true,
			will:   "The version becomes the champion, and scorers use it within seconds. A version that its gate has refused needs force.",
			fields: []field{model, {name: "version", label: "Version", required: true}, {name: "force", label: "Also if its gate has refused it", kind: checkbox}, basis, reasonField(false)},
			call:   promotion("promote"),
			command: func(a arguments) *commandLine {
				return newCommand("promote", versionOf(a)).toggle("force", a.flag("force")).flag("reason", a.Get("reason"))
			},
			read: readPromotion("rollback")},
		{name: "refuse", each: "model", title: "Refuse…", heading: "Refuse a version", role: access.Approve, danger: true, dry: true,
			will:   "The version no longer waits for a person, and the champion stays. Promote it with force if you change your mind.",
			fields: []field{model, {name: "version", label: "Version", required: true}, basis, reasonField(false)},
			call:   promotion("refuse"),
			command: func(a arguments) *commandLine {
				return newCommand("refuse", versionOf(a)).flag("reason", a.Get("reason"))
			},
			read: readRefusal},
		{name: "rollback", each: "model", title: "Roll back…", heading: "Roll back a model", role: access.Approve, danger: true, dry: true,
			will:   "The previous champion, or the given one, becomes the champion again. The next version that passes its gate replaces it: pin it to keep it.",
			fields: []field{model, version, basis, reasonField(false)},
			call:   promotion("rollback"),
			command: func(a arguments) *commandLine {
				return newCommand("rollback", versionOf(a)).flag("reason", a.Get("reason"))
			},
			read: readPromotion("rollback")},
		{name: "rollback-since", title: "Roll back since…", heading: "Roll back all promotions since a time", role: access.Approve, danger: true, dry: true,
			will:   "Each selected model gets back its champion from before that time. Freeze promotions first, or the next version that passes replaces it.",
			fields: []field{{name: "since", label: "Promotions since", hint: "-2h or a time", required: true}, {name: "recipe", label: "Of this recipe"}, {name: "key", label: "Of this key"}, {name: "prefix", label: "With names that begin with"}, {name: "where", label: "Condition", hint: "subject LIKE 'bot-%'"}, {name: "all", label: "All models", kind: checkbox}, reasonField(false)},
			call: func(a arguments, dry bool) (call, error) {
				since, err := a.since("since", time.Now())
				if err != nil || since == nil {
					return call{}, err
				}
				return call{path: "/api/v1/models/rollback", body: api.RollbackAsked{Since: *since, Recipe: a.Get("recipe"), Key: a.Get("key"), Prefix: a.Get("prefix"), Where: a.Get("where"), All: a.flag("all"), Reason: a.Get("reason"), DryRun: dry}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("rollback").flag("since", a.Get("since")).flag("recipe", a.Get("recipe")).flag("key", a.Get("key")).flag("prefix", a.Get("prefix")).flag("where", a.Get("where")).toggle("all", a.flag("all")).flag("reason", a.Get("reason"))
			},
			read: readPromotions},
		{name: "pin", each: "model", title: "Pin…", heading: "Pin a version", role: access.Approve, dry: true,
			will:   "The version is the champion until it is unpinned, whatever the gate says of newer ones.",
			fields: []field{model, version, basis, reasonField(false)}, call: promotion("pin"),
			command: func(a arguments) *commandLine { return newCommand("pin", versionOf(a)).flag("reason", a.Get("reason")) },
			read:    readPromotion("unpin"), undo: "unpin"},
		{name: "unpin", each: "model", title: "Unpin…", heading: "Unpin a model", role: access.Approve, dry: true,
			will:   "The next version that passes its gate becomes the champion.",
			fields: []field{model, reasonField(false)}, call: promotion("unpin"),
			command: func(a arguments) *commandLine {
				return newCommand("unpin", versionOf(a)).flag("reason", a.Get("reason"))
			},
			read: readPromotion("pin"), undo: "pin"},
		freezing("freeze", "Freeze promotions…", "Freeze promotions by gates", "Runs continue and are judged. Versions that pass wait for a person. Promotions, rollbacks and pins by hand are still possible.", "thaw"),
		freezing("thaw", "Thaw…", "Thaw promotions", "Gates promote again. Versions that passed during the freeze still wait for a person.", "freeze"),
	}
}

// rolloutActions pause, resume and abort rollouts.
func rolloutActions() (all []action) {
	for _, c := range []struct {
		verb, title, heading, will, undo string
		danger                           bool
	}{
		{"pause", "Pause…", "Pause a rollout", "No further keys take part. The keys that take part continue, and the rollout still stops by itself.", "resume-rollout", false},
		{"resume", "Resume…", "Resume a rollout", "A paused rollout continues, and its present share is held from the beginning. A stopped one continues, and its evidence begins again. After an abort, another rollout of the same change may begin.", "pause-rollout", false},
		{"abort", "Abort…", "Abort a rollout", "The rollout ends, and its keys go back to the version before. New runs of all keys are made in the way before, until the config has another one. If you resume it, another rollout of the same change begins.", "resume-rollout", true},
	} {
		all = append(all, action{name: c.verb + "-rollout", title: c.title, heading: c.heading, role: access.Approve, danger: c.danger, dry: true, will: c.will,
			fields: []field{named1("recipe", "Recipe"), reasonField(false)},
			call: func(a arguments, dry bool) (call, error) {
				return call{path: "/api/v1/rollouts/" + a.Get("recipe") + "/" + c.verb, body: api.RolloutAsked{Reason: a.Get("reason"), DryRun: dry}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("rollouts", c.verb, a.Get("recipe")).flag("reason", a.Get("reason"))
			},
			read: readRollout(c.undo)})
	}
	return all
}

func freezing(name, title, heading, will, undo string) action {
	return action{name: name, title: title, heading: heading, role: access.Approve, will: will,
		fields: []field{{name: "recipe", label: "Recipe", hint: "all"}, reasonField(false)},
		call: func(a arguments, _ bool) (call, error) {
			return call{path: "/api/v1/promotions/" + name, body: api.FreezeAsked{Recipe: a.Get("recipe"), Reason: a.Get("reason")}}, nil
		},
		command: func(a arguments) *commandLine {
			return newCommand("promotions", name).flag("recipe", a.Get("recipe")).flag("reason", a.Get("reason"))
		},
		read: func(body []byte) (outcome, error) {
			return readChanged(body, "done", "It was so before: nothing has changed.")
		},
		undo: undo}
}

// letterFields select dead letters. The name of the field with a part of their reason differs,
// because a drop has a reason itself.
func letterFields() []field {
	return []field{{name: "id", label: "Dead letters, one a line", kind: lines}, {name: "trigger", label: "Or all of this trigger"}, {name: "scorer", label: "Of this scorer"}, {name: "with", label: "With this in their reason"},
		{name: "type", label: "Of this event type"}, {name: "key", label: "Of this key"}, {name: "stream", label: "Of this stream"}, {name: "since", label: "Written since", hint: "-1h or a time"}, {name: "until", label: "Written before", hint: "-7d or a time"}, {name: "all", label: "All open dead letters", kind: checkbox}}
}

func selectLetters(a arguments) api.LetterSelection {
	return api.LetterSelection{IDs: a.all("id"), Trigger: a.Get("trigger"), Scorer: a.Get("scorer"), Reason: a.Get("with"), Type: a.Get("type"), Key: a.Get("key"),
		Stream: a.Get("stream"), Since: a.Get("since"), Until: a.Get("until"), All: a.flag("all")}
}

func letterCommand(a arguments, verb, with string) *commandLine {
	return newCommand(append([]string{"dead-letters", verb}, a.all("id")...)...).flag("trigger", a.Get("trigger")).flag("scorer", a.Get("scorer")).flag(with, a.Get("with")).
		flag("type", a.Get("type")).flag("key", a.Get("key")).flag("stream", a.Get("stream")).flag("since", a.Get("since")).flag("until", a.Get("until")).toggle("all", a.flag("all"))
}

func eventActions() []action {
	return []action{
		{name: "replay-letters", title: "Replay…", heading: "Replay dead letters", role: access.Operate, dry: true,
			will:   "Each event goes only to the trigger that failed, in order of its key. An event that fails again is a new dead letter.",
			fields: append(letterFields(), rateField()),
			call: func(a arguments, dry bool) (call, error) {
				rate, err := a.number("rate")
				return call{path: "/api/v1/dead-letters/replay", body: api.LetterAsk{Selection: selectLetters(a), Rate: rate, DryRun: dry}}, err
			},
			command: func(a arguments) *commandLine { return letterCommand(a, "replay", "reason").flag("rate", rateFlag(a)) },
			read:    readLetters},
		{name: "drop-letters", title: "Drop…", heading: "Drop dead letters", role: access.Operate, danger: true, dry: true,
			will:   "They are no longer listed. Nothing is deleted: they stay on the stream dead-letters. Their receipts record your name and the reason.",
			fields: append(letterFields(), reasonField(true)),
			call: func(a arguments, dry bool) (call, error) {
				reason := a.Get("reason")
				if dry && reason == "" {
					reason = "dry run" // the API wants a reason for a dry run too, and does not store it
				}
				return call{path: "/api/v1/dead-letters/drop", body: api.LetterAsk{Selection: selectLetters(a), Reason: reason, DryRun: dry}}, nil
			},
			command: func(a arguments) *commandLine {
				return letterCommand(a, "drop", "with").flag("reason", a.Get("reason"))
			},
			read: readLetters},
		{name: "replay-trigger", title: "Replay a range…", heading: "Send a past range of events to a trigger again", role: access.Operate, dry: true,
			will:   "Only this trigger gets them, in order of each key, and only events that match. Other readers are not affected.",
			fields: []field{named1("trigger", "Trigger"), {name: "from", label: "From", hint: "beginning, an offset, -1h or a time", required: true}, {name: "to", label: "To", hint: "end"}, rateField()},
			call: func(a arguments, dry bool) (call, error) {
				rate, err := a.number("rate")
				return call{path: "/api/v1/triggers/" + a.Get("trigger") + "/replay", body: api.ReplayAsk{From: a.Get("from"), To: a.Get("to"), Rate: rate, DryRun: dry}}, err
			},
			command: func(a arguments) *commandLine {
				return newCommand("triggers", "replay", a.Get("trigger")).flag("from", a.Get("from")).flag("to", a.Get("to")).flag("rate", rateFlag(a))
			},
			read: readReplay, undo: "pause-trigger"},
		{name: "publish", title: "Publish…", heading: "Publish an event by hand", role: access.Publish,
			will: "The event is stored on the stream that claims its type, or on the named one. Recipes, triggers and scorers react to it as to any other. A second event with the same source and id is not stored.",
			fields: []field{named1("type", "Type"), {name: "subject", label: "Subject (the key)"}, {name: "data", label: "Data (JSON)", kind: area, hint: "{}"}, {name: "stream", label: "Stream", hint: "the one that claims the type"},
				{name: "source", label: "Source", hint: "/dashboard"}, {name: "id", label: "Id", hint: "a random one"}},
			call: publishCall, read: readPublished,
			command: func(a arguments) *commandLine {
				c := newCommand("publish", a.Get("type")).flag("subject", a.Get("subject"))
				if data := a.Get("data"); data != "" {
					c.words = append(c.words, "-d", data)
				}
				return c.flag("stream", a.Get("stream")).flag("source", a.Get("source")).flag("id", a.Get("id"))
			}},
		{name: "label", title: "Give its truth…", heading: "Give the true label of an answer", role: access.Operate,
			will:   "The label is stored on the stream of the scorer's labels, with your name and the reason, and counts like one that arrives there. The last label of an answer is its truth.",
			fields: []field{named1("scorer", "Scorer"), {name: "event", label: "Answered event", hint: "its place, such as messages/3/17, or its id", required: true}, {name: "truth", label: "True label", required: true}, reasonField(false), {name: "source", label: "Source of the event, if its id is given"}},
			call: func(a arguments, _ bool) (call, error) {
				return call{path: "/api/v1/scorers/" + a.Get("scorer") + "/labels", body: api.LabelAsk{Event: strings.TrimSpace(a.Get("event")), Truth: strings.TrimSpace(a.Get("truth")), Source: a.Get("source"), Reason: a.Get("reason")}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("label", strings.TrimSpace(a.Get("event")), cmp.Or(strings.TrimSpace(a.Get("truth")), "TRUTH")).flag("scorer", a.Get("scorer")).flag("source", a.Get("source")).flag("reason", a.Get("reason"))
			},
			read: readLabel},
		{name: "rescore", title: "Score again…", heading: "Score a part of a scorer's stream again", role: access.Operate,
			will:   "The answers go to another stream, so the scorer and its readers are not affected. A long range takes several requests: continue with the id of the answer.",
			fields: []field{named1("scorer", "Scorer"), {name: "from", label: "From", hint: "-1h or a time"}, {name: "to", label: "To", hint: "end"}, {name: "version", label: "Version", hint: "champion, previous or a number"}, {name: "to-stream", label: "Stream for the answers"}, {name: "resume", label: "Or continue", hint: "id of an interrupted one"}},
			call: func(a arguments, _ bool) (call, error) {
				return call{path: "/api/v1/scorers/" + a.Get("scorer") + "/rescore", body: api.RescoreAsk{From: a.Get("from"), To: a.Get("to"), Version: a.Get("version"), ToStream: a.Get("to-stream"), Resume: a.Get("resume")}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("rescore", a.Get("scorer")).flag("from", a.Get("from")).flag("to", a.Get("to")).flag("version", a.Get("version")).flag("to-stream", a.Get("to-stream")).flag("resume", a.Get("resume"))
			},
			read: readRescore},
	}
}

// publishCall makes the request with an event. The form's own key of the request is the id of an
// event without one, so that a form that is sent twice publishes once.
func publishCall(a arguments, _ bool) (call, error) {
	e := map[string]any{"specversion": "1.0", "type": a.Get("type"), "source": "/dashboard", "id": a.Get("request")}
	for _, name := range []string{"subject", "source", "id"} {
		if value := a.Get(name); value != "" {
			e[name] = value
		}
	}
	if data := a.Get("data"); data != "" {
		if !json.Valid([]byte(data)) {
			return call{}, fmt.Errorf("data: the text is not JSON; put a text into quotes")
		}
		e["data"], e["datacontenttype"] = json.RawMessage(data), "application/json"
	}
	path := "/events"
	if stream := a.Get("stream"); stream != "" {
		path = "/streams/" + stream
	}
	return call{path: path, body: e, media: "application/cloudevents+json"}, nil
}

func dataActions() []action {
	return []action{
		{name: "forget", title: "Forget…", heading: "Forget a key", role: access.Operate, danger: true, dry: true,
			will:   "It ends the key's runs and retires its models. It removes its datasets, logs and checkpoints, and drops its dead letters. Nothing undoes it.",
			fields: []field{named1("key", "Key"), reasonField(false)},
			call: func(a arguments, dry bool) (call, error) {
				return call{path: "/api/v1/keys/forget", body: api.KeyAsked{Key: a.Get("key"), Reason: a.Get("reason"), DryRun: dry}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("forget", a.Get("key")).flag("reason", a.Get("reason")).toggle("yes", true)
			},
			read: readForget},
		{name: "branch", title: "Branch…", heading: "Make a branch of a dataset", role: access.Operate,
			will:   "A branch is a name for a commit, so no file is copied. New commits follow from there.",
			fields: []field{named1("dataset", "Dataset"), {name: "branch", label: "New branch", required: true}, {name: "from", label: "From", hint: "main"}},
			call: func(a arguments, _ bool) (call, error) {
				return call{path: "/api/v1/data/branches", body: api.BranchAsked{Dataset: a.Get("dataset"), Branch: a.Get("branch"), From: a.Get("from")}}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("data", "branch", a.Get("dataset"), a.Get("branch")).flag("from", a.Get("from"))
			},
			read: readBranch},
		{name: "gc", title: "Collect…", heading: "Remove unused objects from the store", role: access.Operate, danger: true, dry: true,
			will:   "It keeps the objects of every commit, the inputs of live runs, the outputs of known runs, and objects younger than the given age. Nothing undoes it.",
			fields: []field{{name: "older", label: "Keep objects younger than", hint: "24h"}, {name: "force", label: "Also if most of the newest runs are unknown", kind: checkbox}},
			call: func(a arguments, dry bool) (call, error) {
				body := api.CollectAsked{Force: a.flag("force"), DryRun: dry}
				if text := a.Get("older"); text != "" {
					d, err := time.ParseDuration(text)
					if err != nil {
						return call{}, fmt.Errorf("older: %q is not a duration such as 48h", word(text))
					}
					body.OlderSeconds = d.Seconds()
				}
				return call{path: "/api/v1/data/gc", body: body}, nil
			},
			command: func(a arguments) *commandLine {
				return newCommand("data", "gc").flag("older", a.Get("older")).toggle("force", a.flag("force"))
			},
			read: readCollected},
	}
}

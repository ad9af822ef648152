package tidemill

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Types of events that anyone may publish and that Tidemill knows.
const (
	TypeNewData      = "new-data"
	TypeBotCreated   = "bot-created"
	TypeBotDeleted   = "bot-deleted"
	TypeScheduleTick = "schedule-tick"
)

// Types of events that only Tidemill publishes.
const (
	TypeRunRequested  = "tidemill.run.requested"
	TypeRunStarted    = "tidemill.run.started"
	TypeRunSeen       = "tidemill.run.seen"
	TypeRunFinished   = "tidemill.run.finished"
	TypeRunCancelled  = "tidemill.run.cancelled"
	TypeRunCommitted  = "tidemill.run.committed"
	TypeRunForgotten  = "tidemill.run.forgotten"
	TypeRunProgressed = "tidemill.run.progressed"

	TypeModelRegistered        = "tidemill.model.registered"
	TypeModelPromotionProposed = "tidemill.model.promotion-proposed"
	TypeModelPromoted          = "tidemill.model.promoted"
	TypeTrialBegun             = "tidemill.trial.begun"
	TypeModelRefused           = "tidemill.model.refused"
	TypeModelRolledBack        = "tidemill.model.rolled-back"
	TypeModelPinned            = "tidemill.model.pinned"
	TypeModelUnpinned          = "tidemill.model.unpinned"
	TypeModelAwaiting          = "tidemill.model.awaiting"
	TypeModelRetired           = "tidemill.model.retired"
	TypeModelCanary            = "tidemill.model.canary"
	TypeModelUnloadable        = "tidemill.model.unloadable"
	TypeModelLoaded            = "tidemill.model.loaded"
	TypeModelDrifted           = "tidemill.model.drifted"
	TypeModelDriftEnded        = "tidemill.model.drift-ended"
	TypeModelMeasured          = "tidemill.model.measured"

	TypeKeyForgetting = "tidemill.key.forgetting"
	TypeKeyForgotten  = "tidemill.key.forgotten"
	TypeKeyPassed     = "tidemill.key.passed"

	TypePromotionsFrozen = "tidemill.promotions.frozen"
	TypePromotionsThawed = "tidemill.promotions.thawed"

	TypeScored               = "tidemill.scored"
	TypeScorerSwapped        = "tidemill.scorer.swapped"
	TypeEventDeadLettered    = "tidemill.event.dead-lettered"
	TypeEventResolved        = "tidemill.event.resolved"
	TypeEventReplayRequested = "tidemill.event.replay-requested"

	TypeTriggerPaused          = "tidemill.trigger.paused"
	TypeTriggerResumed         = "tidemill.trigger.resumed"
	TypeTriggerReplayRequested = "tidemill.trigger.replay-requested"
	TypeTriggerReplayed        = "tidemill.trigger.replayed"
	TypeSchedulePaused         = "tidemill.schedule.paused"
	TypeScheduleResumed        = "tidemill.schedule.resumed"
	TypeRecipePaused           = "tidemill.recipe.paused"
	TypeRecipeResumed          = "tidemill.recipe.resumed"
	TypePoolPaused             = "tidemill.pool.paused"
	TypePoolResumed            = "tidemill.pool.resumed"

	TypeRolloutBegun    = "tidemill.rollout.begun"
	TypeRolloutAdvanced = "tidemill.rollout.advanced"
	TypeRolloutStopped  = "tidemill.rollout.stopped"
	TypeRolloutEnded    = "tidemill.rollout.ended"
	TypeRolloutPaused   = "tidemill.rollout.paused"
	TypeRolloutResumed  = "tidemill.rollout.resumed"
	TypeRolloutAborted  = "tidemill.rollout.aborted"

	TypeParkedBegun   = "tidemill.parked.begun"
	TypeParkedSettled = "tidemill.parked.settled"
	TypeClockMarked   = "tidemill.clock.marked"
	TypeGroupRecorded = "tidemill.group.recorded"

	TypeScorerReturned = "tidemill.scorer.returned"

	TypeOutcome          = "tidemill.outcome"
	TypeOutcomeCorrected = "tidemill.outcome.corrected"
	TypeLabel            = "tidemill.label"
)

// Keying names the record key of a type.
type Keying string

// The ways to key a record.
const (
	KeyedBySubject  Keying = "partitionkey, else subject"
	KeyedByRun      Keying = "recipe/key"
	KeyedByModel    Keying = "model"
	KeyedByOriginal Keying = "as the original event"
	KeyedByKey      Keying = "key of the model"
)

// Entry describes one type in the catalogue.
type Entry struct {
	Type    string
	Stream  string // stream of such events; empty if the writer's config names it
	Ours    bool   // only Tidemill publishes it
	Key     Keying
	Version int      // version of the data's schema; 0 if the data is free
	Summary string   // one line
	Attrs   []string // extensions of such an event; those in causal first, if it is ours
}

// Catalogue lists every type that Tidemill knows. The caller may change the list.
func Catalogue() []Entry {
	entries := make([]Entry, len(catalogue))
	for i := range catalogue {
		entries[i] = catalogue[i].clone()
	}
	return entries
}

// Lookup finds a type in the catalogue.
func Lookup(typ string) (Entry, bool) {
	i := find(typ)
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i].clone(), true
}

// Schema is the dataschema of a type's data, or empty if the catalogue prescribes none.
func Schema(typ string) string {
	i := find(typ)
	if i < 0 || catalogue[i].Version == 0 {
		return ""
	}
	return "https://tidemill.dev/schemas/" + typ + "/" + strconv.Itoa(catalogue[i].Version)
}

func find(typ string) int {
	return slices.IndexFunc(catalogue, func(e Entry) bool { return e.Type == typ })
}

// clone copies an entry. The copy of a Tidemill entry also has the attributes in causal.
func (e Entry) clone() Entry {
	var attrs []string
	if e.Ours {
		attrs = append(attrs, causal...)
	}
	e.Attrs = append(attrs, e.Attrs...)
	return e
}

// causal lists the attributes that every event of Tidemill has.
var causal = []string{AttrCausationID, AttrCausationSource, AttrCorrelationID, AttrTraceParent}

// catalogue must not be changed.
var catalogue = []Entry{
	{TypeNewData, StreamEvents, false, KeyedBySubject, 1,
		"there is new data to learn from", []string{AttrDataset, AttrBranch, AttrCommit}},
	{TypeBotCreated, StreamEvents, false, KeyedBySubject, 0, "a bot was created", nil},
	{TypeBotDeleted, StreamEvents, false, KeyedBySubject, 0, "a bot was deleted", nil},
	{TypeScheduleTick, StreamEvents, false, KeyedBySubject, 1,
		"a schedule fired", []string{AttrSchedule}},

	{TypeRunRequested, StreamFacts, true, KeyedByRun, 1,
		"a run is requested", []string{AttrRecipe, AttrRun, AttrTrigger, AttrAuthID}},
	{TypeRunStarted, StreamFacts, true, KeyedByRun, 1,
		"an attempt has begun", []string{AttrRecipe, AttrRun, AttrAttempt}},
	{TypeRunSeen, StreamFacts, true, KeyedByRun, 1,
		"a controller saw on which node an attempt runs, or why its container does not run yet", []string{AttrRecipe, AttrRun, AttrAttempt}},
	{TypeRunFinished, StreamFacts, true, KeyedByRun, 1,
		"an attempt has ended", []string{AttrRecipe, AttrRun, AttrAttempt, AttrOutcome, AttrModel, AttrRollout}},
	{TypeRunCommitted, StreamFacts, true, KeyedByRun, 1,
		"the output of a run was committed to its dataset, or is lost", []string{AttrRecipe, AttrRun, AttrDataset, AttrBranch, AttrCommit}},
	{TypeRunCancelled, StreamFacts, true, KeyedByRun, 1,
		"a run is to be cancelled", []string{AttrRecipe, AttrRun, AttrAuthID}},
	{TypeRunForgotten, StreamFacts, true, KeyedByRun, 1,
		"a key is removed, with its runs of one recipe", []string{AttrRecipe, AttrAuthID}},
	{TypeRunProgressed, StreamProgress, true, KeyedByRun, 1,
		"an attempt has reached a step", []string{AttrRecipe, AttrRun, AttrAttempt}},

	{TypeModelRegistered, StreamFacts, true, KeyedByModel, 1,
		"a version was registered", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelPromotionProposed, StreamFacts, true, KeyedByModel, 1,
		"a gate has judged a version, or a person asks for a change of the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun, AttrAuthID}},
	{TypeModelPromoted, StreamFacts, true, KeyedByModel, 1,
		"a version has become the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun, AttrAuthID}},
	{TypeTrialBegun, StreamFacts, true, KeyedByModel, 1,
		"a version passed its gate, and answers the stream beside the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelRefused, StreamFacts, true, KeyedByModel, 1,
		"a version failed its gate or trial, or a person refused it", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelRolledBack, StreamFacts, true, KeyedByModel, 1,
		"an earlier version is the champion again", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelPinned, StreamFacts, true, KeyedByModel, 1,
		"the champion stays until it is unpinned", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelUnpinned, StreamFacts, true, KeyedByModel, 1,
		"the champion may change again", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelAwaiting, StreamFacts, true, KeyedByModel, 1,
		"a version passed its gate, and a person has to promote it", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelRetired, StreamFacts, true, KeyedByModel, 1,
		"a model's key is removed, with the model's versions", []string{AttrModel, AttrAuthID}},
	{TypeModelCanary, StreamFacts, true, KeyedByModel, 1,
		"a version answers a share of the events beside the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelUnloadable, StreamFacts, true, KeyedByModel, 1,
		"a scorer could not load the champion, so the previous version answers, or none; or it cannot serve the canary", []string{AttrModel, AttrModelVersion}},
	{TypeModelLoaded, StreamFacts, true, KeyedByModel, 1,
		"a scorer has loaded the champion or the canary that it could not load before", []string{AttrModel, AttrModelVersion}},
	{TypeModelDrifted, StreamFacts, true, KeyedByModel, 1,
		"a figure of the champion's answers differs from its first answers", []string{AttrModel, AttrModelVersion, AttrScorer, AttrFigure}},
	{TypeModelDriftEnded, StreamFacts, true, KeyedByModel, 1,
		"a figure that had drifted is again like the champion's first answers", []string{AttrModel, AttrModelVersion, AttrScorer, AttrFigure}},
	{TypeModelMeasured, StreamFacts, true, KeyedByModel, 1,
		"how many answers of a version were right, by their outcomes", []string{AttrModel, AttrModelVersion, AttrScorer}},

	{TypeKeyForgetting, StreamFacts, true, KeyedBySubject, 1,
		"a key is to be forgotten", []string{AttrAuthID}},
	{TypeKeyForgotten, StreamFacts, true, KeyedBySubject, 1,
		"receipt: a key has been forgotten", []string{AttrAuthID}},

	{TypeScored, "", true, KeyedBySubject, 1,
		"an event was scored by its key's champion", []string{AttrModel, AttrModelVersion}},
	{TypeScorerSwapped, StreamProgress, true, KeyedByModel, 1,
		"a version scores a partition's events from here on", []string{AttrModel, AttrModelVersion}},
	{TypeEventDeadLettered, StreamDeadLetters, true, KeyedByOriginal, 1,
		"an event could not be delivered, or scored", []string{AttrTrigger, AttrScorer, AttrRecipe}},
	{TypeEventResolved, StreamDeadLetters, true, KeyedByOriginal, 1,
		"a dead letter was replayed or dropped", []string{AttrTrigger, AttrRecipe, AttrAuthID}},
	{TypeEventReplayRequested, StreamCommands, true, KeyedBySubject, 1,
		"dead letters are to be delivered again", []string{AttrTrigger, AttrAuthID}},

	{TypeTriggerPaused, StreamCommands, true, KeyedBySubject, 1,
		"a trigger is paused: its events wait", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerResumed, StreamCommands, true, KeyedBySubject, 1,
		"a trigger is resumed", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerReplayRequested, StreamCommands, true, KeyedBySubject, 1,
		"a trigger is to get a past range of its events again", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerReplayed, StreamCommands, true, KeyedBySubject, 1,
		"a trigger has got a past range of its events again", []string{AttrTrigger}},
	{TypeSchedulePaused, StreamCommands, true, KeyedBySubject, 1,
		"a schedule is paused: it does not tick", []string{AttrSchedule, AttrAuthID}},
	{TypeScheduleResumed, StreamCommands, true, KeyedBySubject, 1,
		"a schedule is resumed", []string{AttrSchedule, AttrAuthID}},
	{TypeRecipePaused, StreamCommands, true, KeyedBySubject, 1,
		"a recipe is paused: its runs do not begin", []string{AttrRecipe, AttrAuthID}},
	{TypeRecipeResumed, StreamCommands, true, KeyedBySubject, 1,
		"a recipe is resumed", []string{AttrRecipe, AttrAuthID}},
	{TypePoolPaused, StreamCommands, true, KeyedBySubject, 1,
		"a pool is paused: no attempt begins in it", []string{AttrPool, AttrAuthID}},
	{TypePoolResumed, StreamCommands, true, KeyedBySubject, 1,
		"a pool is resumed", []string{AttrPool, AttrAuthID}},

	{TypeKeyPassed, StreamCommands, true, KeyedBySubject, 1,
		"a key is removed: its earlier events are not delivered any more", []string{AttrAuthID}},

	{TypePromotionsFrozen, StreamCommands, true, KeyedBySubject, 1,
		"no gate promotes a version, of one recipe or of all", []string{AttrRecipe, AttrAuthID}},
	{TypePromotionsThawed, StreamCommands, true, KeyedBySubject, 1,
		"gates may promote versions again", []string{AttrRecipe, AttrAuthID}},

	{TypeRolloutBegun, StreamCommands, true, KeyedBySubject, 1,
		"a recipe has changed: a share of its keys is trained the new way", []string{AttrRecipe}},
	{TypeRolloutAdvanced, StreamCommands, true, KeyedBySubject, 1,
		"a greater share of the keys takes part in a rollout", []string{AttrRecipe}},
	{TypeRolloutStopped, StreamCommands, true, KeyedBySubject, 1,
		"a rollout has stopped by itself, and its keys are rolled back", []string{AttrRecipe}},
	{TypeRolloutEnded, StreamCommands, true, KeyedBySubject, 1,
		"a rollout has ended: all keys are trained the same way", []string{AttrRecipe}},
	{TypeRolloutPaused, StreamCommands, true, KeyedBySubject, 1,
		"a rollout is paused: it does not advance", []string{AttrRecipe, AttrAuthID}},
	{TypeRolloutResumed, StreamCommands, true, KeyedBySubject, 1,
		"a rollout is resumed", []string{AttrRecipe, AttrAuthID}},
	{TypeRolloutAborted, StreamCommands, true, KeyedBySubject, 1,
		"a rollout is aborted, and its keys are rolled back", []string{AttrRecipe, AttrAuthID}},

	{TypeOutcome, StreamOutcomes, true, KeyedByKey, 1,
		"an answer together with its truth", []string{AttrModel, AttrModelVersion, AttrScorer}},
	{TypeOutcomeCorrected, StreamOutcomes, true, KeyedByKey, 1,
		"a later label has changed the truth of an answer", []string{AttrModel, AttrModelVersion, AttrScorer}},
	{TypeLabel, "", true, KeyedByOriginal, 1,
		"a person has given the truth of an answer", []string{AttrScorer, AttrAuthID}},
	{TypeParkedBegun, "", true, KeyedByOriginal, 1,
		"the triggers of a partition, and the offset at which each begins", nil},
	{TypeParkedSettled, "", true, KeyedByOriginal, 1,
		"parked events have been delivered or dead-lettered", nil},
	{TypeScorerReturned, "", true, KeyedByOriginal, 1,
		"events that waited for a scorer's models need not wait any more", nil},
	{TypeClockMarked, StreamClock, true, KeyedBySubject, 1,
		"the progress of schedules", []string{AttrSchedule}},
	{TypeGroupRecorded, StreamGroupOffsets, true, KeyedBySubject, 1,
		"how far a consumer group has read a partition", nil},
}

// Extension attributes of events. What users filter on is an attribute.
const (
	AttrCausationID     = "causationid"     // id of the event that caused this one
	AttrCausationSource = "causationsource" // its source
	AttrCorrelationID   = "correlationid"   // id that a whole chain of causes shares
	AttrTraceParent     = "traceparent"     // W3C trace context
	AttrTraceState      = "tracestate"      // W3C trace state, an addition of tracing systems
	AttrAuthID          = "authid"          // identity of the person who acted, if a person did
	AttrPartitionKey    = "partitionkey"    // record key, if not the subject

	AttrRecipe       = "recipe"
	AttrRun          = "run"
	AttrAttempt      = "attempt"
	AttrOutcome      = "outcome" // state of the run after the attempt: retrying, succeeded, failed or cancelled
	AttrPool         = "pool"
	AttrModel        = "model"
	AttrModelVersion = "modelversion"
	AttrDataset      = "dataset"
	AttrBranch       = "branch"
	AttrCommit       = "commit"
	AttrTrigger      = "trigger"
	AttrScorer       = "scorer"
	AttrLabelField   = "labelfield" // of an answer: value that its label has too, if the scorer matches labels by a field
	AttrLabelGroup   = "labelgroup" // of an answer: group whose answers depend on each other
	AttrRollout      = "rollout"    // rollout whose new way a run was made
	AttrSchedule     = "schedule"
	AttrFigure       = "figure" // figure of a model that has drifted
	AttrHops         = "hops"   // number of replies in the chain of causes; bounds a loop of triggers
)

const (
	ownTypes   = "tidemill."
	ownSources = "/tidemill/"
)

// Reserved returns an error if an event from outside has a type or a source that only
// Tidemill itself may use.
func Reserved(typ, source string) error {
	if ReservedType(typ) {
		return fmt.Errorf("type %q is reserved: types that begin with %q are Tidemill's own; publish under a type of yours",
			typ, ownTypes)
	}
	if typ == TypeScheduleTick {
		return fmt.Errorf("type %q is reserved: only Tidemill's clock publishes ticks, because a tick can start a run of every key; publish under a type of yours", typ)
	}
	if strings.HasPrefix(source, ownSources) {
		return fmt.Errorf("source %q is reserved: sources that begin with %q are Tidemill's own; name the program that publishes",
			source, ownSources)
	}
	return nil
}

// ReservedType reports whether only Tidemill may publish the type.
func ReservedType(typ string) bool { return strings.HasPrefix(typ, ownTypes) }

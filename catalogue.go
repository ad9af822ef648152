package tidemill

import (
	"slices"
	"strconv"
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
	TypeModelRefused           = "tidemill.model.refused"
	TypeModelRolledBack        = "tidemill.model.rolled-back"
	TypeModelPinned            = "tidemill.model.pinned"
	TypeModelUnpinned          = "tidemill.model.unpinned"
	TypeModelAwaiting          = "tidemill.model.awaiting"
	TypeModelRetired           = "tidemill.model.retired"
	TypeModelUnloadable        = "tidemill.model.unloadable"

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

	TypeParkedBegun   = "tidemill.parked.begun"
	TypeParkedSettled = "tidemill.parked.settled"
	TypeClockMarked   = "tidemill.clock.marked"

	TypeScorerReturned = "tidemill.scorer.returned"
)

// Keying says what a type's record key is.
type Keying string

// The ways to key a record.
const (
	KeyedBySubject  Keying = "partitionkey, else subject"
	KeyedByRun      Keying = "recipe/key"
	KeyedByModel    Keying = "model"
	KeyedByOriginal Keying = "as the event it tells of"
)

// Entry is what the catalogue says of one type.
type Entry struct {
	Type    string
	Stream  string // home; empty where the writer's config names it
	Ours    bool   // only Tidemill publishes it
	Key     Keying
	Version int      // of the schema of the data; 0 if the data is free
	Summary string   // one line
	Attrs   []string // extensions, beyond those in causal, that it carries
}

// Catalogue lists every type that Tidemill knows. The list is the caller's.
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

// Schema is the dataschema of a type's data, or empty if the catalogue
// prescribes none.
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

// clone also adds what every event of ours carries.
func (e Entry) clone() Entry {
	var attrs []string
	if e.Ours {
		attrs = append(attrs, causal...)
	}
	e.Attrs = append(attrs, e.Attrs...)
	return e
}

// causal is what every event of ours carries.
var causal = []string{AttrCausationID, AttrCausationSource, AttrCorrelationID, AttrTraceParent}

// catalogue is read only.
var catalogue = []Entry{
	{TypeNewData, StreamEvents, false, KeyedBySubject, 1,
		"there is new data to learn from", []string{AttrDataset, AttrBranch, AttrCommit}},
	{TypeBotCreated, StreamEvents, false, KeyedBySubject, 0, "a bot has come", nil},
	{TypeBotDeleted, StreamEvents, false, KeyedBySubject, 0, "a bot has gone", nil},
	{TypeScheduleTick, StreamEvents, false, KeyedBySubject, 1,
		"a schedule's time has come", []string{AttrSchedule}},

	{TypeRunRequested, StreamFacts, true, KeyedByRun, 1,
		"a run is wanted", []string{AttrRecipe, AttrRun, AttrTrigger, AttrAuthID}},
	{TypeRunStarted, StreamFacts, true, KeyedByRun, 1,
		"an attempt has begun", []string{AttrRecipe, AttrRun, AttrAttempt}},
	{TypeRunSeen, StreamFacts, true, KeyedByRun, 1,
		"a controller has seen of an attempt what its agent cannot tell: where it is, or what it waits for", []string{AttrRecipe, AttrRun, AttrAttempt}},
	{TypeRunFinished, StreamFacts, true, KeyedByRun, 1,
		"an attempt has ended, well or not", []string{AttrRecipe, AttrRun, AttrAttempt, AttrOutcome, AttrModel}},
	{TypeRunCommitted, StreamFacts, true, KeyedByRun, 1,
		"what a run made is on its dataset", []string{AttrRecipe, AttrRun, AttrDataset, AttrBranch, AttrCommit}},
	{TypeRunCancelled, StreamFacts, true, KeyedByRun, 1,
		"a run is no longer wanted", []string{AttrRecipe, AttrRun, AttrAuthID}},
	{TypeRunForgotten, StreamFacts, true, KeyedByRun, 1,
		"a key has gone, and its runs with it", []string{AttrRecipe, AttrAuthID}},
	{TypeRunProgressed, StreamProgress, true, KeyedByRun, 1,
		"an attempt has come to a step", []string{AttrRecipe, AttrRun, AttrAttempt}},

	{TypeModelRegistered, StreamFacts, true, KeyedByModel, 1,
		"a version exists", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelPromotionProposed, StreamFacts, true, KeyedByModel, 1,
		"a version was judged against a champion, or a person wants it to be the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun, AttrAuthID}},
	{TypeModelPromoted, StreamFacts, true, KeyedByModel, 1,
		"a version is the champion", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun, AttrAuthID}},
	{TypeModelRefused, StreamFacts, true, KeyedByModel, 1,
		"a version failed its gate", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelRolledBack, StreamFacts, true, KeyedByModel, 1,
		"an earlier version is the champion again", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelPinned, StreamFacts, true, KeyedByModel, 1,
		"the champion stays until it is unpinned", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelUnpinned, StreamFacts, true, KeyedByModel, 1,
		"the champion need not stay any more", []string{AttrModel, AttrModelVersion, AttrAuthID}},
	{TypeModelAwaiting, StreamFacts, true, KeyedByModel, 1,
		"a version passed its gate, and a person has to promote it", []string{AttrModel, AttrModelVersion, AttrRecipe, AttrRun}},
	{TypeModelRetired, StreamFacts, true, KeyedByModel, 1,
		"a model's key has gone, and its versions with it", []string{AttrModel, AttrAuthID}},
	{TypeModelUnloadable, StreamFacts, true, KeyedByModel, 1,
		"a scorer could not load the champion and kept the one before", []string{AttrModel, AttrModelVersion}},

	{TypeKeyForgetting, StreamFacts, true, KeyedBySubject, 1,
		"somebody wants a key forgotten", []string{AttrAuthID}},
	{TypeKeyForgotten, StreamFacts, true, KeyedBySubject, 1,
		"a key has been forgotten: the receipt", []string{AttrAuthID}},

	{TypeScored, "", true, KeyedBySubject, 1,
		"an event was scored by its key's champion", []string{AttrModel, AttrModelVersion}},
	{TypeScorerSwapped, StreamProgress, true, KeyedByModel, 1,
		"a version scores a partition's events from here on", []string{AttrModel, AttrModelVersion}},
	{TypeEventDeadLettered, StreamDeadLetters, true, KeyedByOriginal, 1,
		"an event could not be delivered, or scored", []string{AttrTrigger, AttrScorer}},
	{TypeEventResolved, StreamDeadLetters, true, KeyedByOriginal, 1,
		"a dead letter was replayed or dropped", []string{AttrTrigger, AttrAuthID}},
	{TypeEventReplayRequested, StreamCommands, true, KeyedBySubject, 1,
		"dead letters shall be delivered after all", []string{AttrTrigger, AttrAuthID}},

	{TypeTriggerPaused, StreamCommands, true, KeyedBySubject, 1,
		"a trigger's events shall wait", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerResumed, StreamCommands, true, KeyedBySubject, 1,
		"a trigger's events need not wait any more", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerReplayRequested, StreamCommands, true, KeyedBySubject, 1,
		"a trigger shall get a past range of its events again", []string{AttrTrigger, AttrAuthID}},
	{TypeTriggerReplayed, StreamCommands, true, KeyedBySubject, 1,
		"a trigger has got a past range of its events again", []string{AttrTrigger}},
	{TypeSchedulePaused, StreamCommands, true, KeyedBySubject, 1,
		"a schedule shall not tick", []string{AttrSchedule, AttrAuthID}},
	{TypeScheduleResumed, StreamCommands, true, KeyedBySubject, 1,
		"a schedule shall tick again", []string{AttrSchedule, AttrAuthID}},
	{TypeRecipePaused, StreamCommands, true, KeyedBySubject, 1,
		"a recipe's runs shall not begin", []string{AttrRecipe, AttrAuthID}},
	{TypeRecipeResumed, StreamCommands, true, KeyedBySubject, 1,
		"a recipe's runs may begin again", []string{AttrRecipe, AttrAuthID}},
	{TypePoolPaused, StreamCommands, true, KeyedBySubject, 1,
		"no attempt shall begin in a pool", []string{AttrPool, AttrAuthID}},
	{TypePoolResumed, StreamCommands, true, KeyedBySubject, 1,
		"attempts may begin in a pool again", []string{AttrPool, AttrAuthID}},

	{TypeKeyPassed, StreamCommands, true, KeyedBySubject, 1,
		"a key has gone: its events that came before are not delivered any more", []string{AttrAuthID}},

	{TypePromotionsFrozen, StreamCommands, true, KeyedBySubject, 1,
		"no version of a recipe, or of any, shall be promoted by its gate", []string{AttrRecipe, AttrAuthID}},
	{TypePromotionsThawed, StreamCommands, true, KeyedBySubject, 1,
		"versions may be promoted by their gates again", []string{AttrRecipe, AttrAuthID}},

	{TypeParkedBegun, "", true, KeyedByOriginal, 1,
		"a partition's triggers, and from where each gets its events", nil},
	{TypeParkedSettled, "", true, KeyedByOriginal, 1,
		"parked events have been delivered or dead-lettered", nil},
	{TypeScorerReturned, "", true, KeyedByOriginal, 1,
		"events that waited for a scorer's models have been dealt with", nil},
	{TypeClockMarked, StreamClock, true, KeyedBySubject, 1,
		"how far schedules have come", []string{AttrSchedule}},
}

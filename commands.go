package tidemill

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Command is an event of the stream commands, as far as its fold reads it.
type Command struct {
	Offset  int64
	ID      string
	Type    string
	Subject string    // the trigger's or schedule's name
	By      string    // who did it; empty where the door is open
	At      time.Time // when
	Data    []byte    // JSON
}

// Commands is what people have asked for and what has come of it: the fold of the
// stream of acts. It ignores what it does not know, and an act that comes
// again. It is not safe for concurrent use; hand out a [Commands.Clone].
type Commands struct {
	next      int64
	triggers  map[string]Pause
	schedules map[string]Pause
	recipes   map[string]Pause
	pools     map[string]Pause
	freezes   map[string]Pause
	passed    map[string]map[string][]int64 // by key and stream: where its end lies
	replays   map[string]Replay
	letters   []LetterReplay
	seen      map[string]struct{} // the ids of replays; each is asked for once
}

// Pause says who lets a trigger or a schedule rest, and since when.
type Pause struct {
	By     string
	Since  time.Time
	Reason string `json:",omitempty"` // of a freeze, where one was given
}

// CommandReason is the data of acts that only say why.
type CommandReason struct {
	Reason string `json:"reason,omitempty"`
}

// Replay asks that a trigger gets a past range of its events again.
type Replay struct {
	ID     string    `json:"-"`
	Offset int64     `json:"-"` // of the act
	By     string    `json:"-"`
	At     time.Time `json:"-"`

	Trigger string             `json:"trigger"`
	Streams map[string][]Range `json:"streams"`
	Rate    float64            `json:"rate,omitempty"` // events a second, in all; 0 is the trigger's own
	From    string             `json:"from,omitempty"` // as it was asked for
	To      string             `json:"to,omitempty"`
}

// Range is a stretch of one partition: From belongs to it, To does not.
type Range struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

// LetterReplay asks that dead letters of one trigger are delivered after all.
// Which they are stands in the act itself: there may be thousands, and acts
// are kept for ever.
type LetterReplay struct {
	ID      string
	Offset  int64 // of the act
	By      string
	At      time.Time
	Trigger string
	Rate    float64 // letters a second, in all; 0 is the trigger's own
	First   int     // how many letters the acts before this one name, where one asks in several
	Count   int
	Streams []string // where their events came from, sorted
}

// LetterRef names a dead letter: where it lies, and where the event that it
// tells of came from, so that the owner of that partition finds its own.
type LetterRef struct {
	Partition int32  `json:"partition"` // of the dead letters
	Offset    int64  `json:"offset"`
	ID        string `json:"id"`
	Stream    string `json:"stream"`
	Source    int32  `json:"sourcePartition"`
}

// LetterReplayData is the data of tidemill.event.replay-requested.
type LetterReplayData struct {
	Trigger string      `json:"trigger"`
	Letters []LetterRef `json:"letters"`
	Rate    float64     `json:"rate,omitempty"`
	First   int         `json:"first,omitempty"`
}

// ReplayedData is the data of tidemill.trigger.replayed.
type ReplayedData struct {
	Trigger   string `json:"trigger"`
	Replay    string `json:"replay"`    // the id of the act that asked for it
	Delivered int64  `json:"delivered"` // events
	Failed    int64  `json:"failed"`    // that became dead letters
	// Left is how much of the range nobody looked at, because the trigger was
	// taken out of the config meanwhile.
	Left int64 `json:"left,omitempty"`
}

// Apply folds an act in. What lies before [Commands.Next] has been folded already.
func (a *Commands) Apply(act Command) {
	if act.Offset < a.next {
		return
	}
	a.next = act.Offset + 1
	switch act.Type {
	case TypeTriggerPaused:
		pause(&a.triggers, act)
	case TypeTriggerResumed:
		delete(a.triggers, act.Subject)
	case TypeSchedulePaused:
		pause(&a.schedules, act)
	case TypeScheduleResumed:
		delete(a.schedules, act.Subject)
	case TypeRecipePaused:
		pause(&a.recipes, act)
	case TypeRecipeResumed:
		delete(a.recipes, act.Subject)
	case TypePoolPaused:
		pause(&a.pools, act)
	case TypePoolResumed:
		delete(a.pools, act.Subject)
	case TypePromotionsFrozen:
		pause(&a.freezes, act)
	case TypePromotionsThawed:
		delete(a.freezes, act.Subject)
	case TypeKeyPassed:
		a.pass(act)
	case TypeTriggerReplayRequested:
		a.askReplay(act)
	case TypeTriggerReplayed:
		a.endReplay(act)
	case TypeEventReplayRequested:
		a.askLetters(act)
	}
}

// pause keeps the first of several, for the rest has lasted since then.
func pause(of *map[string]Pause, act Command) {
	if *of == nil {
		*of = map[string]Pause{}
	}
	if _, rests := (*of)[act.Subject]; !rests && act.Subject != "" {
		var d CommandReason
		_ = json.Unmarshal(act.Data, &d) // most have no data, and a reason decides nothing
		(*of)[act.Subject] = Pause{By: act.By, Since: act.At, Reason: d.Reason}
	}
}

// pass keeps the furthest of several: a key may end, begin anew and end again, and
// who was slow may say the first end behind the second.
func (a *Commands) pass(act Command) {
	var d KeyPassedData
	if json.Unmarshal(act.Data, &d) != nil || act.Subject == "" {
		return
	}
	if a.passed == nil {
		a.passed = map[string]map[string][]int64{}
	}
	ends := maps.Clone(a.passed[act.Subject]) // who has a clone reads the old ones
	if ends == nil {
		ends = map[string][]int64{}
	}
	for stream, at := range d.Ends {
		ends[stream] = furthest(ends[stream], at)
	}
	a.passed[act.Subject] = ends
}

func furthest(a, b []int64) []int64 {
	all := make([]int64, max(len(a), len(b)))
	copy(all, a)
	for i, at := range b {
		all[i] = max(all[i], at)
	}
	return all
}

func (a *Commands) askReplay(act Command) {
	var r Replay
	if json.Unmarshal(act.Data, &r) != nil || r.Trigger == "" || !a.first(act.ID) {
		return
	}
	r.ID, r.Offset, r.By, r.At = act.ID, act.Offset, act.By, act.At
	if a.replays == nil {
		a.replays = map[string]Replay{}
	}
	a.replays[r.ID] = r
}

func (a *Commands) endReplay(act Command) {
	var d ReplayedData
	if json.Unmarshal(act.Data, &d) == nil {
		delete(a.replays, d.Replay)
	}
}

func (a *Commands) askLetters(act Command) {
	var d LetterReplayData
	if json.Unmarshal(act.Data, &d) != nil || d.Trigger == "" || !a.first(act.ID) {
		return
	}
	a.letters = append(a.letters, LetterReplay{ID: act.ID, Offset: act.Offset, By: act.By, At: act.At,
		Trigger: d.Trigger, Rate: d.Rate, First: d.First, Count: len(d.Letters), Streams: streamsOf(d.Letters)})
}

// streamsOf lets who serves a stream pass over the acts that do not concern it.
func streamsOf(letters []LetterRef) []string {
	var all []string
	for _, l := range letters {
		if n := len(all); n == 0 || all[n-1] != l.Stream {
			all = append(all, l.Stream)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (a *Commands) first(id string) bool {
	if _, known := a.seen[id]; known || id == "" {
		return false
	}
	if a.seen == nil {
		a.seen = map[string]struct{}{}
	}
	a.seen[id] = struct{}{}
	return true
}

// Next is the offset behind the last act that was folded in.
func (a *Commands) Next() int64 { return a.next }

// TriggerPaused reports whether a trigger's events shall wait.
func (a *Commands) TriggerPaused(name string) bool { _, rests := a.triggers[name]; return rests }

// SchedulePaused reports whether a schedule shall not tick.
func (a *Commands) SchedulePaused(name string) bool { _, rests := a.schedules[name]; return rests }

// TriggerPause says who paused a trigger; false if it is not paused.
func (a *Commands) TriggerPause(name string) (Pause, bool) {
	p, rests := a.triggers[name]
	return p, rests
}

// SchedulePause says who paused a schedule; false if it is not paused.
func (a *Commands) SchedulePause(name string) (Pause, bool) {
	p, rests := a.schedules[name]
	return p, rests
}

// RecipePause says who paused a recipe; false if it is not paused.
func (a *Commands) RecipePause(name string) (Pause, bool) {
	p, rests := a.recipes[name]
	return p, rests
}

// PoolPause says who paused a pool; false if it is not paused.
func (a *Commands) PoolPause(name string) (Pause, bool) { p, rests := a.pools[name]; return p, rests }

// AllRecipes is the subject of a freeze that concerns every recipe.
const AllRecipes = "*"

// PromotionsFrozen says who froze the promotions of a recipe, or of all; false
// if nobody did.
func (a *Commands) PromotionsFrozen(recipe string) (Pause, bool) {
	if p, frozen := a.freezes[AllRecipes]; frozen {
		return p, true
	}
	p, frozen := a.freezes[recipe]
	return p, frozen
}

// Freezes are the recipes whose promotions are frozen, [AllRecipes] for all.
func (a *Commands) Freezes() map[string]Pause { return maps.Clone(a.freezes) }

// Passed reports whether an event of a key lies before the key's end, so that
// nobody gets it any more. What tells of the end itself is delivered.
func (a *Commands) Passed(key, typ, stream string, partition int32, offset int64) bool {
	ends := a.passed[key][stream]
	return int(partition) < len(ends) && offset < ends[partition] && !outlives(typ)
}

// Replays are those of past ranges that have not come to their end, in the
// order in which they were asked for.
func (a *Commands) Replays() []Replay {
	return slices.SortedFunc(maps.Values(a.replays), func(x, y Replay) int { return cmp.Compare(x.Offset, y.Offset) })
}

// LetterReplays are those of dead letters whose acts lie at an offset or behind
// it, in order. The list is not the caller's to change.
func (a *Commands) LetterReplays(from int64) []LetterReplay {
	i, _ := slices.BinarySearchFunc(a.letters, from, func(l LetterReplay, at int64) int { return cmp.Compare(l.Offset, at) })
	return a.letters[i:len(a.letters):len(a.letters)]
}

// Clone is what the fold is now. Later acts do not change it.
func (a *Commands) Clone() *Commands {
	c := *a
	c.triggers, c.schedules, c.replays = maps.Clone(a.triggers), maps.Clone(a.schedules), maps.Clone(a.replays)
	c.recipes, c.pools, c.freezes = maps.Clone(a.recipes), maps.Clone(a.pools), maps.Clone(a.freezes)
	c.passed = maps.Clone(a.passed)
	c.letters = slices.Clip(a.letters) // only ever appended to, so what is there may be shared
	c.seen = maps.Clone(a.seen)
	return &c
}

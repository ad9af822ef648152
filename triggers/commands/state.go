package commands

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
)

// Command is the part of an event on the stream commands that [State] needs.
type Command struct {
	Offset  int64
	ID      string
	Type    string
	Subject string // name of the trigger, schedule, recipe, pool or key
	By      string // authid; empty if the gateway asks for no identity
	At      time.Time
	Data    []byte // JSON
}

// State is the fold of the stream commands: pauses, freezes, and the replays that are not
// finished. It ignores unknown and repeated commands. It is not safe
// for concurrent use: share a [State.Clone].
type State struct {
	next      int64
	triggers  map[string]Pause
	schedules map[string]Pause
	recipes   map[string]Pause
	pools     map[string]Pause
	freezes   map[string]Pause
	rollouts  map[string]*Rollout // the values never change
	replays   map[string]tidemill.Replay
	letters   []LetterReplay
	seen      map[string]struct{} // ids of replays; a repeated request is ignored
}

// Pause is the author and the time of a pause or a freeze.
type Pause struct {
	By     string
	Since  time.Time
	Reason string `json:",omitempty"` // reason of a freeze, if one was given
}

// LetterReplay is a request to deliver dead letters of one trigger. The list of the
// letters is in the command itself: there may be thousands, and commands are kept for
// ever.
type LetterReplay struct {
	ID      string
	Offset  int64 // offset of the command
	By      string
	At      time.Time
	Trigger string
	Rate    float64 // letters a second in all; 0 for the trigger's own rate
	First   int     // number of letters in earlier commands of the same request
	Count   int
	Streams []string // streams that the events came from, sorted
}

// Apply adds a command. It ignores offsets before [State.Next].
func (s *State) Apply(act Command) {
	if act.Offset < s.next {
		return
	}
	s.next = act.Offset + 1
	switch act.Type {
	case tidemill.TypeTriggerPaused:
		pause(&s.triggers, act)
	case tidemill.TypeTriggerResumed:
		s.triggers = without(s.triggers, act.Subject)
	case tidemill.TypeSchedulePaused:
		pause(&s.schedules, act)
	case tidemill.TypeScheduleResumed:
		s.schedules = without(s.schedules, act.Subject)
	case tidemill.TypeRecipePaused:
		pause(&s.recipes, act)
	case tidemill.TypeRecipeResumed:
		s.recipes = without(s.recipes, act.Subject)
	case tidemill.TypePoolPaused:
		pause(&s.pools, act)
	case tidemill.TypePoolResumed:
		s.pools = without(s.pools, act.Subject)
	case tidemill.TypePromotionsFrozen:
		pause(&s.freezes, act)
	case tidemill.TypePromotionsThawed:
		s.freezes = without(s.freezes, act.Subject)
	case tidemill.TypeRolloutBegun, tidemill.TypeRolloutAdvanced, tidemill.TypeRolloutStopped, tidemill.TypeRolloutEnded,
		tidemill.TypeRolloutPaused, tidemill.TypeRolloutResumed, tidemill.TypeRolloutAborted:
		s.applyRollout(act)
	case tidemill.TypeTriggerReplayRequested:
		s.askReplay(act)
	case tidemill.TypeTriggerReplayed:
		s.endReplay(act)
	case tidemill.TypeEventReplayRequested:
		s.askLetters(act)
	}
}

// pause keeps the first of several pauses, because it has lasted since then.
func pause(of *map[string]Pause, act Command) {
	if _, rests := (*of)[act.Subject]; !rests && act.Subject != "" {
		var d tidemill.CommandReason
		_ = json.Unmarshal(act.Data, &d) // most have no data, and the reason changes nothing
		*of = with(*of, act.Subject, Pause{By: act.By, Since: act.At, Reason: d.Reason})
	}
}

func (s *State) askReplay(act Command) {
	var r tidemill.Replay
	if json.Unmarshal(act.Data, &r) != nil || r.Trigger == "" || !s.first(act.ID) {
		return
	}
	r.ID, r.Offset, r.By, r.At = act.ID, act.Offset, act.By, act.At
	s.replays = with(s.replays, r.ID, r)
}

func (s *State) endReplay(act Command) {
	var d tidemill.ReplayedData
	if json.Unmarshal(act.Data, &d) == nil {
		s.replays = without(s.replays, d.Replay)
	}
}

func (s *State) askLetters(act Command) {
	var d tidemill.LetterReplayData
	if json.Unmarshal(act.Data, &d) != nil || d.Trigger == "" || !s.first(act.ID) {
		return
	}
	s.letters = append(s.letters, LetterReplay{ID: act.ID, Offset: act.Offset, By: act.By, At: act.At,
		Trigger: d.Trigger, Rate: d.Rate, First: d.First, Count: len(d.Letters), Streams: streamsOf(d.Letters)})
}

// streamsOf lists the streams of letters, so that a dispatcher can skip other commands.
func streamsOf(letters []tidemill.LetterRef) []string {
	var all []string
	for _, l := range letters {
		if n := len(all); n == 0 || all[n-1] != l.Stream {
			all = append(all, l.Stream)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *State) first(id string) bool {
	if _, known := s.seen[id]; known || id == "" {
		return false
	}
	if s.seen == nil {
		s.seen = map[string]struct{}{}
	}
	s.seen[id] = struct{}{}
	return true
}

// Next is the offset after the last command that was applied.
func (s *State) Next() int64 { return s.next }

// TriggerPaused reports whether a trigger is paused.
func (s *State) TriggerPaused(name string) bool { _, rests := s.triggers[name]; return rests }

// SchedulePaused reports whether a schedule is paused.
func (s *State) SchedulePaused(name string) bool { _, rests := s.schedules[name]; return rests }

// TriggerPause returns a trigger's pause; false if it is not paused.
func (s *State) TriggerPause(name string) (Pause, bool) {
	p, rests := s.triggers[name]
	return p, rests
}

// SchedulePause returns a schedule's pause; false if it is not paused.
func (s *State) SchedulePause(name string) (Pause, bool) {
	p, rests := s.schedules[name]
	return p, rests
}

// RecipePause returns a recipe's pause; false if it is not paused.
func (s *State) RecipePause(name string) (Pause, bool) {
	p, rests := s.recipes[name]
	return p, rests
}

// PoolPause returns a pool's pause; false if it is not paused.
func (s *State) PoolPause(name string) (Pause, bool) { p, rests := s.pools[name]; return p, rests }

// PromotionsFrozen returns the freeze of a recipe's promotions, or of all; false if they
// are not frozen.
func (s *State) PromotionsFrozen(recipe string) (Pause, bool) {
	if p, frozen := s.freezes[tidemill.AllRecipes]; frozen {
		return p, true
	}
	p, frozen := s.freezes[recipe]
	return p, frozen
}

// Freezes has each recipe whose promotions are frozen; [tidemill.AllRecipes] for all.
func (s *State) Freezes() map[string]Pause { return maps.Clone(s.freezes) }

// Replays are the unfinished replays of past ranges, in the order of their requests.
func (s *State) Replays() []tidemill.Replay {
	return slices.SortedFunc(maps.Values(s.replays), func(x, y tidemill.Replay) int { return cmp.Compare(x.Offset, y.Offset) })
}

// LetterReplays are the replays of dead letters whose commands are at an offset or after
// it, in order. The caller must not change the list.
func (s *State) LetterReplays(from int64) []LetterReplay {
	i, _ := slices.BinarySearchFunc(s.letters, from, func(l LetterReplay, at int64) int { return cmp.Compare(l.Offset, at) })
	return s.letters[i:len(s.letters):len(s.letters)]
}

// Clone returns a copy for readers, which later commands do not change. It is cheap, because Apply
// replaces what it changes. The copy does not know the ids of replays, so it takes no commands.
func (s *State) Clone() *State {
	c := *s
	c.letters = slices.Clip(s.letters) // elements never change, so copies may share them
	c.seen = nil
	return &c
}

// with returns a copy of a map with one more entry.
func with[V any](m map[string]V, name string, v V) map[string]V {
	c := make(map[string]V, len(m)+1)
	maps.Copy(c, m)
	c[name] = v
	return c
}

// without returns a map without an entry: the same map if the entry is not there.
func without[V any](m map[string]V, name string) map[string]V {
	if _, there := m[name]; !there {
		return m
	}
	c := maps.Clone(m)
	delete(c, name)
	return c
}

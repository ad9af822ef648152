package deliver

import (
	"fmt"
	"slices"

	"tidemill.dev/broker"
)

// simLetter is a dead letter of the simulated partition.
type simLetter struct {
	id, trigger string
	source      int64
	replay      string // command that asked for it; empty for a first delivery
}

// simActs has the commands of the simulation, and their results.
type simActs struct {
	letters  []simLetter // existing dead letters, in the order of writing
	known    map[string]bool
	asked    map[string]bool // ids of dead letters that a command names
	acts     [][]simLetter   // commands, indexed by offset
	resolved map[string]bool // ids of dead letters with a receipt
	taken    map[string]bool // replays that were ever parked
	ended    map[string]bool // replays
}

func newSimActs() *simActs {
	return &simActs{known: map[string]bool{}, asked: map[string]bool{}, resolved: map[string]bool{}, taken: map[string]bool{}, ended: map[string]bool{}}
}

// bury writes the dead letter of an item that was not delivered.
func (w *world) bury(i *item) {
	l := simLetter{trigger: i.queue.trigger.name, source: i.ref.source, replay: actOf(i.replay)}
	l.id = fmt.Sprintf("%s/%d/%s/%s", l.trigger, l.source, l.replay, i.letter)
	if !w.asks.known[l.id] {
		w.asks.known[l.id] = true
		w.asks.letters = append(w.asks.letters, l)
	}
}

// addReplayCommand makes a command to replay some dead letters of a trigger, in the order of their
// events.
func (w *world) addReplayCommand() {
	var some []simLetter
	for _, l := range w.asks.letters {
		if !w.asks.asked[l.id] && (len(some) == 0 || l.trigger == some[0].trigger) && w.rng.IntN(3) > 0 {
			some = append(some, l)
			w.asks.asked[l.id] = true
		}
	}
	if len(some) == 0 {
		return
	}
	slices.SortStableFunc(some, func(a, b simLetter) int { return int(a.source - b.source) })
	w.say("act %d asks for %v", len(w.asks.acts), some)
	w.asks.acts = append(w.asks.acts, some)
}

// takeLetters gives an owner some dead letters, as the replay loop does.
func (w *world) takeLetters(o *owner) {
	p := o.p
	if !p.readsCommands(w.now) {
		return
	}
	for act := p.progress.next; act < int64(len(w.asks.acts)); act++ {
		p.commandsRead(act+1, act)
	}
	for act, letters := range w.asks.acts {
		done, open := p.progress.open[int64(act)]
		if !open || w.terms.paused(letters[0].trigger) {
			continue
		}
		in := &replayBatch{act: int64(act), upTo: min(done+1+w.rng.IntN(3), len(letters))}
		in.last = in.upTo == len(letters)
		for _, l := range letters[done:in.upTo] {
			if w.asks.resolved[l.id] {
				continue
			}
			one := replayedLetter{trigger: l.trigger, source: l.source, letter: l.id, replay: replayName(fmt.Sprint("act", act), l.replay), view: broker.View{ID: fmt.Sprint(l.source), Source: "/x", Type: "t"}}
			if key := w.source[l.source]; key != "" {
				one.view.Key = []byte(key)
			}
			in.all = append(in.all, one)
		}
		if p.replay(in, w.now) {
			w.say("%d: takes in letters %d to %d of act %d, %d of them open", o.epoch, done, in.upTo, act, len(in.all))
			return
		}
	}
}

// learnIntake checks that each dead letter is taken once.
func (w *world) learnIntake(k *recordWrite) {
	if k.record.replay == "" || k.item.recorded() {
		return
	}
	place := placeOf(k.item.queue.trigger.name, k.item.ref.source, k.record.replay)
	if w.asks.taken[place] {
		w.t.Fatalf("%s is taken in twice", place)
	}
	w.asks.taken[place] = true
}

func placeOf(trigger string, source int64, replay string) string {
	return fmt.Sprintf("%s/%d/%s", trigger, source, replay)
}

// endReplay writes the receipt.
func (w *world) endReplay(i *item) {
	w.asks.resolved[i.letter] = true
	w.asks.ended[placeOf(i.queue.trigger.name, i.ref.source, i.replay)] = true
}

// checkReplayOrder checks that dead letters of one key and command are delivered in the
// order of their events.
func (w *world) checkReplayOrder(i *item) {
	name := i.queue.trigger.name
	if name == "c" || name == "a" && w.fickle || w.source[i.ref.source] == "" {
		return
	}
	var act int
	fmt.Sscanf(actOf(i.replay), "act%d", &act)
	for _, l := range w.asks.acts[act] {
		if l.source < i.ref.source && w.source[l.source] == w.source[i.ref.source] && !w.asks.resolved[l.id] {
			w.t.Fatalf("%s gets the letter of offset %d of key %s before that of %d has ended", name, i.ref.source, w.source[l.source], l.source)
		}
	}
}

func (w *world) allReplayed(o *owner) bool {
	return o.p.progress.next == int64(len(w.asks.acts)) && len(o.p.progress.open) == 0 && o.p.replayed == nil
}

func (w *world) checkReplays() {
	for id := range w.asks.asked {
		if !w.asks.resolved[id] {
			w.t.Errorf("letter %s has no receipt", id)
		}
	}
	for place := range w.asks.taken {
		if !w.asks.ended[place] {
			w.t.Errorf("replay %s was taken in and never ended", place)
		}
	}
}

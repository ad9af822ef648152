package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// calm are the kinds of faults that leave a process time to start a run before its claim to a slot ends, and keep the claim.
var calm = []string{"kill", "loop", "restart", "cut", "config", "pause"}

// upgrade plans for every fifth world that its processes get another layout of the ledger, and perhaps the former one or a
// third one later. In half of the clusters the pool has few slots, and all faults are calm.
func (p *plan) upgrade(r *rand.Rand) {
	if r.IntN(5) > 0 || !isOn("upgrade") {
		return
	}
	between := func(least, most int) int { return least + r.IntN(most-least+1) }
	if !p.up && p.observers == 0 && p.judging.rollout == "" && r.IntN(2) == 0 {
		p.slots, p.controls, p.keys, p.every = between(1, 3), 2, min(p.keys, 3), min(p.every, time.Second)
		p.focus, p.pace, p.cutEvery, p.lateEvery, p.slow = focuses[3], min(p.pace, time.Second), 0, 0, time.Duration(between(1, 20))*time.Millisecond
		p.faults = slices.DeleteFunc(p.faults, func(f fault) bool { return !slices.Contains(calm, f.kind) })
	}
	for i := range between(1, 3) {
		layout := (i + 1) % 2
		if i == 2 {
			layout = r.IntN(3)
		}
		p.faults = append(p.faults, fault{at: time.Duration(r.Int64N(int64(p.load)/3)) + time.Duration(i)*p.load/3, kind: "upgrade", lasts: time.Duration(between(0, 4000)) * time.Millisecond, n: layout})
	}
}

// upgrade restarts the processes one after the other, with another layout of the ledger. Meanwhile those of both layouts work.
func (w *world) upgrade(f fault) {
	w.upgrading <- struct{}{}
	defer func() { <-w.upgrading }()
	order := slices.Clone(w.procs)
	random(w.p.seed, fmt.Sprint("upgrade at ", f.at)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, o := range order {
		o.layout.Store(int64(f.n))
		o.restart()
		sleep(w.ctx, f.lasts)
	}
}

// withinSlots checks that the pool never had more attempts than slots. An attempt that a process started by the place of
// another one is written later than the end of that one.
func (o *oracle) withinSlots() []string {
	if o.w.p.slots == 0 {
		return nil
	}
	type change struct {
		at   time.Time
		by   int
		name string
	}
	var changes []change
	begun := map[string]bool{} // by attempt; true until its end
	for i := range o.records["facts"] {
		r := &o.records["facts"][i]
		if r.head["ce_recipe"] != "intent" { // the recipe with a pool
			continue
		}
		name := r.head["ce_run"] + "-" + r.head["ce_attempt"]
		live, known := begun[name]
		switch {
		case r.typ() == "tidemill.run.started" && !known:
			begun[name] = true
			changes = append(changes, change{r.at, 1, name})
		case r.typ() == "tidemill.run.finished" && live:
			begun[name] = false
			changes = append(changes, change{r.at, -1, name})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	running, all := map[string]bool{}, []string(nil)
	for _, c := range changes {
		if c.by < 0 {
			delete(running, c.name)
			continue
		}
		if running[c.name] = true; len(running) > o.w.p.slots {
			all = append(all, fmt.Sprintf("at %v the pool with %d slots had the attempts %v", c.at.Sub(o.w.history.began), o.w.p.slots, slices.Sorted(maps.Keys(running))))
		}
	}
	return all
}

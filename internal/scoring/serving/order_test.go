package serving

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/internal/scoring/infer"
)

// For any order of changes, reports of changes, loads, failures, repairs, evictions and uses,
// the right version answers.
func TestWhateverTheOrder(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &play{T: t, Rand: rand.New(rand.NewPCG(seed, 7)), w: newWorld(t, 0), gates: map[int]func(){}, unfit: map[int]bool{}, history: []int{0, 1}, told: 1}
				p.w.set(bot, 1)
				p.w.models.Slot(bot) // makes the slot, which reads the table
				for range 120 {
					p.step()
				}
				p.repairAll()
			})
		})
	}
}

// play is a random sequence of actions and the expected state.
type play struct {
	*testing.T
	*rand.Rand
	w *world

	history []int // champion by turn; 0 means none
	told    int   // last turn that Changed has reported
	last    int   // earliest possible turn of the last answer
	settled int   // turn of the last Settle; nothing older may answer
	gates   map[int]func()
	unfit   map[int]bool
	used    []*infer.Model
	course  []string
}

func (p *play) step() {
	artifact := func(v int) string { return fmt.Sprintf("%s@%d", bot, v) }
	switch n := p.IntN(20); {
	case n < 4:
		p.promote()
	case n < 6:
		p.say("changed")
		p.w.models.Changed(bot, p.w.champions[bot])
		p.told = len(p.history) - 1
	case n < 12:
		p.use()
	case n < 13 && len(p.gates) > 0:
		v := p.newest()
		if open := p.gates[v]; open != nil {
			p.say("open %d", v)
			open()
			delete(p.gates, v)
		}
	case n < 14:
		v := p.newest()
		p.say("heal %d", v)
		if !p.unfit[v] {
			p.w.fails(artifact(v), nil)
		}
	case n < 15:
		p.say("evict")
		s := p.w.models.Slot(bot)
		s.lock.Lock()
		if s.serving != nil {
			p.w.cache.Drop(s.serving)
		}
		s.lock.Unlock()
	case n < 16:
		p.say("settle")
		p.w.models.Settle()
		p.settled, p.told = len(p.history)-1, len(p.history)-1
	case n < 18:
		d := time.Duration(p.IntN(3000)) * time.Millisecond
		p.say("%v pass", d)
		time.Sleep(d)
	default:
		if len(p.used) > 0 {
			p.say("release %d", p.used[0].Ref().Version)
			p.used[0].Release()
			p.used = p.used[1:]
		}
	}
	if p.IntN(3) > 0 {
		synctest.Wait()
	}
}

// promote makes a new version the champion, and decides how its load will end.
func (p *play) promote() {
	v := len(p.history) // a new version
	switch {
	case p.IntN(8) == 0:
		v = 0
	case p.IntN(4) == 0:
		v = p.history[p.IntN(len(p.history))]
	}
	if v == p.history[len(p.history)-1] {
		return
	}
	artifact := fmt.Sprintf("%s@%d", bot, v)
	if fresh := !slices.Contains(p.history, v); fresh {
		switch p.IntN(6) {
		case 0:
			p.w.fails(artifact, errUnfit)
			p.unfit[v] = true
		case 1:
			p.w.fails(artifact, errAway)
		case 2, 3:
			p.gates[v] = p.w.gate(artifact)
		}
	}
	p.say("promote %d", v)
	p.w.set(bot, v)
	p.history = append(p.history, v)
}

func (p *play) newest() int { return p.history[len(p.history)-1-p.IntN(min(3, len(p.history)))] }

func (p *play) say(format string, args ...any) {
	p.course = append(p.course, fmt.Sprintf(format, args...))
}

func (p *play) wrong(format string, args ...any) {
	p.Helper()
	p.Fatalf("%s\nchampions %v, Changed called for turn %d, unfit %v\n%q", fmt.Sprintf(format, args...), p.history, p.told, p.unfit, p.course)
}

// use calls Use and checks the answer against the expected state.
func (p *play) use() {
	m, state := p.w.models.Slot(bot).Use()
	known := p.history[p.told]
	switch state {
	case Ready:
		p.say("use: %d", m.Ref().Version)
		p.used = append(p.used, m)
		p.ready(m.Ref().Version)
	case Missing:
		p.say("use: missing")
		if known != 0 {
			p.wrong("missing, and %d is champion", known)
		}
	case Broken:
		p.say("use: broken")
		if before := p.history[max(0, p.told-1)]; !p.unfit[known] || before != 0 && !p.unfit[before] {
			p.wrong("broken")
		}
	case Loading:
		p.say("use: loading")
		if known == 0 {
			p.wrong("loading, and there is no champion")
		}
	}
}

// ready checks a version that has answered. It must have been champion in some turn, not before
// the turn of the previous answer or of the last Settle.
func (p *play) ready(v int) {
	p.Helper()
	turn := max(p.last, p.settled)
	if p.unfit[p.history[p.settled]] && p.settled > 0 { // then the previous champion answers
		turn = max(p.last, p.settled-1)
	}
	for turn <= p.told && p.history[turn] != v {
		turn++
	}
	switch {
	case p.unfit[v]:
		p.wrong("%d answers, and is unfit", v)
	case p.history[p.told] == 0:
		p.wrong("%d answers, and there is no champion", v)
	case turn > p.told:
		p.wrong("%d answers, but not after the champion of turn %d", v, p.last)
	}
	p.last = turn
}

// repairAll repairs everything that can be repaired, and waits until the champion answers.
func (p *play) repairAll() {
	for _, open := range p.gates {
		open()
	}
	for _, v := range p.history {
		if !p.unfit[v] {
			p.w.fails(fmt.Sprintf("%s@%d", bot, v), nil)
		}
	}
	p.w.models.Changed(bot, p.w.champions[bot])
	p.told = len(p.history) - 1
	p.use()
	time.Sleep(2 * mostBackoff)
	synctest.Wait()
	p.use()
	time.Sleep(2 * mostBackoff)
	synctest.Wait()
	got, now, before := p.w.answers(bot), p.history[p.told], p.history[max(0, p.told-1)]
	want := []string{strconv.Itoa(now)}
	switch {
	case now == 0:
		want = []string{"missing"}
	case p.unfit[now] && (before == 0 || p.unfit[before]):
		want = []string{"broken"}
	case p.unfit[now]:
		want = []string{strconv.Itoa(before)}
	}
	if p.unfit[now] { // the version that answered when this one was found unfit is right too
		want = append(want, strconv.Itoa(p.history[p.last]))
	}
	if !slices.Contains(want, got) {
		p.wrong("in the end it answers %s, not %v", got, want)
	}
	for _, m := range p.used {
		m.Release()
	}
}

// Concurrent users, champions and evictions, for the race detector. In the end no model is held.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, 8<<10) // memory for a few models
	const models, changes = 20, 300
	name := func(n int) string { return fmt.Sprint("intent/", n) }
	for n := range models {
		w.promote(name(n), 1)
	}
	var users, others sync.WaitGroup
	over := make(chan struct{})
	for u := range 4 {
		users.Go(func() {
			r := rand.New(rand.NewPCG(uint64(u), 1))
			for last := map[int]int{}; ; {
				select {
				case <-over:
					return
				default:
				}
				n := r.IntN(models)
				s := w.models.Slot(name(n))
				m, state := s.Use()
				switch state {
				case Ready:
					if v := m.Ref().Version; v < last[n] {
						t.Errorf("%s answers after %d", m.Ref(), last[n])
					} else {
						last[n] = v
					}
					m.Release()
				case Loading:
					<-s.Waiter()
				default:
					t.Errorf("state %d: %v", state, s.Err())
				}
			}
		})
	}
	others.Go(func() {
		r := rand.New(rand.NewPCG(9, 9))
		for v := range changes {
			w.promote(name(r.IntN(models)), v+2)
			if v%10 == 0 {
				w.models.Settle()
			}
		}
	})
	others.Wait()
	for n := range models { // each must reach its last champion
		want := w.champions[name(n)].Version
		for w.answers(name(n)) != strconv.Itoa(want) {
			<-w.models.Slot(name(n)).Waiter()
		}
	}
	close(over)
	users.Wait()
	if err := errors.Join(w.models.Close()); err != nil {
		t.Error(err)
	}
}

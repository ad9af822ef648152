package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// letter is an event whose parts all derive from its id, so that the test would find bytes of
// another event.
type letter struct{ id, source, subject, note, data string }

func letterOf(worker, n int) letter {
	r := rand.New(rand.NewPCG(uint64(worker), uint64(n)))
	id := fmt.Sprintf("%d-%d-%s", worker, n, strings.Repeat("i", r.IntN(40)))
	return letter{id, "/source/" + id, "subject-" + id, "note " + id, strings.Repeat("<"+id+">", r.IntN(60))}
}

func (l letter) json() string {
	return fmt.Sprintf(`{"specversion":"1.0","type":"message","id":%q,"source":%q,"subject":%q,"note":%q,"datacontenttype":"text/plain","data":%q}`,
		l.id, l.source, l.subject, l.note, l.data)
}

func (l letter) headers() []string {
	return []string{"ce-specversion", "1.0", "ce-type", "message", "ce-id", l.id, "ce-source", l.source, "ce-subject", l.subject, "ce-note", strings.ReplaceAll(l.note, " ", "%20"), "Content-Type", "text/plain"}
}

func (l letter) is(v *broker.View) bool {
	note, _ := v.Attribute("note")
	return v.ID == l.id && v.Source == l.source && v.Subject == l.subject && string(v.Key) == l.subject && note == l.note && string(v.Data) == l.data && len(v.Extensions) == 1
}

// publishOutcomes are the answers that the publishers of letters got.
type publishOutcomes struct {
	mu      sync.Mutex
	letters map[string]letter
	told    map[string]string // "202" or a problem's slug, by id
}

func (f *publishOutcomes) note(l letter, told string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letters[l.id], f.told[l.id] = l, told
}

func (f *publishOutcomes) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.told)
}

// A publisher may be refused while Kafka stalls, with its events still under way. Later, the
// stream and the memory of repeats must hold exactly the sent events, even if the request's
// memory is in use again.
func TestWhatAbandonedRequestsLeaveIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Ack, o.Limits.Room, o.Limits.Unacked = 20*time.Millisecond, 10*time.Millisecond, 256<<10
	})
	f := &publishOutcomes{letters: map[string]letter{}, told: map[string]string{}}
	for round := range 4 {
		release := w.stallStream("messages")
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() { w.postLetters(f, worker, round*30, 30) })
		}
		if round%2 == 0 { // some get a success, some a refusal, and some neither
			w.waitUntil("half of it has been told", func() bool { return f.count() > round*560+200 })
			release()
		}
		all.Wait()
		release()
		w.waitUntil("nothing is under way", func() bool { return w.gateway.window.takenBytes() == 0 })
	}
	w.checkStream(f)
	if n := w.gateway.room.takenBytes(); n != 0 {
		t.Errorf("%v bytes of requests are still taken", n)
	}
	if g := &w.gateway.window; g.waiting != 0 || g.free != 256<<10 {
		t.Errorf("the window has %d waiting and %d free", g.waiting, g.free)
	}
}

func (w *world) postLetters(f *publishOutcomes, worker, from, n int) {
	for i := from; i < from+n; i++ {
		switch i % 3 {
		case 0:
			l := letterOf(worker, i)
			f.note(l, fate(w.post("/events", l.data, l.headers()...), w))
		case 1:
			l := letterOf(worker, i)
			f.note(l, fate(w.post("/events", l.json(), "Content-Type", "application/cloudevents+json"), w))
		case 2:
			var batch []letter
			var written []string
			for part := range 5 {
				batch = append(batch, letterOf(worker, 1000*(part+1)+i))
				written = append(written, batch[part].json())
			}
			for part, a := range answersOf(w.TB.(*testing.T), w.batch("/events", written...)) {
				f.note(batch[part], fateOf(a))
			}
		}
	}
}

func fate(r reply, w *world) string {
	if r.StatusCode == http.StatusAccepted {
		return "202"
	}
	return strings.TrimPrefix(problemOf(w.TB.(*testing.T), r).Type, api.ProblemBase)
}

func fateOf(a api.Answer) string {
	if a.Problem == nil {
		return "202"
	}
	return strings.TrimPrefix(a.Problem.Type, api.ProblemBase)
}

// checkStream compares the stream and the memory of repeats with the publishers' answers.
func (w *world) checkStream(f *publishOutcomes) {
	w.Helper()
	stands, sum := map[string]int{}, map[string]int{}
	for _, v := range w.storedEvents("messages") {
		stands[v.ID]++
		if l, ok := f.letters[v.ID]; !ok || !l.is(&v) {
			w.Errorf("this was never sent: %+v", v)
		}
	}
	for id, told := range f.told {
		l := f.letters[id]
		sum[told]++
		switch {
		case told == "202" && stands[id] != 1, told == api.InDoubt && stands[id] > 1, told == api.Unavailable && stands[id] != 0:
			w.Errorf("%s: told %s, and it stands %d times", id, told, stands[id])
		case told != "202" && told != api.InDoubt && told != api.Unavailable:
			w.Errorf("%s: told %s", id, told)
		}
		if seen := w.memory.Seen(w.Context(), "messages", time.Minute, l.source, id); seen != (stands[id] > 0) {
			w.Errorf("%s: it stands %d times, and remembered: %t", id, stands[id], seen)
		}
	}
	w.Logf("told %v; %d stand", sum, len(stands))
}

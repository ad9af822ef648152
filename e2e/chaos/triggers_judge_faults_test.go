package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// goodStory is a round without faults. It has three keys of four events each. Each event has a
// failed first attempt and a second delivery. There are dead letters where they are allowed, and
// one reply is on the stream twice.
func goodStory() *story {
	s := &story{}
	clock := 0
	tick := func() int { clock++; return clock }
	for n := range 12 {
		key := n % 3
		id := eventID(n)
		s.in = append(s.in, record{partition: int32(key), offset: int64(n / 3), id: id, key: fmt.Sprint("key-", key)})
		for _, r := range rules {
			if !r.matches(id) {
				continue
			}
			if r.yields && n%2 == 0 {
				s.letters = append(s.letters, deadLetter{rule: r.name, of: id})
				continue
			}
			s.attempts = append(s.attempts, attempt{rule: r.name, id: id, began: tick(), ended: tick(), status: 500},
				attempt{rule: r.name, id: id, began: tick()}, attempt{rule: r.name, id: id, began: tick(), ended: tick(), status: 200})
			if r.replies {
				s.replies = append(s.replies, reply{partition: int32(key), offset: int64(len(s.replies)), id: replyID(r.name, id), trigger: r.name,
					causeID: id, causeSrc: sourceHere, to: id, key: fmt.Sprint("key-", key), data: replyData(id)})
			}
		}
	}
	s.attempts = append(s.attempts, attempt{rule: "keyed", id: eventID(0), began: tick(), ended: tick(), status: 200}) // after a kill
	s.replies = append(s.replies, s.replies[0])
	return s
}

func (s *story) find(rule, id string, fine bool) *attempt {
	return &s.attempts[slices.IndexFunc(s.attempts, func(a attempt) bool { return a.rule == rule && a.id == id && a.fine() == fine })]
}

func (s *story) forget(rule, id string) {
	s.attempts = slices.DeleteFunc(s.attempts, func(a attempt) bool { return a.rule == rule && a.id == id })
}

// Each broken story must make the judge find its fault.
func TestTheJudgeOfTriggersFindsFaults(t *testing.T) {
	for name, c := range wrongStories() {
		t.Run(name, func(t *testing.T) {
			s := goodStory()
			c.wrong(s)
			found := s.judge()
			as := func(found, want string) bool { return strings.HasPrefix(found, want) }
			if !slices.EqualFunc(found, c.want, as) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// wrongStory breaks a good story. The judge must find exactly the wanted faults.
type wrongStory struct {
	wrong func(*story)
	want  []string
}

func wrongStories() map[string]wrongStory {
	all := map[string]wrongStory{
		"nothing is wrong":            {wrong: func(*story) {}},
		"an event is published twice": {func(s *story) { s.in = append(s.in, s.in[11]) }, []string{"published twice: e.11"}},
	}
	for _, some := range []map[string]wrongStory{lostStories(), disorderedStories(), wrongReplies(), strayStories()} {
		maps.Copy(all, some)
	}
	return all
}

func lostStories() map[string]wrongStory {
	return map[string]wrongStory{
		"an event never comes":            {func(s *story) { s.forget("loose", "e.7") }, []string{"lost: e.7 never reached loose"}},
		"the last of a key never comes":   {func(s *story) { s.forget("hanging", "e.11") }, []string{"lost: e.11 never reached hanging"}},
		"an event is never answered well": {func(s *story) { s.find("loose", "e.7", true).status = 503 }, []string{"never delivered: e.7 reached loose"}},
		"an event gets no answer at all":  {func(s *story) { s.find("loose", "e.7", true).ended = 0 }, []string{"never delivered: e.7 reached loose"}},
		"a dead one's event is lost":      {func(s *story) { s.letters = s.letters[1:] }, []string{"lost: e.0 never reached refused"}},
		"one gives up beside a delivery":  {func(s *story) { s.letters = append(s.letters, deadLetter{rule: "keyed", of: "e.3"}) }, []string{"given up: e.3 got a letter of keyed"}},
		"one gives up that must not": {func(s *story) {
			s.forget("hanging", "e.3")
			s.letters = append(s.letters, deadLetter{rule: "hanging", of: "e.3"})
		}, []string{"given up: e.3 got a letter of hanging"}},
		"a letter beside a delivery": {wrong: func(s *story) { s.letters = append(s.letters, deadLetter{rule: "refused", of: "e.3"}) }},
	}
}

func disorderedStories() map[string]wrongStory {
	began := func(rule, id string, at func(*story) int) func(*story) {
		return func(s *story) { s.find(rule, id, false).began = at(s) }
	}
	return map[string]wrongStory{
		"a successor comes first": {began("keyed", "e.6", func(s *story) int { return s.find("keyed", "e.3", false).began - 1 }),
			[]string{"disorder: e.6 set out for keyed"}},
		"a successor flies beside": {began("keyed", "e.6", func(s *story) int { return s.find("keyed", "e.3", true).ended - 1 }),
			[]string{"disorder: e.6 set out for keyed"}},
		"the last one flies beside": {began("keyed", "e.9", func(s *story) int { return s.find("keyed", "e.6", true).ended - 1 }),
			[]string{"disorder: e.9 set out for keyed"}},
		"one comes before the first": {began("keyed", "e.9", func(*story) int { return 1 }), []string{"disorder: e.9 set out for keyed"}},
		"a dead one's successor comes first": {began("hanging", "e.6", func(s *story) int { return s.find("hanging", "e.3", false).began }),
			[]string{"disorder: e.6 set out for hanging"}},
		"another key's event comes first": {wrong: began("keyed", "e.1", func(*story) int { return 1 })},
		"an unordered event comes first":  {wrong: began("loose", "e.9", func(*story) int { return 1 })},
		"what a letter was written of is early": {func(s *story) {
			s.attempts = append(s.attempts, attempt{rule: "refused", id: "e.6", began: s.find("refused", "e.3", false).began - 1})
		}, []string{"disorder: e.6 set out for refused"}},
		"what a letter was written of is late": {func(s *story) {
			s.attempts = append(s.attempts, attempt{rule: "refused", id: "e.6", began: 9999, ended: 10000, status: 500})
		}, []string{"disorder: e.9 set out for refused"}},
		"what a letter was written of comes again": {wrong: func(s *story) {
			s.letters = append(s.letters, deadLetter{rule: "refused", of: "e.5"})
			s.find("refused", "e.5", true).ended = 9999
		}},
	}
}

func wrongReplies() map[string]wrongStory {
	alter := func(i int, change func(*reply)) func(*story) {
		return func(s *story) { change(&s.replies[(len(s.replies)+i)%len(s.replies)]) }
	}
	altered := []string{"altered reply"}
	return map[string]wrongStory{
		"a reply is missing": {func(s *story) { s.replies = slices.Delete(s.replies, 5, 6) }, []string{"no reply: e.5 of keyed"}},
		"a reply has a random id": {alter(5, func(p *reply) { p.id = "b7gk2m" }),
			[]string{"a reply of nothing: b7gk2m", "no reply: e.5 of keyed"}},
		"a reply names another cause":  {alter(5, func(p *reply) { p.causeID = "e.4" }), altered},
		"a reply names another source": {alter(5, func(p *reply) { p.causeSrc = "/" }), altered},
		"a reply is another's":         {alter(5, func(p *reply) { p.to, p.data = "e.4", replyData("e.4") }), altered},
		"a reply has lost its key":     {alter(5, func(p *reply) { p.key = "" }), altered},
		"a copy of a reply is altered": {alter(-1, func(p *reply) { p.data = "" }), altered},
		"replies have changed places": {func(s *story) { s.replies[3], s.replies[6] = s.replies[6], s.replies[3] },
			[]string{"replies out of order: that to e.3"}},
	}
}

func strayStories() map[string]wrongStory {
	add := func(rule, id string) func(*story) {
		return func(s *story) { s.attempts = append(s.attempts, attempt{rule: rule, id: id, began: 9999}) }
	}
	return map[string]wrongStory{
		"a reply of who may not reply": {func(s *story) { s.replies = append(s.replies, reply{trigger: "loose", causeID: "e.1"}) },
			[]string{`astray: a reply of "loose"`}},
		"an event that does not match": {add("loose", "e.2"), []string{`astray: an attempt of "e.2" for "loose"`}},
		"an event that nobody sent":    {add("loose", "e.99"), []string{`astray: an attempt of "e.99"`}},
		"an event for nobody":          {add("other", "e.1"), []string{`astray: an attempt of "e.1" for "other"`}},
		"a letter of what nobody sent": {func(s *story) { s.letters = append(s.letters, deadLetter{rule: "refused", of: "e.98"}) },
			[]string{`astray: a letter of "e.98"`}},
	}
}

func TestTheJudgeOfCalmFindsWhatComesAgain(t *testing.T) {
	s := goodStory()
	end := s.attempts[len(s.attempts)-1].ended
	var f faults
	if s.judgeCalm(&f, 12, end); len(f) != 0 {
		t.Errorf("found %q", f)
	}
	s.attempts = append(s.attempts, attempt{rule: "keyed", id: "e.2", began: 1, ended: end, late: true}, attempt{rule: "keyed", id: "e.2", began: end + 1})
	s.attempts = append(s.attempts, attempt{rule: "loose", id: "e.12", began: end + 1}, attempt{rule: "loose", id: "e.3", began: end + 2})
	if s.judgeCalm(&f, 12, end); len(f) != 1 || !strings.Contains(f[0], "[e.3 for loose]") {
		t.Errorf("found %q", f)
	}
}

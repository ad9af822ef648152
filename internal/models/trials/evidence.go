package trials

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/models/evidence"
)

// place is the place of an event in its stream.
type place struct {
	partition int32
	offset    int64
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.partition, o.partition), cmp.Compare(p.offset, o.offset))
}

// pair is an event with both answers and its truth. Empty texts are not known yet.
type pair struct {
	champion, candidate, truth string
	group                      string
	cause                      uint64 // event that the champion has answered; see causeOf
	answered                   bool   // whether the candidate has read the event
	failed                     bool   // whether it could not answer
	answer                     int32  // partition of the champion's answer
	outcome                    place  // first outcome; it has an offset of -1 before there is one
}

// mostPairs is the number of events that a trial keeps. If there are more, it keeps one of 2, 4, 8 … of them.
const mostPairs = 50_000

// collection has all that the logs say about a trial. It is the same for the same records, in whatever order
// the streams are read.
type collection struct {
	pairs  map[place]*pair
	shift  uint // one of 2^shift events is kept
	most   int
	labels map[string]string // one copy of each label
	needed []place           // events that the candidate has to read
	speed  latencies
}

func newCollection() *collection {
	return &collection{pairs: map[place]*pair{}, labels: map[string]string{}, most: mostPairs}
}

// causeOf distinguishes events. If a stream is created again, other events have the places of the old ones.
func causeOf(source, id string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, source+"\x00"+id)
	return h.Sum64()
}

// addAnswer adds the champion's answer to an event.
func (c *collection) addAnswer(at place, cause uint64, label string, partition int32) {
	p := c.at(at)
	if p == nil || p.champion != "" || label == "" {
		return
	}
	p.champion, p.cause, p.answer = c.one(label), cause, partition
	if !p.answered {
		c.needed = append(c.needed, at)
	}
}

// isOf reports whether an event is the one that the champion has answered.
func (c *collection) isOf(at place, e *broker.Incoming) bool {
	p := c.pairs[at]
	return p == nil || p.cause == causeOf(e.Source, e.ID)
}

// addOutcome adds the truth about an event. A later outcome corrects an earlier one.
func (c *collection) addOutcome(at place, d *tidemill.OutcomeData, outcome place) {
	p := c.at(at)
	if p == nil || d.Truth == "" {
		return
	}
	p.truth, p.group = c.one(d.Truth), c.one(d.Group)
	if p.outcome.offset < 0 {
		p.outcome = outcome
	}
}

// addCandidate adds the candidate's answer. An error counts as a wrong answer.
func (c *collection) addCandidate(at place, label string, failed bool, took time.Duration) {
	p := c.pairs[at]
	if p == nil || p.answered {
		return
	}
	p.candidate, p.answered, p.failed = c.one(label), true, failed
	c.speed.add(took)
}

// forgetAnswered removes events from the list of needed ones that the candidate has read, or that are dropped.
func (c *collection) forgetAnswered() {
	c.needed = slices.DeleteFunc(c.needed, func(at place) bool { p := c.pairs[at]; return p == nil || p.answered })
}

// drop removes an event that its stream no longer has.
func (c *collection) drop(at place) { delete(c.pairs, at) }

// at returns the pair of an event; nil if the event is not kept.
func (c *collection) at(at place) *pair {
	if p := c.pairs[at]; p != nil || !c.keeps(at) {
		return p
	}
	p := &pair{outcome: place{offset: -1}}
	c.pairs[at] = p
	for len(c.pairs) > c.most {
		c.shift++
		maps.DeleteFunc(c.pairs, func(at place, _ *pair) bool { return !c.keeps(at) })
		c.needed = slices.DeleteFunc(c.needed, func(at place) bool { return !c.keeps(at) })
	}
	return c.pairs[at]
}

func (c *collection) keeps(at place) bool {
	h := fnv.New64a()
	_, _ = h.Write(at.bytes())
	sum := h.Sum64()
	return (sum^sum>>29)&(1<<c.shift-1) == 0
}

func (p place) bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(make([]byte, 0, 12), uint32(p.partition)), uint64(p.offset))
}

// one returns a copy of a text, which may point into a read's memory: the one copy of it if it is a label.
func (c *collection) one(text string) string {
	if kept, ok := c.labels[text]; ok {
		return kept
	}
	text = strings.Clone(text)
	if len(c.labels) < 1000 { // groups are as many as events
		c.labels[text] = text
	}
	return text
}

// summary has the figures of a collection.
type summary struct {
	tidemill.TrialCounts
	lead    *evidence.Lead
	steps   []tidemill.TrialStep
	p99     float64
	sampled int

	known struct { // last result of leadAt, because it takes longer than anything else of a look
		level float64
		votes int64
		lead  tidemill.Estimate
	}
}

// sum counts the pairs. Labelled events count in the order of their first outcomes, because the first event
// of a group counts for the group.
func (c *collection) sum(alpha float64) summary {
	s := summary{lead: evidence.NewLead(alpha), p99: c.speed.p99()}
	if c.shift > 0 {
		s.sampled = 1 << c.shift
	}
	var labelled []*pair
	for _, p := range c.pairs {
		if p.champion == "" || !p.answered {
			continue
		}
		s.Answered++
		if p.failed {
			s.Errors++
		} else if p.candidate == p.champion {
			s.Agreed++
		}
		if p.truth != "" {
			labelled = append(labelled, p)
		}
	}
	slices.SortFunc(labelled, func(a, b *pair) int { return a.outcome.compare(b.outcome) })
	for i, p := range labelled {
		candidate, champion := !p.failed && p.candidate == p.truth, p.champion == p.truth
		s.lead.Add(p.group, candidate, champion)
		switch {
		case candidate && !champion:
			s.Wins++
		case champion && !candidate:
			s.Losses++
		}
		if n := len(labelled); (i+1)*tidemill.TrialSteps/n > i*tidemill.TrialSteps/n {
			s.steps = append(s.steps, tidemill.TrialStep{Labelled: i + 1, Won: s.lead.Won, Lost: s.lead.Lost, Tied: s.lead.Tied})
		}
	}
	s.Labelled, s.Votes = len(labelled), int(s.lead.Votes())
	return s
}

// leadAt returns the lead with a lower bound at one level and an upper bound at alpha.
func (s *summary) leadAt(level float64) tidemill.Estimate {
	if k := &s.known; k.level == level && k.votes == s.lead.Votes() {
		return k.lead
	}
	low, value, high := s.lead.Bounds()
	if level != s.lead.Alpha {
		l := *s.lead
		l.Alpha = level
		low, _, _ = l.Bounds()
	}
	s.known.level, s.known.votes, s.known.lead = level, s.lead.Votes(), tidemill.Estimate{Low: low, Value: value, High: high}
	return s.known.lead
}

// digest is a hash over all pairs that count, in the order of their events.
func (c *collection) digest() string {
	h := sha256.New()
	for _, at := range slices.SortedFunc(maps.Keys(c.pairs), place.compare) {
		p := c.pairs[at]
		if p.champion == "" || !p.answered {
			continue
		}
		h.Write(at.bytes())
		for _, text := range []string{p.champion, p.candidate, p.truth, p.group} {
			writeText(h, text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func writeText(h hash.Hash, text string) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
	h.Write([]byte(text))
}

// latencies is a histogram of durations, with eight steps for each doubling.
type latencies struct {
	counts [8 * 40]uint32
	n      int
}

const fastest = 100 * time.Nanosecond

func (l *latencies) add(d time.Duration) {
	i := 0
	if d > fastest {
		i = min(int(8*math.Log2(float64(d)/float64(fastest)))+1, len(l.counts)-1)
	}
	l.counts[i]++
	l.n++
}

// p99 returns the duration in milliseconds that 99 of 100 answers do not exceed, at most a tenth too high.
func (l *latencies) p99() float64 {
	left := l.n / 100
	for i := len(l.counts) - 1; i >= 0; i-- {
		if left -= int(l.counts[i]); left < 0 {
			ms := float64(fastest) / float64(time.Millisecond) * math.Exp2(float64(i)/8)
			return math.Round(ms*1e4) / 1e4
		}
	}
	return 0
}

// outcomeOf reads an outcome; false if it cannot be read.
func outcomeOf(e *broker.Incoming) (d tidemill.OutcomeData, ok bool) {
	return d, json.Unmarshal(e.Data, &d) == nil
}

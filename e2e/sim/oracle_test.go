package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"tidemill.dev/broker/embedded"
)

// oracle reads the streams with another Kafka client, and judges what the publishers, the
// subscribers and the agents saw. It shares no code with Tidemill.
type oracle struct {
	w       *world
	client  *kgo.Client
	records map[string][]record // by stream; in the order of each partition
}

// unpacker decompresses with kafka-go's codecs. The finalizers of kgo's own would close channels of
// the bubble from outside.
type unpacker struct{}

// Decompress returns the bytes of a batch.
func (unpacker) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	r := compress.Codecs[codec].NewReader(bytes.NewReader(src))
	defer r.Close()
	return io.ReadAll(r)
}

type record struct {
	partition int32
	offset    int64
	head      map[string]string
	value     string
	at        time.Time
}

func (r *record) id() string   { return r.head["ce_id"] }
func (r *record) typ() string  { return r.head["ce_type"] }
func (r *record) ours() bool   { return r.head["ce_source"] == "/sim" }
func (r *record) key() string  { return r.head["ce_subject"] }
func (r *record) spot() string { return fmt.Sprint(r.partition, "/", r.offset) }

func newOracle(w *world) (*oracle, error) {
	c, err := kgo.NewClient(append(w.kafka(),
		kgo.ConsumeRegex(), kgo.ConsumeTopics(`^tidemill\..*`), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.WithDecompressor(unpacker{}))...)
	return &oracle{w: w, client: c, records: map[string][]record{}}, err
}

// kafka returns the options of a client of the chaos host.
func (w *world) kafka() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(fmt.Sprint("127.0.0.1:", kafkaPort)),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			if w.servers != nil {
				return w.chaos.Dial(ctx, network, w.servers.Kafka())
			}
			return w.chaos.Dial(ctx, network, at(w.procs[0].host.Load(), kafkaPort))
		})}
	if w.servers != nil {
		return opts
	}
	return append(opts, kgo.SASL(scram.Sha256(func(context.Context) (scram.Auth, error) {
		password, err := w.password(embedded.KafkaPasswordFile)
		return scram.Auth{User: embedded.UserName, Pass: password}, err
	})))
}

// read reads until nothing has come for two seconds.
func (o *oracle) read() {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		fetches := o.client.PollFetches(ctx)
		cancel()
		n := 0
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			one := record{partition: r.Partition, offset: r.Offset, head: map[string]string{}, value: string(r.Value), at: r.Timestamp}
			for _, h := range r.Headers {
				one.head[h.Key] = string(h.Value)
			}
			stream := strings.TrimPrefix(r.Topic, "tidemill.")
			o.records[stream] = append(o.records[stream], one)
		})
		if n == 0 {
			return
		}
	}
}

// complaints returns what is wrong, or not done yet.
func (o *oracle) complaints() (all []string) {
	o.read()
	all = append(o.drained(), o.contradictions()...)
	if len(all) == 0 {
		all = o.agreed()
	}
	return all
}

// contradictions returns what the streams and the outside have against each other. It holds the locks
// of the outside, so it may not wait for the network.
func (o *oracle) contradictions() (all []string) {
	o.w.posts.mu.Lock()
	defer o.w.posts.mu.Unlock()
	o.w.sub.mu.Lock()
	defer o.w.sub.mu.Unlock()
	o.w.agents.mu.Lock()
	defer o.w.agents.mu.Unlock()
	for _, check := range []func() []string{o.stored, o.delivered, o.inOrder, o.committed, o.ran, o.withinSlots, o.scored, o.labelled, o.judged, o.tried, o.rolledOut, o.ticked} {
		all = append(all, check()...)
	}
	return all
}

// drained checks that each consumer group has passed the last record of its stream.
func (o *oracle) drained() (all []string) {
	for group, stream := range map[string]string{"triggers.events": "events", "triggers.facts": "facts", "scorer.intents": "messages"} {
		last := map[int32]int64{}
		for i := range o.records[stream] {
			r := &o.records[stream][i]
			last[r.partition] = max(last[r.partition], r.offset)
		}
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group = "tidemill." + group
		one := kmsg.NewOffsetFetchRequestGroup()
		one.Group = req.Group
		req.Groups = append(req.Groups, one)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		resp, err := req.RequestWith(ctx, o.client)
		cancel()
		if err != nil {
			all = append(all, fmt.Sprintf("read the offsets of %s: %v", req.Group, err))
			continue
		}
		passed := map[int32]int64{}
		for _, g := range resp.Groups {
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					if t.Topic == "tidemill."+stream {
						passed[p.Partition] = p.Offset
					}
				}
			}
		}
		for partition, offset := range last {
			if passed[partition] <= offset {
				all = append(all, fmt.Sprintf("group %s is at offset %d of %s/%d, whose last record has offset %d", req.Group, passed[partition], stream, partition, offset))
			}
		}
	}
	return all
}

// agreed checks that all gateways report the same runs, models and rollouts, and that verdicts can be computed again.
func (o *oracle) agreed() (all []string) {
	for _, path := range []string{"/api/v1/runs?limit=500", "/api/v1/models?limit=500", "/api/v1/rollouts"} {
		var first string
		for i, door := range o.w.doors() {
			status, text, err := o.get(door, path)
			switch {
			case err != nil || status != 200:
				all = append(all, fmt.Sprintf("%s of %s: %d %v %.300s", path, door.name, status, err, text))
			case i == 0:
				first = text
			case text != first:
				all = append(all, fmt.Sprintf("%s differs: %s\n%s", path, first, text))
			}
		}
	}
	if len(all) == 0 {
		all = append(o.rejudged(), o.kept()...)
	}
	return all
}

// home returns the stream of a type of events.
func home(typ string) string {
	if typ == "message" {
		return "messages"
	}
	return "events"
}

// stored checks that each acknowledged event is on its stream.
func (o *oracle) stored() (all []string) {
	on := map[string]bool{}
	for _, stream := range []string{"events", "messages"} {
		for i := range o.records[stream] {
			on[stream+o.records[stream][i].id()] = true
		}
	}
	lost := o.mayBeLost("events", "messages")
	for _, p := range o.w.posts.all {
		if p.acked && !on[home(p.typ)+p.id] && !lost[p.id] {
			all = append(all, fmt.Sprintf("%s %s of %s was acknowledged and is not on its stream", p.typ, p.id, p.key))
		}
	}
	return all
}

// letters returns the number of dead letters of events, by the id of the event, for a trigger or a
// scorer.
func (o *oracle) letters(of string) map[string]int {
	all := map[string]int{}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		if r.typ() == "tidemill.event.dead-lettered" && (r.head["ce_trigger"] == of || r.head["ce_scorer"] == of) {
			all[r.head["ce_causationid"]]++
		}
	}
	return all
}

// delivered checks that each stored event reached the trigger's subscriber, or became a dead letter,
// and that no subscriber got an event that is on no stream.
func (o *oracle) delivered() (all []string) {
	for path, typ := range map[string]string{"/tell": "order-paid", "/tick": "schedule-tick", "/fresh": "new-data"} {
		took, stored := map[string]bool{}, map[string]bool{} // an event may be stored twice
		for _, r := range o.w.sub.took {
			if r.path == path {
				took[r.source+" "+r.id] = true
			}
		}
		letters := o.letters(strings.TrimPrefix(path, "/"))
		for i := range o.records["events"] {
			r := &o.records["events"][i]
			name := r.head["ce_source"] + " " + r.id()
			if r.typ() == typ && !took[name] && letters[r.id()] == 0 {
				all = append(all, fmt.Sprintf("%s %s of %s at %s was not delivered to %s and has no dead letter", typ, r.id(), r.key(), r.spot(), path))
			}
			stored[name] = stored[name] || r.typ() == typ
		}
		for name := range took {
			if !stored[name] && o.w.again["events"].IsZero() {
				all = append(all, fmt.Sprintf("%s got %s, which is on no stream", path, name))
			}
		}
	}
	return all
}

// inOrder checks that the first deliveries of a key's events have the order of the stream. An event
// with a dead letter has none: a request of one of its attempts may arrive at any time.
func (o *oracle) inOrder() (all []string) {
	if !o.w.p.ordered {
		return nil
	}
	first := map[string]*record{}
	for i := range o.records["events"] {
		if r := &o.records["events"][i]; r.ours() && first[r.id()] == nil {
			first[r.id()] = r
		}
	}
	last, seen, letters, lost := map[string]*record{}, map[string]bool{}, o.letters("tell"), o.mayBeLost("events")
	for _, r := range o.w.sub.took {
		is := first[r.id]
		if r.path != "/tell" || seen[r.id] || is == nil || letters[r.id] > 0 || lost[r.id] {
			continue
		}
		seen[r.id] = true
		if before := last[r.key]; before != nil && before.offset > is.offset {
			all = append(all, fmt.Sprintf("order-paid %s of %s at %s was first delivered after %s at %s", r.id, r.key, is.spot(), before.id(), before.spot()))
		}
		last[r.key] = is
	}
	return all
}

// ran checks that each cause has one run, and that each run has ended.
func (o *oracle) ran() (all []string) {
	runs := map[string][]string{}
	for name, r := range o.w.agents.runs {
		for cause := range r.causes {
			runs[cause] = append(runs[cause], name)
		}
	}
	finished, attempts := map[string]string{}, map[string]int{}
	for i := range o.records["facts"] {
		r := &o.records["facts"][i]
		if r.typ() != "tidemill.run.finished" && r.typ() != "tidemill.run.cancelled" {
			continue
		}
		// Only the first end of an attempt counts: a controller that was stalled may say late that the
		// attempt was lost.
		name := r.head["ce_run"]
		if n, _ := strconv.Atoi(r.head["ce_attempt"]); finished[name] == "" || n > attempts[name] {
			finished[name], attempts[name] = r.head["ce_outcome"], n
		}
	}
	lost := o.mayBeLost("events")
	causes := slices.Clone(o.w.posts.all)
	for i := range o.records["events"] {
		if r := &o.records["events"][i]; r.typ() == "new-data" {
			causes = append(causes, &post{id: r.id(), typ: r.typ(), key: r.key(), acked: true})
		}
	}
	for _, p := range causes {
		if p.typ != "bot-created" && p.typ != "new-data" {
			continue
		}
		switch n := len(runs[p.id]); {
		case n > 1:
			slices.Sort(runs[p.id])
			all = append(all, fmt.Sprintf("%s %s of %s has %d runs: %v", p.typ, p.id, p.key, n, runs[p.id]))
		case n == 0 && p.acked && !lost[p.id]:
			all = append(all, fmt.Sprintf("%s %s of %s has no run", p.typ, p.id, p.key))
		case n == 1:
			name := runs[p.id][0]
			if end := finished[name]; end == "" || end == "retrying" {
				all = append(all, fmt.Sprintf("run %s of %s has not ended: %q, its last attempt was told %q", name, p.key, end, o.w.agents.runs[name].ended))
			}
		}
	}
	return all
}

// scored checks that each message has one score or one dead letter for each of its records, and that the version was the
// champion then, or the canary of the event's user. The scores of a key follow its champions in their order.
func (o *oracle) scored() (all []string) {
	answers, answered := map[string]*record{}, map[string]int{} // by place, and number by message
	for i := range o.records["scored"] {
		if r := &o.records["scored"][i]; r.typ() == "tidemill.scored" {
			answers[r.id()+" "+r.head["ce_causationid"]] = r
			answered[r.head["ce_causationid"]]++
		}
	}
	proposed, champions, at := o.proposals(), map[string][]reign{}, map[string]int{} // at is the reign of the last answer to a key
	for model, of := range o.decisions() {
		champions[model] = reigns(of, proposed, o.w.p.clocksDiffer())
	}
	letters, records := o.letters("intents"), map[string]int{}
	for i := range o.records["messages"] {
		r := &o.records["messages"][i]
		records[r.id()]++
		answer := answers["messages/"+r.spot()+" "+r.id()]
		if answer == nil {
			continue
		}
		var d struct{ User string }
		_ = json.Unmarshal([]byte(r.value), &d) // a message without a user has none
		model := answer.head["ce_model"]
		version, _ := strconv.Atoi(answer.head["ce_modelversion"])
		next := at[r.key()]
		for next < len(champions[model]) && !champions[model][next].allows(model, version, d.User, answer.at, o.w.p.judging.share) {
			next++
		}
		if next == len(champions[model]) {
			all = append(all, fmt.Sprintf("message %s of %s was scored by version %d of %s, which was neither its champion nor the user's canary then: %v", r.id(), r.key(), version, model, champions[model][at[r.key()]:]))
			continue
		}
		at[r.key()] = next
	}
	lost := o.mayBeLost("messages", "scored")
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if n := answered[id] + letters[id]; n != records[id] && !lost[id] {
			all = append(all, fmt.Sprintf("message %s is %d times on its stream and has %d scores and %d dead letters", id, records[id], answered[id], letters[id]))
		}
	}
	return all
}

// labelled checks that each answer has one outcome, whose last revision has the truth of the last label that was in time,
// and that each label without such an answer has a dead letter.
func (o *oracle) labelled() (all []string) {
	if o.w.p.observers == 0 {
		return nil
	}
	outcomes, revisions, truths := map[string]int{}, map[string]int{}, map[string]string{}
	for i := range o.records["outcomes"] {
		r := &o.records["outcomes"][i]
		var d struct {
			Place, Truth string
			Revision     int
		}
		if err := json.Unmarshal([]byte(r.value), &d); err != nil {
			all = append(all, fmt.Sprintf("read outcome %s: %v", r.id(), err))
		}
		outcomes[r.id()]++
		if revisions[d.Place]++; d.Revision != revisions[d.Place] {
			all = append(all, fmt.Sprintf("outcome %s has revision %d and comes %d.", r.id(), d.Revision, revisions[d.Place]))
		}
		truths[d.Place] = d.Truth
	}
	// A stream without offsets is read from one wait ago. Kafka may be away for longer when an observer begins.
	since := o.w.history.last("outcomes: a stream is read for the first time").Add(-labelWait)
	labels, answered := map[string][]*record{}, map[string]bool{} // by the id of the message
	for i := range o.records["events"] {
		r := &o.records["events"][i]
		var d struct{ Of string }
		if r.typ() == "verdict" && json.Unmarshal([]byte(r.value), &d) == nil {
			labels[d.Of] = append(labels[d.Of], r)
		}
	}
	for i := range o.records["scored"] {
		r := &o.records["scored"][i]
		if r.typ() != "tidemill.scored" {
			continue
		}
		want := "none"
		for _, l := range labels[r.head["ce_causationid"]] {
			if l.at.Sub(r.at).Abs() <= labelWait {
				var d struct{ Truth string }
				_ = json.Unmarshal([]byte(l.value), &d) // a label without truth would be a wrong truth
				want, answered[l.spot()] = d.Truth, true
			}
		}
		if r.at.Before(since) {
			continue
		}
		if outcomes[r.id()] != 1 || truths[r.id()] != want {
			all = append(all, fmt.Sprintf("the answer to %s at %s has %d outcomes and the truth %q, want 1 and %q", r.head["ce_causationid"], r.id(), outcomes[r.id()], truths[r.id()], want))
		}
	}
	letters := map[string]int{}
	for i := range o.records["dead-letters"] {
		r := &o.records["dead-letters"][i]
		var d struct {
			Group             string
			Partition, Offset int64
		}
		if json.Unmarshal([]byte(r.value), &d) == nil && d.Group == "outcomes.intents" {
			letters[fmt.Sprint(d.Partition, "/", d.Offset)]++
		}
	}
	for _, of := range labels {
		for _, l := range of {
			if n := letters[l.spot()]; (n == 0) != answered[l.spot()] && !l.at.Before(since) {
				all = append(all, fmt.Sprintf("label %s at %s has %d dead letters; an answer was in time: %t", l.id(), l.spot(), n, answered[l.spot()]))
			}
		}
	}
	return all
}

// ticked checks that no scheduled time has two ticks.
func (o *oracle) ticked() (all []string) {
	of := map[string]string{}
	for i := range o.records["events"] {
		r := &o.records["events"][i]
		if r.typ() != "schedule-tick" {
			continue
		}
		at := r.head["ce_time"]
		if before, twice := of[at]; twice {
			all = append(all, fmt.Sprintf("the tick of %s is twice on the stream: %s and %s", at, before, r.id()))
		}
		of[at] = r.id()
	}
	return all
}

package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// asleep and retention are of installs that stop; short ones are of installs whose controllers go on.
	asleep, retention           = 8 * 24 * time.Hour, 7 * 24 * time.Hour
	shortAsleep, shortRetention = 20 * time.Minute, 15 * time.Minute

	// refreshed is enough for a pass of the controllers over all groups, after the longest fault.
	refreshed = 5 * time.Minute
	// recordedWithin is the time within which the controllers record the first scores of a partition, after most faults.
	recordedWithin = 3 * time.Minute
)

// sleep plans for one of twelve clusters that its processes stop for longer than Kafka keeps the offsets of a group without
// members. The controllers and gateways stop with the others, or last, or they go on. In half of the worlds they are killed.
// Such a world costs five times as much as others.
func (p *plan) sleep(r *rand.Rand) {
	recreates := slices.ContainsFunc(p.faults, func(f fault) bool { return f.kind == "recreate" })
	if r.IntN(12) > 0 || !isOn("weeks") || p.up || recreates || p.judging.rollout != "" || p.slots > 0 {
		return
	}
	f := fault{at: p.load/4 + time.Duration(r.Int64N(int64(p.load/2))), kind: "weeks", other: []string{"all", "last", "awake"}[r.IntN(3)], lasts: asleep, n: r.IntN(2)}
	if f.other == "awake" {
		f.lasts = shortAsleep
	}
	p.faults = append(p.faults, f)
}

// weeks returns the fault of that kind, if the world has one.
func (p *plan) weeks() (f fault, has bool) {
	i := slices.IndexFunc(p.faults, func(f fault) bool { return f.kind == "weeks" })
	if i < 0 {
		return f, false
	}
	return p.faults[i], true
}

// sleepWeeks stops processes for a long time. The servers go on. Afterwards the publishers publish again. Before all processes
// stop at once, the controllers record the groups, and then more is published.
func (w *world) sleepWeeks(f fault) {
	if f.other != "awake" {
		w.must(w.forgetGroups(retention))
	}
	if f.other == "all" {
		time.Sleep(refreshed)
		w.posts.begin(1)
		time.Sleep(w.p.load / 2)
	}
	w.slept = time.Now()
	reads := func(o *process) bool { return o.role != "controller" && o.role != "gateway" }
	w.hold(func(o *process) bool { return f.other == "all" || reads(o) }, f.n > 0)
	if f.other == "last" {
		time.Sleep(refreshed)
		w.hold(func(o *process) bool { return !reads(o) }, f.n > 0)
	}
	time.Sleep(f.lasts)
	for _, o := range w.procs {
		o.hold.Store(false)
	}
	w.posts.begin(2)
}

// hold stops processes, and keeps their next lives from beginning. It stops them twice, because a life may begin meanwhile.
func (w *world) hold(which func(*process) bool, kill bool) {
	for range 2 {
		for _, o := range w.procs {
			if !which(o) {
				continue
			}
			o.hold.Store(true)
			if kill {
				o.host.Load().Kill()
			} else {
				o.restart()
			}
		}
		time.Sleep(30 * time.Second)
	}
}

// forgetGroups sets after which time Kafka forgets the offsets of a group without members.
func (w *world) forgetGroups(after time.Duration) error {
	c, err := kgo.NewClient(w.kafka()...)
	if err != nil {
		return err
	}
	defer c.Close()
	minutes := fmt.Sprint(int(after.Minutes()))
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = "offsets.retention.minutes", &minutes
	all := kmsg.NewIncrementalAlterConfigsRequestResource()
	all.ResourceType, all.Configs = kmsg.ConfigResourceTypeBroker, append(all.Configs, setting)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = append(req.Resources, all)
	resp, err := req.RequestWith(w.ctx, c)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Resources[0].ErrorCode)
}

// doubt is a dead letter of a group whose offset Kafka has forgotten, and which may have read further than its record.
type doubt struct {
	Group, Stream, Reason string
	Partition             int32
	Offset                int64
	Last                  int64 `json:"lastOffset"`
}

func (o *oracle) doubts() (all []doubt) {
	for i := range o.records["dead-letters"] {
		var d doubt
		if err := json.Unmarshal([]byte(o.records["dead-letters"][i].value), &d); err == nil && strings.Contains(d.Reason, "offset was forgotten by Kafka") {
			all = append(all, d)
		}
	}
	return all
}

// remembered checks that no group has lost its offset after weeks, unless the controllers stopped with all other processes.
func (o *oracle) remembered() (all []string) {
	f, has := o.w.p.weeks()
	if !has || f.other == "all" {
		return nil
	}
	for _, d := range o.doubts() {
		all = append(all, fmt.Sprintf("group %s of %s/%d does not know what it read of the offsets %d to %d: %s", d.Group, d.Stream, d.Partition, d.Offset, d.Last, d.Reason))
	}
	if at := o.w.history.last("Kafka has forgotten the group's offset"); !at.IsZero() && f.other == "awake" {
		all = append(all, fmt.Sprintf("at %v Kafka had forgotten a group, and a controller was there", at.Sub(o.w.history.began)))
	}
	return all
}

// again has the messages that a scorer read again after all processes had stopped for weeks. Such a message may have a dead
// letter too many, or a score after its dead letter. docs/promises.md names this case. If its partition had its first score just
// before, no record says yet where the outputs begin, and the message may have a second score.
type again struct{ all, young map[string]bool }

func (o *oracle) readAgain() again {
	a := again{map[string]bool{}, map[string]bool{}}
	for _, d := range o.doubts() {
		if d.Group != "scorer.intents" {
			continue
		}
		first := time.Now() // time of the partition's first score
		for i := range o.records["scored"] {
			if r := &o.records["scored"][i]; strings.HasPrefix(r.id(), fmt.Sprintf("messages/%d/", d.Partition)) && r.at.Before(first) {
				first = r.at
			}
		}
		for i := range o.records["messages"] {
			if r := &o.records["messages"][i]; r.partition == d.Partition && d.Offset <= r.offset && r.offset <= d.Last {
				a.all[r.id()], a.young[r.id()] = true, first.After(o.w.slept.Add(-recordedWithin))
			}
		}
	}
	return a
}

// mayDiffer reports whether a message may have more scores and dead letters than records.
func (a again) mayDiffer(id string, records, scores, letters int) bool {
	return scores+letters > records && a.all[id] && (scores <= records || a.young[id])
}

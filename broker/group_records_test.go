package broker

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// A member whose first record has an unknown outcome joins again, and reads after that.
func TestMemberRepeatsARecordInDoubt(t *testing.T) {
	t.Parallel()
	b, c := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters", "prod.group-offsets"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError})
	taken := make(chan []Position, 1)
	member, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Companions: []string{"not-there"}, Start: Latest(),
		Assigned: func(_ context.Context, at []Position) ([]Position, error) { taken <- at; return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close(context.Background())
	select {
	case <-taken:
	case <-time.After(hostilePatience):
		t.Fatal("the member does not read")
	}
	var known groupRecords
	if err := b.readGroupRecords(t.Context(), &known); err != nil || len(known.all["g"]) != 1 {
		t.Errorf("the records are %+v, %v", known.all, err)
	}
}

// A group that starts at the latest event begins once: at the ends that the partitions have when its first member joins. This also
// holds if that member dies before Kafka has the first offsets, or has only some of them.
func TestAGroupBeginsOnce(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string][]int32{"all": nil, "one": {1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, k := openFake(t, kfake.SeedTopics(2, "prod.events"), kfake.SeedTopics(1, "prod.dead-letters", "prod.group-offsets"))
			p, err := b.Producer(ProducerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(context.Background())
			publish := func(id string) {
				for part := range int32(2) {
					p.SendTo(t.Context(), "events", part, &View{ID: id, Source: "/x", Type: "t"}, func(_ Receipt, err error) {
						if err != nil {
							t.Error(err)
						}
					})
				}
				if err := p.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			assigned := make(chan []Position, 9)
			join := func() *Consumer {
				c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Latest(),
					Assigned: func(_ context.Context, at []Position) ([]Position, error) { assigned <- at; return nil, nil }})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			publish("before")
			f := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Partitions: refused, Err: kerr.UnknownTopicOrPartition, Count: -1})
			first := join()
			if err := f.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			_ = first.Close(t.Context()) // it has committed nothing
			f.Remove()
			publish("between")
			second := join()
			defer second.Close(context.Background())
			<-assigned
			publish("after")
			got := map[int32]string{}
			for ended := 0; ended < 2; {
				d := pollOne(t, second)
				for _, e := range d.Events {
					got[d.Partition] += e.ID + " "
					if e.ID == "after" {
						ended++
					}
				}
				d.Done()
			}
			if got[0] != "between after " || got[1] != got[0] {
				t.Errorf("the second member reads %v", got)
			}
			if ends, err := b.Ends(t.Context(), "dead-letters"); err != nil || ends[0].Offset != 0 {
				t.Errorf("%v, %v: there are dead letters", ends, err)
			}
		})
	}
}

// A server does not know a new stream yet when a group begins to read it. The group asks again.
func TestAGroupBeginsWhileAServerDoesNotKnowTheStream(t *testing.T) {
	t.Parallel()
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters", "prod.group-offsets"))
	asked := 0
	k.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if req.Version < 10 { // it does not ask for ids
			return nil, nil, false
		}
		if asked++; asked > 1 {
			return nil, nil, false
		}
		answer, one := r.ResponseKind().(*kmsg.MetadataResponse), kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = req.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
		answer.Topics = append(answer.Topics, one)
		return answer, nil, true
	})
	p := producer(t, b)
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Latest(),
		Assigned: func(ctx context.Context, _ []Position) ([]Position, error) {
			_, err := p.Publish(ctx, "events", &View{ID: "1", Source: "/x", Type: "t"})
			return nil, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	pollOne(t, c).Done()
}

// The leader sends heartbeats while it records where the group begins. Kafka may take longer for that than a session.
func TestALeaderBeatsWhileItAssigns(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, k := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		f := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "prod.group-offsets", Err: kerr.NotEnoughReplicas, Count: -1})
		joins := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1})
		c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Latest()})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep((defaultSession + rebalanceTimeout) / 2)
		f.Remove()
		time.Sleep(2 * defaultSession)
		if n := joins.Hits(); n != 2 || f.Hits() == 0 || c.Stats().Rebalances != 1 { // the first one gets the member's id
			t.Errorf("it has sent %d requests to join, and %d records; it has joined %d times", n, f.Hits(), c.Stats().Rebalances)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The records are read from the first partition, so they are all written there, however many the stream has.
func TestRecordsAreReadFromAStreamWithMorePartitions(t *testing.T) {
	t.Parallel()
	b, _ := openFake(t, kfake.SeedTopics(3, "prod.group-offsets"))
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	const groups = 12
	for n := range groups {
		if err := b.writeGroupRecords(t.Context(), p, []groupRecord{{Group: fmt.Sprint("g", n), Stream: "events", Offset: int64(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	var known groupRecords
	if err := b.readGroupRecords(t.Context(), &known); err != nil || len(known.all) != groups {
		t.Errorf("%d of %d groups have a record: %v", len(known.all), groups, err)
	}
}

// A refresher records all that a group without members has committed. Of a group with members it
// records a change seldom, but a first note at once.
func TestRecordsThatAreDue(t *testing.T) {
	t.Parallel()
	b, _ := openFake(t)
	note := func(text string) string { return encodeMetadata(5, text, nil) }
	now := time.Now()
	for name, c := range map[string]struct {
		was   *groupRecord
		empty bool
		at    int64
		meta  string
		want  bool
	}{
		"unknown":                    {nil, false, 5, "", true},
		"unchanged":                  {&groupRecord{Offset: 5, at: now}, false, 5, "", false},
		"moved":                      {&groupRecord{Offset: 4, at: now}, false, 5, "", false},
		"moved long ago":             {&groupRecord{Offset: 4, at: now.Add(-2 * time.Hour)}, false, 5, "", true},
		"unchanged for long":         {&groupRecord{Offset: 5, at: now.Add(-2 * time.Hour)}, false, 5, "", false},
		"first note":                 {&groupRecord{Offset: 5, at: now}, false, 5, note("n"), true},
		"another note":               {&groupRecord{Offset: 5, Metadata: note("m"), at: now}, false, 5, note("n"), false},
		"empty, moved":               {&groupRecord{Offset: 4, at: now}, true, 5, "", true},
		"empty, not final":           {&groupRecord{Offset: 5, at: now}, true, 5, "", true},
		"empty, final":               {&groupRecord{Offset: 5, Final: true, at: now}, true, 5, "", false},
		"with members after a final": {&groupRecord{Offset: 5, Final: true, at: now}, false, 5, "", true},
		"without an offset":          {nil, true, -1, "", false},
	} {
		tp := wire.TopicPartition{Topic: "prod.events"}
		g := GroupRefresher{b: b, every: time.Hour, known: groupRecords{all: map[string]map[wire.TopicPartition]groupRecord{"g": {}}}}
		if c.was != nil {
			g.known.all["g"][tp] = *c.was
		}
		all := g.due("prod.g", map[wire.TopicPartition]wire.CommittedOffset{tp: {Offset: c.at, Metadata: c.meta}}, c.empty)
		if len(all) == 1 != c.want || c.want && (all[0].Final != c.empty || all[0].Group != "g" || all[0].Stream != "events") {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

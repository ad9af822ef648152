package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/retry"
)

// diary records the calls of a consumer's hooks, one line each, and can wait for a call.
type diary struct {
	t     *testing.T
	mu    sync.Mutex
	lines []string
	news  chan struct{}
}

func newDiary(t *testing.T) *diary { return &diary{t: t, news: make(chan struct{})} }

func (d *diary) note(what string, all []Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := what
	for _, p := range all {
		line += fmt.Sprintf(" %d", p.Partition)
	}
	d.lines = append(d.lines, line)
	close(d.news)
	d.news = make(chan struct{})
}

// expectLines waits for the next lines. They may list all partitions at once or some after the
// others, because a partition is given up when it is ready, and on a busy machine they are not
// ready together.
func (d *diary) expectLines(line string) {
	d.t.Helper()
	left := strings.Fields(line)
	for len(left) > 1 {
		for _, word := range strings.Fields(d.expectLine(line))[1:] {
			i := slices.Index(left, word)
			if i < 1 {
				d.t.Fatalf("noted of partition %s too, want %q", word, line)
			}
			left = slices.Delete(left, i, i+1)
		}
	}
}

// expectLine waits for the next line, which must begin like the wanted one.
func (d *diary) expectLine(want string) string {
	d.t.Helper()
	for patience := time.After(2 * time.Minute); ; {
		d.mu.Lock()
		news, have := d.news, ""
		if len(d.lines) > 0 {
			have, d.lines = d.lines[0], d.lines[1:]
		}
		d.mu.Unlock()
		switch {
		case have != "" && strings.Fields(have)[0] == strings.Fields(want)[0]:
			return have
		case have != "":
			d.t.Fatalf("noted %q, want %q", have, want)
		}
		select {
		case <-news:
		case <-patience:
			d.t.Fatalf("nothing is noted, want %q", want)
		}
	}
}

func (d *diary) assigned(_ context.Context, all []Position) ([]Position, error) {
	d.note("assigned", all)
	return nil, nil
}

func (d *diary) gone(all []Position) { d.note("gone", all) }

// newConsumer returns a consumer whose hooks write to the diary.
func (d *diary) newConsumer(b *Broker, o ConsumerOptions) *Consumer {
	d.t.Helper()
	o.Group, o.Streams, o.Assigned, o.Gone = "g", []string{"events"}, d.assigned, d.gone
	c, err := b.Consumer(d.t.Context(), o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// sixPartitions returns a stream of six partitions.
func sixPartitions(t *testing.T) (*Broker, *kfake.Cluster) {
	t.Helper()
	t.Parallel()
	return openFake(t, kfake.GroupMinSessionTimeout(100*time.Millisecond), kfake.SeedTopics(6, "prod.events", "prod.dead-letters"))
}

// If Kafka does not return the group's offsets after an aborted transaction, the tenure ends, and
// then the next one begins.
func TestTenureEndsWithAFailedRewind(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters"))
	publishAll(t, b, "events", "a")
	d := newDiary(t)
	c := d.newConsumer(b, ConsumerOptions{})
	x, err := c.Transactor(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close(context.Background()) })
	got := pollOne(t, c)
	d.expectLines("assigned 0")
	refused := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.GroupAuthorizationFailed, TopLevel: true})
	err = x.Do(t.Context(), func(tx *Tx) error { tx.Done(got); return errors.New("no") })
	if !errors.Is(err, ErrAborted) || refused.Hits() != 1 {
		t.Errorf("error is %v, %d were refused", err, refused.Hits())
	}
	d.expectLines("gone 0")
	d.expectLines("assigned 0")
	again := pollOne(t, c)
	if id := string(again.Events[0].ID); id != "a" {
		t.Errorf("%s comes again", id)
	}
	again.Done()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	d.expectLines("gone 0")
}

// A consumer that the group has forgotten gets Gone for all partitions before the next Assigned.
func TestTenureEndsWithTheSession(t *testing.T) {
	b, k := sixPartitions(t)
	d := newDiary(t)
	c := d.newConsumer(b, ConsumerOptions{Leaving: func(context.Context, []Position) { t.Error("nothing is left politely") }, SessionTimeout: 3 * time.Second})
	d.expectLines("assigned 0 1 2 3 4 5")
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, TopLevel: true})
	d.expectLines("gone 0 1 2 3 4 5")
	d.expectLines("assigned 0 1 2 3 4 5")
	c.opt.Leaving = nil // it closes in order
}

// A slow Leaving delays only the partitions that leave. The others are read on, and heartbeats
// continue. When its time is up, it ends.
func TestLeavingHoldsUpNothingElse(t *testing.T) {
	b, _ := sixPartitions(t)
	d, e := newDiary(t), newDiary(t)
	release, late := make(chan struct{}), make(chan error, 1)
	first := d.newConsumer(b, ConsumerOptions{SessionTimeout: 4 * time.Second, DrainTimeout: 5 * time.Second,
		Leaving: func(ctx context.Context, all []Position) {
			d.note("leaving", all)
			select {
			case <-release:
			case <-ctx.Done():
				late <- context.Cause(ctx)
			}
		}})
	d.expectLines("assigned 0 1 2 3 4 5")
	second := e.newConsumer(b, ConsumerOptions{})
	d.expectLines("leaving 0 1 2")
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // some of these are in partitions that stay
		v := &View{ID: key, Source: "/x", Type: "t", Subject: key}
		p := producer(t, b)
		if _, err := p.Publish(t.Context(), "events", v); err != nil {
			t.Fatal(err)
		}
	}
	got := pollOne(t, first)
	if got.Partition < 3 {
		t.Errorf("partition %d is leaving and is handed out", got.Partition)
	}
	got.Done()
	select {
	case err := <-late:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the time to leave ended with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("its time does not end")
	}
	d.expectLines("gone 0 1 2")
	e.expectLines("assigned 0 1 2")
	close(release)
	if err := errors.Join(second.Close(t.Context()), first.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// A partition that is given back during Leaving is given up first.
func TestGivenBackWhileItLeaves(t *testing.T) {
	b, _ := sixPartitions(t)
	d, e := newDiary(t), newDiary(t)
	release := make(chan struct{})
	first := d.newConsumer(b, ConsumerOptions{DrainTimeout: time.Minute, Leaving: func(_ context.Context, all []Position) {
		d.note("leaving", all)
		<-release
	}})
	d.expectLines("assigned 0 1 2 3 4 5")
	second := e.newConsumer(b, ConsumerOptions{})
	d.expectLines("leaving 0 1 2")
	_, generation, _, _ := first.member.snapshot()
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for ok := false; !ok; {
		_, now, _, _ := first.member.snapshot()
		if ok = now > generation; !ok {
			if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(release)
	d.expectLines("gone 0 1 2")
	d.expectLines("assigned 0 1 2")
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	d.expectLines("leaving 0 1 2 3 4 5")
	d.expectLines("gone 0 1 2 3 4 5")
}

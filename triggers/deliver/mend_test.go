package deliver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/e2e/sim/vnet"
	"tidemill.dev/triggers/commands"
)

// virtualKafka starts a Kafka in virtual time, without streams. It returns a connection to it, and a config with a trigger.
func virtualKafka(t *testing.T) (*embedded.Servers, *broker.Broker, *config.Config) {
	t.Helper()
	ctx := context.Background()
	over := vnet.New(vnet.Options{Fault: func(*vnet.Message) vnet.Fault { return vnet.Fault{Delay: time.Millisecond} }}).Host("a").Network()
	s, err := embedded.Start(ctx, embedded.Options{Network: over})
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("test.yaml", []byte("version: 1\ntriggers:\n  tell: {when: {type: a}, to: {url: \"http://127.0.0.1:1/\"}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	names, err := c.Names()
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Open(ctx, broker.Options{Addr: s.Kafka(), Names: names, Network: over})
	if err != nil {
		t.Fatal(err)
	}
	return s, b, c
}

// ensureStreams creates the streams of a config, with one partition each.
func ensureStreams(t *testing.T, b *broker.Broker, c *config.Config) {
	t.Helper()
	var specs []broker.StreamSpec
	for _, of := range c.Streams {
		specs = append(specs, broker.StreamSpec{Name: of.Name, Partitions: 1})
	}
	specs = append(specs, broker.StreamSpec{Name: tidemill.Parked(tidemill.StreamEvents), Partitions: 1})
	if _, err := b.EnsureStreams(context.Background(), specs, broker.EnsureOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A Kafka that refuses the group for good, as without an authorization, fails each new pipeline. The
// dispatcher must pause before it opens the next pipeline.
func TestAPermanentErrorIsTriedOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s, b, c := virtualKafka(t)
		defer s.Close()
		defer b.Close()
		ensureStreams(t, b, c)
		var joins atomic.Int64
		s.Cluster().ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
			s.Cluster().KeepControl()
			joins.Add(1)
			resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
			resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
			return resp, nil, true
		})
		d, err := Open(ctx, Options{Broker: b, Config: c})
		if err != nil {
			t.Fatal(err)
		}
		const seconds = 20
		time.Sleep(seconds * time.Second)
		if got := joins.Load(); got < seconds/2 || got > 2*seconds {
			t.Errorf("%d requests to join the group in %d seconds", got, seconds)
		}
		if c := d.Check(); c.Detail == "" {
			t.Errorf("the readiness shows nothing: %+v", c)
		}
		closing, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := d.Close(closing); err != nil {
			t.Log(fmt.Errorf("close: %w", err))
		}
	})
}

// A stream that Kafka does not have is looked for each second. The log says it once.
func TestTheLogOfAMissingStreamIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s, b, c := virtualKafka(t)
		defer s.Close()
		defer b.Close()
		if _, err := b.EnsureStreams(ctx, []broker.StreamSpec{{Name: tidemill.StreamCommands, Partitions: 1}}, broker.EnsureOptions{}); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		d, err := Open(ctx, Options{Broker: b, Config: c, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := bytes.Count(log.Bytes(), []byte("starting the triggers of a stream failed")); got != 1 {
			t.Errorf("%d lines:\n%s", got, log.String())
		}
		if c := d.Check(); c.Detail == "" {
			t.Errorf("the readiness shows nothing: %+v", c)
		}
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// While Kafka does not answer, the log says that the look for parked events fails: at once, and then once a minute.
func TestTheLogOfAnOutageIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s, b, _ := virtualKafka(t)
		defer b.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		d := &Dispatcher{o: Options{Broker: b, Logger: slog.New(slog.NewTextHandler(&log, nil))}, config: config.Default()}
		lines := func() int { return bytes.Count(log.Bytes(), []byte("looking for parked events failed")) }
		d.findLeft(ctx)
		if lines() != 1 {
			t.Errorf("after the first try the log is %q", log.String())
		}
		const minutes = 5
		for until := time.Now().Add(minutes*time.Minute - time.Second); time.Now().Before(until); time.Sleep(mendEvery) {
			d.findLeft(ctx)
		}
		if got := lines(); got < minutes-1 || got > minutes+1 {
			t.Errorf("%d lines in %d minutes", got, minutes)
		}
	})
}

// A trigger is removed while no dispatcher runs. Its parked events become dead letters as soon as the config of the next
// dispatcher no longer counts as the older one.
func TestARemovedTriggersEventsEndAfterTheSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s, b, c := virtualKafka(t)
		defer s.Close()
		defer b.Close()
		ensureStreams(t, b, c)
		p, err := b.Producer(broker.ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close(ctx) }()
		names, _ := c.Names()
		by := commands.Author{Names: names, By: "ada", Now: time.Now()}
		pause, event := by.PauseTrigger("tell"), broker.View{ID: "1", Source: "/x", Type: "a"}
		if _, err := commands.Publish(ctx, p, &pause); err != nil {
			t.Fatal(err)
		}
		open := func(c *config.Config, skew time.Duration) *Dispatcher {
			d, err := Open(ctx, Options{Broker: b, Config: c, Skew: skew})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Ready(ctx); err != nil {
				t.Fatal(err)
			}
			return d
		}
		d := open(c, 0)
		if _, err := p.Publish(ctx, tidemill.StreamEvents, &event); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if n := parkedOf(d, "tell"); n != 1 {
			t.Fatalf("%d events are parked", n)
		}
		if err := d.Close(ctx); err != nil {
			t.Fatal(err)
		}
		without := *c
		without.Triggers = nil
		d = open(&without, 75*time.Second)
		time.Sleep(5 * time.Second)
		ends, err := b.Ends(ctx, tidemill.StreamDeadLetters)
		if err != nil || len(ends) != 1 || ends[0].Offset != 1 {
			t.Errorf("the dead letters end at %v: %v", ends, err)
		}
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

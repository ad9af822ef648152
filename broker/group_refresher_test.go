package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/e2e/sim/vnet"
)

// inVirtualTime runs a test in virtual time. All tests share the compressors and their channels, which
// must not belong to the test's bubble. So they are made before the test.
func inVirtualTime(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	c, p := bareReader(t, ConsumerOptions{}, nil)
	r := encodeRecord(plainEvent())
	r.Value = make([]byte, 1<<10)
	var b wire.Builder
	b.Append(r)
	if err := b.Seal(wire.Zstd); err != nil {
		t.Fatal(err)
	}
	b.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	c.receive(fetchOf(p), &wire.Fetched{Records: b.Bytes(), HighMark: 1}, nil)
	pollNow(t, c).Done()
	synctest.Test(t, test)
}

// virtualFake is openFake in virtual time, with streams of one partition.
func virtualFake(t *testing.T, log slog.Handler, streams ...string) (*Broker, *kfake.Cluster) {
	t.Helper()
	over := vnet.New(vnet.Options{Fault: func(*vnet.Message) vnet.Fault { return vnet.Fault{Delay: time.Millisecond} }}).Host("a").Network()
	c := fakeCluster(t, kfake.NumBrokers(1), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		return over.Listen(context.Background(), network, address)
	}), kfake.SeedTopics(1, streams...))
	o := options(t, strings.Join(c.ListenAddrs(), ","), Security{})
	o.Network, o.Logger = over, slog.New(log)
	b, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, c
}

// readOnce reads an event with a group, which then has an offset and no members.
func readOnce(t *testing.T, b *Broker, group string) {
	t.Helper()
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: group, Streams: []string{"events"}, Start: Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	poll(t, c).Done()
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A refresher asks again for Kafka's retention, if the connection was lost when it began.
func TestTheRetentionIsAskedForAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, c := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		asked := 0
		c.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if asked++; asked == 1 {
				return nil, errors.New("the connection is lost"), true
			}
			minutes := "40"
			set := kmsg.NewDescribeConfigsResponseResourceConfig()
			set.Name, set.Value = "offsets.retention.minutes", &minutes
			one := kmsg.NewDescribeConfigsResponseResource()
			one.Configs = append(one.Configs, set)
			resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
			resp.Resources = append(resp.Resources, one)
			return resp, nil, true
		})
		g, err := b.GroupRefresher(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(context.Background())
		guess := g.every
		for range 2 {
			if err := g.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if guess != longestAbsence || g.every != 10*time.Minute || asked != 2 {
			t.Errorf("after %d questions the interval is %v; the guess was %v", asked, g.every, guess)
		}
	})
}

// Kafka may forget a group that no consumer needs any more.
func TestAGroupThatHasEndedIsNotJoined(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		publishOne(t, producer(t, b))
		readOnce(t, b, "ended")
		readOnce(t, b, "needed")
		g, err := b.GroupRefresher(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(context.Background())
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx, func() bool { return true }, func(group string) bool { return group == "ended" })
		time.Sleep(2 * refreshEvery)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(g.joined) != 1 || g.joined["prod.needed"].IsZero() {
			t.Errorf("the joined groups are %v", g.joined)
		}
	})
}

// A group whose offsets a transaction holds for ever fails a pass, and does not stop it.
func TestAPassEndsAlthoughTheOffsetsOfAGroupAreUnstable(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, c := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		publishOne(t, producer(t, b))
		readOnce(t, b, "held")
		readOnce(t, b, "free")
		c.ControlKey(int16(kmsg.OffsetFetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			req := r.(*kmsg.OffsetFetchRequest)
			if req.Group != "prod.held" && !slices.ContainsFunc(req.Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return g.Group == "prod.held" }) {
				return nil, nil, false
			}
			resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
			resp.ErrorCode = kerr.UnstableOffsetCommit.Code
			for _, g := range req.Groups {
				of := kmsg.NewOffsetFetchResponseGroup()
				of.Group, of.ErrorCode = g.Group, kerr.UnstableOffsetCommit.Code
				resp.Groups = append(resp.Groups, of)
			}
			return resp, nil, true
		})
		g, err := b.GroupRefresher(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(context.Background())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := g.Pass(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "group prod.held: ") {
			t.Errorf("the pass returns %v; %v", err, ctx.Err())
		}
		var known groupRecords
		if err := b.readGroupRecords(t.Context(), &known); err != nil {
			t.Fatal(err)
		}
		if r := known.all["free"][wire.TopicPartition{Topic: "prod.events"}]; !r.Final || r.Offset != 1 {
			t.Errorf("the record of the other group is %+v", r)
		}
	})
}

package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

// newDurableWorld returns a world whose servers can be restarted.
func newDurableWorld(t testing.TB, change func(*Options)) (w *world, restart func(away func())) {
	t.Helper()
	o := embedded.Options{Dir: t.TempDir()}
	w = &world{TB: t, config: must1(config.Parse("test.yaml", []byte(testConfig)))(t)}
	w.servers = must1(embedded.Start(t.Context(), o))(t)
	o.Kafka, o.Redis = w.servers.Kafka(), w.servers.Redis()
	t.Cleanup(func() { w.must(w.servers.Close()) })
	w.broker = must1(broker.Open(t.Context(), broker.Options{Addr: w.servers.Kafka(), Names: must1(w.config.Names())(t)}))(t)
	t.Cleanup(func() { w.must(w.broker.Close()) })
	w.createStreams()
	w.redis = redis.NewClient(&redis.Options{Addr: w.servers.Redis(), DisableIdentity: true})
	t.Cleanup(func() { w.must(w.redis.Close()) })
	w.gateway = w.openGateway(change)
	w.url = "http://" + w.gateway.Addr()
	return w, func(away func()) {
		t.Helper()
		w.must(w.servers.Close())
		away()
		w.startAgain(o)
	}
}

// publishedEvents holds the events of a stream.
type publishedEvents struct {
	mu    sync.Mutex
	there map[string]string // ids by position
}

func (p *publishedEvents) send(w *world, to *broker.Producer, stream, name string, n int) {
	var all sync.WaitGroup
	for i := range n {
		v := broker.View{ID: fmt.Sprint(name, "-", i), Source: "/x", Type: "t", Subject: fmt.Sprint("key-", i)}
		all.Add(1)
		to.Send(w.Context(), stream, &v, func(r broker.Receipt, err error) {
			defer all.Done()
			if err != nil {
				w.Errorf("publish: %v", err)
			}
			p.mu.Lock()
			p.there[fmt.Sprint(r.Partition, "/", r.Offset)] = v.ID
			p.mu.Unlock()
		})
	}
	all.Wait()
}

// The reader, the gateway and Kafka restart at random while events are published. A reader
// that resumes from its last id misses no event and gets none twice.
func TestTailGoesOnOverEveryRestart(t *testing.T) {
	t.Parallel()
	const portions, portion = 60, 20
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w, restart := newDurableWorld(t, nil)
			random := rand.New(rand.NewPCG(seed, 7))
			p := &publishedEvents{there: map[string]string{}}
			producer := must1(w.broker.Producer(broker.ProducerOptions{}))(t) // gives up later than a gateway's producer
			t.Cleanup(func() { _ = producer.Close(context.Background()) })
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := range portions {
					p.send(w, producer, "messages", fmt.Sprint(i), portion)
				}
			}()
			seen, id := map[string]string{}, ""
			for cut := 0; len(seen) < portions*portion; cut++ {
				switch {
				case cut%5 == 3:
					w.must(w.gateway.Close(t.Context()))
					w.gateway = w.openGateway(nil)
					w.url = "http://" + w.gateway.Addr()
				case cut == 6:
					restart(func() {})
				}
				id = w.readSome(id, 1+random.IntN(200), portions*portion, seen)
				if t.Failed() {
					break
				}
			}
			<-done
			p.mu.Lock()
			defer p.mu.Unlock()
			for place, want := range p.there {
				if seen[place] != want {
					t.Errorf("%s holds %s, and %q was read", place, want, seen[place])
				}
			}
		})
	}
}

// readSome reads up to n events after an id, until all have been seen, and returns its last
// id. If it is refused, it tries again.
func (w *world) readSome(id string, n, all int, seen map[string]string) string {
	w.Helper()
	path := "messages/events?from=beginning"
	var l *tailListener
	waitFor(w, func() (ok bool) {
		var err error
		l, err = w.tryListen(path, lastEventID, id)
		if err == nil && l.res.StatusCode != http.StatusOK {
			l.close()
		}
		return err == nil && l.res.StatusCode == http.StatusOK
	})
	defer l.close()
	for n > 0 && len(seen) < all {
		b, err := l.nextBlock()
		if err != nil {
			return id
		}
		if b.data != "" {
			line := tailedOf(w, b)
			place := fmt.Sprint(line.Partition, "/", line.Offset)
			if was, twice := seen[place]; twice || line.Error != "" {
				w.Errorf("%s was read twice (%s), or %s", place, was, line.Error)
			}
			seen[place] = idOf(w, line)
			n--
		}
		if b.id != "" {
			id = b.id
		}
	}
	return id
}

// While Kafka is away a tail shows signs of life, and it continues when Kafka is back.
func TestTailOutlivesKafka(t *testing.T) {
	t.Parallel()
	w, restart := newDurableWorld(t, func(o *Options) { o.Limits.Keepalive = 100 * time.Millisecond })
	l := w.listen("events/events")
	l.firstID()
	restart(func() {
		for range 3 {
			if b, err := l.nextBlock(); err != nil || b.comment != "keepalive" {
				t.Errorf("while Kafka is away: %+v, %v", b, err)
			}
		}
	})
	must1(w.producer.Publish(t.Context(), "events", &broker.View{ID: "1", Source: "/x", Type: "t"}))(t)
	if line, _ := l.next(); idOf(t, line) != "1" || line.Error != "" {
		t.Errorf("%+v", line)
	}
}

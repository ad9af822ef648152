package brokertest

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Server is a running Kafka.
type Server struct {
	Addr string
	// Restart stops the server in order and starts it at the same address.
	Restart func(testing.TB)
	// Kill kills the server and starts it at the same address; nil if it cannot be killed.
	Kill func(testing.TB)
	// Session is the shortest session timeout that the server allows.
	Session time.Duration
}

type testCase struct {
	name string
	run  func(*testWorld)
}

func cases() []testCase {
	return []testCase{
		{"publish/order, offsets and codecs", publishOrder},
		{"publish/many at once", publishConcurrently},
		{"publish/large events", publishLarge},
		{"publish/too large alone fails", publishTooLarge},
		{"publish/no such stream", publishNoStream},
		{"publish/tiny buffer", publishTinyBuffer},
		{"publish/to a partition of choice", publishTo},
		{"publish/flush", publishFlush},
		{"publish/close waits", publishClose},
		{"publish/close in a hurry", publishCloseHurried},

		{"consume/from earliest, latest, offset and time", consumeStarts},
		{"consume/an unread beginning is kept", consumeLatestKept},
		{"consume/out of order", consumeOutOfOrder},
		{"consume/an open event comes again", consumeOpenEvent},
		{"consume/pause and resume", consumePause},
		{"consume/a paused partition does not delay others", consumePausedSmall},
		{"consume/bounded bytes", consumeBounded},
		{"consume/members come and go", groupChurn},
		{"consume/what is retained flows on", groupStall},
		{"consume/partitions grow", groupGrowth},

		{"committed/aborted events are never seen", committedAborted},
		{"committed/an open transaction holds readers back", committedOpen},
		{"committed/markers leave no lag", committedLag},

		{"read/anywhere", readAnywhere},
		{"read/an open transaction", readOpen},
		{"read/below a position all is deleted", deletedBelow},

		{"letters/a record that is not an event", letterUndecodable},
		{"letters/a record too large for a letter", letterTooLarge},
		{"letters/offsets below the start", letterGap},
		{"letters/an offset beyond the end", letterBeyond},

		{"transact/exactly once, aborts included", transactCopy},
		{"transact/members come and go", transactChurn},
		{"transact/an aborted one leaves no trace", transactAbort},
		{"transact/a zombie is fenced", transactZombie},
		{"transact/a caller without time", transactTimeUp},
		{"transact/places are marked", transactMarks},
		{"transact/a mark alone", transactMarkAlone},
		{"transact/a mark of one put out", transactMarkZombie},
		{"transact/beside ends one by one", transactMixed},

		{"notes/of a transaction", notesInTransactions},
		{"notes/by and by", notesByAndBy},
		{"notes/of one put out", notesZombie},

		{"forgotten/a final record", forgottenFinal},
		{"forgotten/an older record", forgottenStale},
		{"forgotten/no record", forgottenUnrecorded},
		{"forgotten/a stream that was made again", forgottenStream},
		{"forgotten/a shorter stream that was made again", forgottenShortStream},
		{"forgotten/a stream that is made again while it is read", streamAgainWhileRead},
		{"forgotten/a wrong clock", forgottenClock},
		{"forgotten/a refresher beside members", refresherBesideMembers},

		{"exclusive/one holder", exclusiveOne},
		{"exclusive/no taking back", exclusiveStays},

		{"tenure/in order", tenures},
	}
}

// restartCases are cases that restart the server, so they run alone.
func restartCases() []testCase {
	return []testCase{
		{"restart/published once and in order", restartPublish},
		{"restart/consumed, none lost", restartConsume},
		{"restart/transactions", restartTransact},
		{"restart/an exclusive name", restartExclusive},
	}
}

// Run runs the suite.
func Run(t *testing.T, s Server) {
	t.Run("shared", func(t *testing.T) {
		for _, c := range cases() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(newWorld(t, s))
			})
		}
	})
	if s.Restart == nil {
		return
	}
	for _, c := range restartCases() {
		t.Run(c.name, func(t *testing.T) { c.run(newWorld(t, s)) })
	}
}

// waitLimit limits every wait of the suite. The limit only ends hangs and measures nothing.
const waitLimit = 3 * time.Minute

// transactionTimeout is the transaction timeout. The timeout is longer than any transaction of a
// case on a busy machine. It is short enough for cases that wait until Kafka ends an abandoned
// transaction.
const transactionTimeout = time.Minute

// testWorld is one case's install on the server.
type testWorld struct {
	*testing.T
	srv    Server
	b      *broker.Broker
	names  tidemill.Names
	client *kafka.Client
}

func newWorld(t *testing.T, s Server) *testWorld {
	t.Helper()
	h := fnv.New64a()
	fmt.Fprint(h, t.Name(), time.Now().UnixNano())
	name := strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)))
	names, err := tidemill.NewNames("t" + name)
	if err != nil {
		t.Fatal(err)
	}
	w := &testWorld{T: t, srv: s, names: names}
	w.b = w.reopen()
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &kafka.Client{Addr: kafka.TCP(s.Addr), Transport: transport}
	w.streams(broker.StreamSpec{Name: tidemill.StreamDeadLetters, Partitions: 1, MaxMessageBytes: 4 << 20})
	return w
}

// reopen opens the same install again, as another process would.
func (w *testWorld) reopen() *broker.Broker {
	w.Helper()
	b, err := broker.Open(w.testContext(), broker.Options{Addr: w.srv.Addr, Names: w.names, TransactionTimeout: transactionTimeout})
	w.must(err)
	w.Cleanup(func() { w.must(b.Close()) })
	return b
}

// testContext returns a context that ends with the case or after waitLimit.
func (w *testWorld) testContext() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), waitLimit)
	w.Cleanup(cancel)
	return ctx
}

// cleanupContext returns a context for clean-up, which runs after the case's own context has ended.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), waitLimit)
}

func (w *testWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *testWorld) streams(specs ...broker.StreamSpec) {
	w.Helper()
	_, err := w.b.EnsureStreams(w.testContext(), specs, broker.EnsureOptions{})
	w.must(err)
}

func (w *testWorld) stream(name string, partitions int) {
	w.Helper()
	w.streams(broker.StreamSpec{Name: name, Partitions: partitions})
}

func (w *testWorld) producer(o broker.ProducerOptions) *broker.Producer {
	w.Helper()
	p, err := w.b.Producer(o)
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := p.Close(ctx); err != nil {
			w.Errorf("close the producer: %v", err)
		}
	})
	return p
}

func (w *testWorld) consumer(o broker.ConsumerOptions) *broker.Consumer {
	w.Helper()
	o.SessionTimeout = max(o.SessionTimeout, w.srv.Session)
	c, err := w.b.Consumer(w.testContext(), o)
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // a case closes the consumers that it checks; here events may be open
		_ = c.Close(ctx)
	})
	return c
}

func (w *testWorld) close(c *broker.Consumer) {
	w.Helper()
	w.must(c.Close(w.testContext()))
}

// testEvent returns event number n of a key. Its id consists of both.
func testEvent(key string, n int) *broker.View {
	return &broker.View{ID: key + "/" + strconv.Itoa(n), Source: "/suite", Type: "suite.event", Subject: key,
		Data: []byte("event " + strconv.Itoa(n))}
}

// keyAndNumber returns the key and the number that are in an event's id.
func keyAndNumber(id string) (key string, n int) {
	key, number, _ := strings.Cut(id, "/")
	n, _ = strconv.Atoi(number)
	return key, n
}

func key(i int) string { return "key-" + strconv.Itoa(i) }

// sentEvents holds the outcome of each published event.
type sentEvents struct {
	mu   sync.Mutex
	all  map[string]broker.Receipt
	errs map[string]error
	wg   sync.WaitGroup
}

func newSent() *sentEvents {
	return &sentEvents{all: map[string]broker.Receipt{}, errs: map[string]error{}}
}

// send publishes an event and records the outcome, for which wait waits.
func (s *sentEvents) send(ctx context.Context, p *broker.Producer, stream string, v *broker.View) {
	s.wg.Add(1)
	id := v.ID
	p.Send(ctx, stream, v, func(r broker.Receipt, err error) {
		defer s.wg.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.errs[id] = err
			return
		}
		s.all[id] = r
	})
}

// wait waits for all outcomes, none of which may be an error.
func (s *sentEvents) wait(w *testWorld) {
	w.Helper()
	s.wg.Wait()
	for id, err := range s.errs {
		w.Fatalf("event %s: %v", id, err)
	}
}

// publish publishes n events of each of some keys and waits for them.
func (w *testWorld) publish(stream string, keys, n int) *sentEvents {
	w.Helper()
	p := w.producer(broker.ProducerOptions{})
	s := newSent()
	for i := range n {
		for k := range keys {
			s.send(w.testContext(), p, stream, testEvent(key(k), i))
		}
	}
	s.wait(w)
	return s
}

// pollUntil polls until the server reaches a state for which there is no notification.
func (w *testWorld) pollUntil(what string, ok func() bool) {
	w.Helper()
	ctx := w.testContext()
	for tick := time.NewTicker(50 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("waited too long: %s", what)
		}
	}
}

// streamInfo returns the broker's description of a stream.
func (w *testWorld) streamInfo(stream string) broker.StreamInfo {
	w.Helper()
	all, err := w.b.Streams(w.testContext())
	w.must(err)
	for _, s := range all {
		if s.Name == stream {
			return s
		}
	}
	w.Fatalf("stream %s is not there", stream)
	return broker.StreamInfo{}
}

// groupLag returns a group's lag and committed offset.
func (w *testWorld) groupLag(stream, group string) broker.GroupLag {
	w.Helper()
	for _, g := range w.streamInfo(stream).Groups {
		if g.Group == group {
			return g
		}
	}
	return broker.GroupLag{Lag: -1}
}

// wantErr fails unless err wraps want.
func (w *testWorld) wantErr(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("error is %v, want %v", err, want)
	}
}

// sendRequest sends a request that kafka-go does not implement. The response has the type that
// belongs to the request.
func (w *testWorld) sendRequest(req kmsg.Request) kmsg.Response {
	w.Helper()
	conn, err := net.Dial("tcp", w.srv.Addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(waitLimit)))
	_, err = conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("suite")).AppendRequest(nil, req, 1))
	w.must(err)
	var size [4]byte
	_, err = io.ReadFull(conn, size[:])
	w.must(err)
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(conn, answer)
	w.must(err)
	head := 4 // length of the correlation id
	if req.IsFlexible() {
		head++
	}
	res := req.ResponseKind()
	w.must(res.ReadFrom(answer[head:]))
	return res
}

// deleteBelow deletes the records below an offset.
func (w *testWorld) deleteBelow(stream string, partition int32, to int64) {
	w.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.SetVersion(2)
	req.TimeoutMillis = 10_000
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = w.names.Topic(stream)
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = partition, to
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	res := w.sendRequest(req).(*kmsg.DeleteRecordsResponse)
	if code := res.Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.Fatalf("delete records of %s: error %d", stream, code)
	}
}

package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// round is a plan whose run is judged.
type round struct {
	plan    plan
	dir     string
	fleet   *fleet
	journal []entry
	in, out []record
	groups  map[string]map[int32]int64 // committed offsets, by group and partition of in
	drained time.Duration
}

// record is an event on a stream.
type record struct {
	partition int32
	offset    int64
	id, key   string
	data      string
	ofInput   input // input of a copy
}

type input struct {
	partition int32
	offset    int64
}

// drainLimit is long, because a session may have to time out, and a machine may be busy.
const drainLimit = 2 * time.Minute

// play runs the plan to its end and reads the streams.
func (r *round) play(ctx context.Context) error {
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	addr := addrs[0]
	r.fleet = newFleet(r.dir, addr, r.plan.seed)
	defer r.fleet.killAll()
	if err := r.fleet.start(brokerName); err != nil {
		return err
	}
	b, err := openBroker(ctx, addr, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := ensureStreams(ctx, b); err != nil {
		return err
	}
	if err := r.strike(append(workers(), names("publisher", publishers)...)); err != nil {
		return err
	}
	if err := r.drain(ctx, b); err != nil {
		return err
	}
	return r.fleet.stop(brokerName)
}

// freeAddrs returns free addresses that stay free while their server is dead. On 127.0.0.1 another
// package's test may get the same port, and a client that dials its own port may connect to itself.
// Therefore the caller gets its own loopback address, where the system has more than one. The ports
// are outside of the range for outgoing connections.
func freeAddrs(n int) (all []string, err error) {
	const first, many = 20_000, 10_000
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, first+rand.IntN(many)))
		if err != nil {
			host = "127.0.0.1"
			continue
		}
		defer l.Close() // closed later, so that the addresses differ
		if all = append(all, l.Addr().String()); len(all) == n {
			return all, nil
		}
	}
	return nil, errors.New("find an address where nobody listens: a hundred are taken")
}

func ensureStreams(ctx context.Context, b *broker.Broker) error {
	var specs []broker.StreamSpec
	for _, name := range []string{streamIn, streamOut, "dead-letters"} {
		specs = append(specs, broker.StreamSpec{Name: name, Partitions: partitions, KeyOrdered: true})
	}
	_, err := b.EnsureStreams(ctx, specs, broker.EnsureOptions{})
	return err
}

func names(role string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", role, i))
	}
	return all
}

func workers() []string {
	return append(names("consumer", consumers), names("processor", processors)...)
}

// strike starts the processes and deals the blows. Blows at one process come one after another,
// because a process is hit only while it runs.
func (r *round) strike(start []string) error {
	for _, name := range start {
		if err := r.fleet.start(name); err != nil {
			return err
		}
	}
	began := time.Now()
	queues := map[string][]blow{}
	for _, b := range r.plan.blows {
		queues[b.target] = append(queues[b.target], b)
	}
	errs := make([]error, 0, len(queues))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, blows := range queues {
		wg.Go(func() {
			err := r.fleet.endureAll(began, blows)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	<-time.After(r.plan.length)
	wg.Wait()
	return errors.Join(errs...)
}

func (f *fleet) endureAll(began time.Time, blows []blow) error {
	for _, b := range blows {
		<-time.After(time.Until(began.Add(b.at)))
		if err := f.strike(b); err != nil {
			return err
		}
	}
	return nil
}

// drain stops the publishers, waits until there is no lag, stops the other processes and reads the
// streams.
func (r *round) drain(ctx context.Context, b *broker.Broker) error {
	began := time.Now()
	if err := r.fleet.stop(names("publisher", publishers)...); err != nil {
		return err
	}
	lagging := r.awaitNoLag(ctx, b)
	r.drained = time.Since(began)
	if lagging != nil {
		for _, name := range workers() {
			r.fleet.dump(name)
		}
	}
	stopped := r.fleet.stop(workers()...)
	err := r.read(ctx, b)
	return errors.Join(lagging, stopped, err)
}

func (r *round) awaitNoLag(ctx context.Context, b *broker.Broker) error {
	return await(ctx, func() (string, error) {
		lags, err := r.lags(ctx, b)
		if err == nil && lags[groupRead] == 0 && lags[groupCopy] == 0 && len(lags) == 2 {
			return "", nil
		}
		return fmt.Sprintf("groups still lag: %v", lags), err
	})
}

func (r *round) lags(ctx context.Context, b *broker.Broker) (map[string]int64, error) {
	all, err := b.Streams(ctx)
	if err != nil {
		return nil, err
	}
	lags := map[string]int64{}
	r.groups = map[string]map[int32]int64{}
	for _, s := range all {
		if s.Name != streamIn {
			continue
		}
		for _, g := range s.Groups {
			lags[g.Group] = g.Lag
			r.groups[g.Group] = map[int32]int64{}
			for _, p := range g.Partitions {
				r.groups[g.Group][int32(p.Partition)] = p.Committed
			}
		}
	}
	return lags, nil
}

// read reads the data for the judge.
func (r *round) read(ctx context.Context, b *broker.Broker) error {
	_, err := r.lags(ctx, b)
	if err != nil {
		return err
	}
	if r.in, err = readStream(ctx, b, streamIn); err != nil {
		return err
	}
	if r.out, err = readStream(ctx, b, streamOut); err != nil {
		return err
	}
	r.journal, err = readJournals(r.dir, "")
	return err
}

// readStream reads a stream as any reader of committed events sees it.
func readStream(ctx context.Context, b *broker.Broker, stream string) ([]record, error) {
	var all []record
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	for i := range int32(partitions) {
		_, err := b.ReadBack(ctx, []broker.Position{{Stream: stream, Partition: i}}, func(e *broker.Incoming) {
			one := record{partition: i, offset: e.Offset, id: string([]byte(e.ID)), key: string([]byte(e.Subject)), data: string(e.Data)}
			one.ofInput.partition, one.ofInput.offset, _ = inputOf(e)
			all = append(all, one)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

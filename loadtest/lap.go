package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// lapTask is the argument of a lap's process.
type lapTask struct {
	Kafka, Stream string
	Concurrency   int // concurrency of the bare client
}

// hookSubscriber is the process that publishes the events of the triggers' measurement and is their
// subscriber. So one clock measures when an event left and when it arrived.
type hookSubscriber struct {
	lapTask
	events  []task.Event
	p       *broker.Producer // producer of paced events: sends at once
	many    *broker.Producer // producer of floods: lingers a little, because their publishing is not measured
	bare    *poster
	numbers int // number of events published so far; each event has its own number

	heat    atomic.Pointer[pacedMeasurement] // current measurement
	came    atomic.Int64                     // number of arrived events, over all measurements
	credits chan struct{}                    // one credit for each event that may be under way
	refused chan error                       // first error of the producer
}

// inFlight is how many events of a flood may be under way: enough to keep every worker busy, and so
// few that no event waits long enough to be parked.
const inFlight = 512

// floodLinger is much shorter than the time that inFlight events take.
const floodLinger = 2 * time.Millisecond

func runLap(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	l := &hookSubscriber{events: task.Events(), credits: make(chan struct{}, inFlight), refused: make(chan error, 1)}
	if len(args) != 1 {
		return errors.New("lap: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &l.lapTask); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	names, err := tidemill.NewNames("")
	if err != nil {
		return err
	}
	b, err := broker.Open(ctx, broker.Options{Addr: l.Kafka, Names: names})
	if err != nil {
		return err
	}
	defer b.Close()
	if l.p, err = b.Producer(broker.ProducerOptions{}); err != nil {
		return err
	}
	if l.many, err = b.Producer(broker.ProducerOptions{Linger: floodLinger}); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	l.bare = newPoster(listener.Addr().String(), l.Concurrency)
	s := http.Server{Handler: l.handler()}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	fmt.Fprintln(stdout, listener.Addr())
	err = errors.Join(l.runCommands(ctx, stdin, stdout), l.p.Close(ctx), l.many.Close(ctx), s.Close())
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// The paths of the subscribers.
const (
	pathEvents = "/events"
	pathHang   = "/hang" // never answers
)

func (l *hookSubscriber) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST "+pathEvents, l.receiveEvents)
	m.HandleFunc("POST "+pathHang, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server cancels the context only after the body is read
		<-r.Context().Done()
	})
	return m
}

// receiveEvents gets the events. It counts an event before it notes its arrival, because the count
// is read after the last arrival. It does all other work later, since that would delay the clock.
func (l *hookSubscriber) receiveEvents(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.Header.Get("Ce-Id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l.came.Add(1)
	if h := l.heat.Load(); h != nil {
		h.countArrival(number)
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	select {
	case l.credits <- struct{}{}:
	default: // no flood is counting, or the event arrived twice
	}
}

func (l *hookSubscriber) publish(ctx context.Context, p *broker.Producer, number int) {
	v := broker.View{Extensions: make([]broker.Attribute, 2)}
	fill(&v, &l.events[number%len(l.events)])
	v.ID = strconv.Itoa(number)
	p.Send(ctx, l.Stream, &v, func(_ broker.Receipt, err error) {
		if err != nil {
			select {
			case l.refused <- err:
			default:
			}
		}
		if h := l.heat.Load(); h != nil {
			h.noteAcknowledged(number)
		}
	})
}

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

// lapTask is what a lap's process is told to be.
type lapTask struct {
	Kafka, Stream string
	Concurrency   int // of the bare client's requests
}

// lap is the process of the triggers' measurement that publishes events and is
// their subscriber, so that one clock says when an event left and when it came.
type lap struct {
	lapTask
	events  []task.Event
	p       *broker.Producer // of what is paced: at once
	many    *broker.Producer // of floods: gathers a little, for how they are published is not what is measured
	bare    *poster
	numbers int // events published so far; no two have the same

	heat    atomic.Pointer[heat] // the measurement under way
	came    atomic.Int64         // events, of whatever measurement
	credits chan struct{}        // returned by each that comes
	refused chan error           // of the producer, the first
}

// inFlight is how many events of a flood have left and not come yet: enough to
// keep every worker busy, and so few that none of them waits to be parked.
const inFlight = 512

// floodLinger is much less than what that many events take.
const floodLinger = 2 * time.Millisecond

func runLap(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	l := &lap{events: task.Events(), credits: make(chan struct{}, inFlight), refused: make(chan error, 1)}
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
	err = errors.Join(l.obey(ctx, stdin, stdout), l.p.Close(ctx), l.many.Close(ctx), s.Close())
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// Where the subscribers are.
const (
	pathEvents = "/events"
	pathHang   = "/hang" // never answers
)

func (l *lap) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST "+pathEvents, l.receive)
	m.HandleFunc("POST "+pathHang, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a context ends only behind the body
		<-r.Context().Done()
	})
	return m
}

// receive is the function at the end of the way: its clock is read before
// anything else but the count, which whoever has heard of all arrivals reads.
func (l *lap) receive(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.Header.Get("Ce-Id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l.came.Add(1)
	if h := l.heat.Load(); h != nil {
		h.arrived(number)
	}
	if _, err := io.Copy(io.Discard, r.Body); err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	select {
	case l.credits <- struct{}{}:
	default: // nobody counts, or it came twice
	}
}

func (l *lap) publish(ctx context.Context, p *broker.Producer, number int) {
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
			h.acknowledged(number)
		}
	})
}

package load

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

// requestVariants is the number of different requests that a connection sends in turn. Their keys
// differ, so that events spread over the partitions.
const requestVariants = 16

// transport is a connection with at most one request under way.
type transport interface {
	post(r *request) error // sends a request and waits for its answer
	SetDeadline(t time.Time) error
	Close() error
}

// httpConn is a keep-alive connection of HTTP/1.1.
type httpConn struct {
	net.Conn
	answers *bufio.Reader
	wanted  int // status of a good answer
}

func (c *httpConn) post(r *request) error {
	if _, err := c.Write(r.bytes); err != nil {
		return err
	}
	return readAnswer(c.answers, c.wanted)
}

// conn is a connection with its own requests, so that connections share nothing.
type conn struct {
	transport
	requests []*request
	sent     int
	next     uint64 // number of the next event
	took     []time.Duration
	late     []time.Duration
}

func dial(ctx context.Context, t Task, number int, events []task.Event, bodies [][]byte) (*conn, error) {
	c := &conn{next: uint64(number) << 40}
	if t.GRPC {
		to, err := dialGRPC(t)
		c.transport = to
		for i := range bodies {
			c.requests = append(c.requests, &request{bytes: bodies[(number+i)%len(bodies)]})
		}
		return c, err
	}
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", t.Addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	c.transport = &httpConn{Conn: to, answers: bufio.NewReaderSize(to, 64<<10), wanted: t.status()}
	if len(bodies) > 0 {
		for i := range bodies {
			c.requests = append(c.requests, bodyRequest(t, bodies[(number+i)%len(bodies)]))
		}
		return c, nil
	}
	if t.Batch > 0 {
		at := number * t.Batch % (len(events) - t.Batch + 1)
		c.requests = []*request{batchRequest(t, events[at:at+t.Batch])}
		return c, nil
	}
	for i := range requestVariants {
		c.requests = append(c.requests, singleRequest(t, &events[(number*requestVariants+i)%len(events)]))
	}
	return c, nil
}

// postNext sends the next request and waits for its answer.
func (c *conn) postNext() error {
	r := c.requests[c.sent%len(c.requests)]
	r.setIDs(c.next)
	if err := c.post(r); err != nil {
		return err
	}
	c.sent++
	c.next += uint64(len(r.ids))
	return nil
}

// postNonStop posts one request after another. It posts at least one, because an empty result has
// no figures.
func (c *conn) postNonStop(until time.Time) error {
	for began := time.Now(); ; began = time.Now() {
		if err := c.postNext(); err != nil {
			return err
		}
		c.took = append(c.took, time.Since(began))
		if !time.Now().Before(until) {
			return nil
		}
	}
}

// keepPace posts at set times. If the server was slow, a request's time counts from its due time;
// otherwise a stalled server would get fewer requests and seem fast. If only our clock was late,
// the time counts from the sending.
func (c *conn) keepPace(due, until time.Time, every time.Duration) error {
	for ; due.Before(until); due = due.Add(every) {
		from := due
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			from = time.Now()
			c.late = append(c.late, from.Sub(due))
		}
		if err := c.postNext(); err != nil {
			return err
		}
		c.took = append(c.took, time.Since(from))
	}
	return nil
}

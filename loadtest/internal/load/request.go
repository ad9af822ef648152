package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"tidemill.dev/loadtest/internal/task"
)

// idDigits is the number of digits at the end of every id, after Task.Run. They are the event's
// number in hexadecimal, with a fixed width so that the next number can overwrite them.
const idDigits = 16

// request is a POST that is complete except for its events' ids.
type request struct {
	bytes []byte
	ids   []int // positions of the events' digits
}

// setIDs gives the events their ids, beginning with first.
func (r *request) setIDs(first uint64) {
	for i, at := range r.ids {
		n := first + uint64(i)
		for d := idDigits - 1; d >= 0; d-- {
			r.bytes[at+d] = "0123456789abcdef"[n&15]
			n >>= 4
		}
	}
}

// holdID appends an id with zeros for its digits.
func (r *request) holdID(run string) {
	r.bytes = append(r.bytes, run...)
	r.ids = append(r.ids, len(r.bytes))
	r.bytes = append(r.bytes, "0000000000000000"...)
}

// singleRequest returns a request with one event in binary mode, with header names as Go's clients
// write them.
func singleRequest(t Task, e *task.Event) *request {
	r := &request{bytes: head(t, e.ContentType, len(e.Data))}
	r.bytes = append(r.bytes, "Ce-Specversion: 1.0\r\nCe-Id: "...)
	r.holdID(t.Run)
	r.bytes = fmt.Appendf(r.bytes, "\r\nCe-Source: %s\r\nCe-Type: %s\r\nCe-Subject: %s\r\nCe-Time: %s\r\nCe-Dataset: %s\r\nCe-Branch: %s\r\n\r\n",
		e.Source, e.Type, e.Subject, e.Time, e.Dataset, e.Branch)
	r.bytes = append(r.bytes, e.Data...)
	return r
}

// bodyRequest returns a request without an event.
func bodyRequest(t Task, body []byte) *request {
	r := &request{bytes: head(t, t.ContentType, len(body))}
	r.bytes = append(append(append(r.bytes, t.Head...), "\r\n"...), body...)
	return r
}

// readBodies reads the bodies of a task that has some.
func readBodies(t Task) (all [][]byte, err error) {
	if t.Bodies == "" {
		return nil, nil
	}
	data, err := os.ReadFile(t.Bodies)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err == nil && len(all) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return nil, fmt.Errorf("read the bodies in %s: %w", t.Bodies, err)
	}
	return all, nil
}

// batchRequest returns a request with many events.
func batchRequest(t Task, events []task.Event) *request {
	body := &request{}
	for i := range events {
		body.bytes = append(body.bytes, "[,"[min(i, 1)])
		body.structured(t.Run, &events[i])
	}
	body.bytes = append(body.bytes, ']')
	r := &request{bytes: head(t, "application/cloudevents-batch+json", len(body.bytes))}
	r.bytes = append(r.bytes, "\r\n"...)
	for _, at := range body.ids {
		r.ids = append(r.ids, len(r.bytes)+at)
	}
	r.bytes = append(r.bytes, body.bytes...)
	return r
}

func (r *request) structured(run string, e *task.Event) {
	r.bytes = append(r.bytes, `{"specversion":"1.0","id":"`...)
	r.holdID(run)
	r.bytes = fmt.Appendf(r.bytes, `","source":%q,"type":%q,"subject":%q,"time":%q,"datacontenttype":%q,"dataset":%q,"branch":%q,"data":%s}`,
		e.Source, e.Type, e.Subject, e.Time, e.ContentType, e.Dataset, e.Branch, e.Data)
}

func head(t Task, contentType string, length int) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tidemill-loadtest\r\nContent-Type: %s\r\nContent-Length: %d\r\n",
		t.Path, t.Addr, contentType, length)
}

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"tidemill.dev/api"
)

const (
	lanes      = 8
	batchLimit = 20
	postWithin = time.Minute // longer than the timeout of a gateway
)

// sendHTTP posts on several lanes until its context ends. A lane has one key and waits for each
// answer, as a publisher that needs order must do. It posts every event without a 202 again, with
// the same id, to the same or the other gateway.
func (c *child) sendHTTP(ctx context.Context) error {
	s := &sender{c: c, client: &http.Client{Timeout: postWithin, Transport: &http.Transport{MaxIdleConnsPerHost: lanes}}}
	for _, addr := range strings.Split(os.Getenv(envGateways), ",") {
		s.urls = append(s.urls, "http://"+addr+"/streams/"+streamIn)
	}
	var all sync.WaitGroup
	for i := range lanes {
		all.Go(func() { s.lane(ctx, i) })
	}
	all.Wait()
	return nil
}

type sender struct {
	c      *child
	client *http.Client
	urls   []string
}

func (s *sender) lane(ctx context.Context, lane int) {
	r := rand.New(rand.NewPCG(s.c.seed, uint64(s.c.index*lanes+lane)))
	for n := 0; ctx.Err() == nil; {
		events := 1
		if r.IntN(4) == 0 {
			events = 2 + r.IntN(batchLimit-1)
		}
		p := s.compose(r, lane, n, events)
		n += events
		for attempt := 0; !s.post(r, p, attempt); attempt++ {
			if wait(ctx, 20*time.Millisecond) != nil {
				return
			}
		}
		_ = wait(ctx, time.Duration(r.IntN(8))*time.Millisecond)
	}
}

// postRequest is a request, which may be posted many times.
type postRequest struct {
	ids    []string
	header http.Header
	body   []byte
}

func (s *sender) compose(r *rand.Rand, lane, n, events int) postRequest {
	p := postRequest{header: http.Header{}}
	key := fmt.Sprintf("%s-%d", s.c.name, lane)
	var written [][]byte
	for i := range events {
		id := fmt.Sprintf("%s.%d.%d.%d", s.c.name, s.c.life, lane, n+i)
		p.ids = append(p.ids, id)
		written = append(written, fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/chaos","type":"chaos","subject":%q,"data":%q}`, id, key, dataOf(id)))
	}
	switch {
	case events > 1:
		p.header.Set("Content-Type", "application/cloudevents-batch+json")
		p.body = fmt.Appendf(nil, "[%s]", bytes.Join(written, []byte(",")))
	case r.IntN(2) == 0:
		p.header.Set("Content-Type", "application/cloudevents+json")
		p.body = written[0]
	default:
		for name, value := range map[string]string{"specversion": "1.0", "id": p.ids[0], "source": "/chaos", "type": "chaos", "subject": key} {
			p.header.Set("Ce-"+name, value)
		}
		p.header.Set("Content-Type", "text/plain")
		p.body = []byte(dataOf(p.ids[0]))
	}
	return p
}

// dataOf returns an event's data. It is computed from the id, so that the data of each event
// differs.
func dataOf(id string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(id)) // never fails
	return strings.Repeat("<"+id+">", int(sum.Sum32()%64))
}

// post returns whether all events are acknowledged.
func (s *sender) post(r *rand.Rand, p postRequest, attempt int) bool {
	for _, id := range p.ids {
		s.c.j.note("post", id, attempt)
	}
	req, err := http.NewRequest(http.MethodPost, s.urls[(r.IntN(len(s.urls))+attempt)%len(s.urls)], bytes.NewReader(p.body))
	if err != nil {
		s.c.j.note("broken", err)
		return false
	}
	req.Header = p.header
	res, err := s.client.Do(req)
	if err != nil {
		s.c.j.note(failureOf(err), oneWord(err.Error()))
		return false
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.c.j.note("broken", oneWord(err.Error()))
		return false
	}
	s.c.j.note("answer", res.StatusCode, oneWord(string(body[:min(len(body), 300)])))
	if res.StatusCode != http.StatusAccepted {
		return false
	}
	s.acknowledged(p, res.Header, body)
	return true
}

// oneWord makes a text one word of a journal's line.
func oneWord(text string) string { return strings.Join(strings.Fields(text), "_") }

// failureOf returns absent if the gateway refuses connections, and broken if a connection breaks.
func failureOf(err error) string {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "absent"
	}
	return "broken"
}

func (s *sender) acknowledged(p postRequest, h http.Header, body []byte) {
	if len(p.ids) == 1 {
		s.c.j.note("ack", p.ids[0], h.Get(api.HeaderPosition)+"|", h.Get(api.HeaderRepeated) == "true")
		return
	}
	var answers api.Answers
	if err := json.Unmarshal(body, &answers); err != nil || len(answers.Events) != len(p.ids) {
		s.c.j.note("senseless", err)
		return
	}
	for i, a := range answers.Events {
		at := ""
		if a.Position != nil {
			at = fmt.Sprintf("%s/%d/%d", a.Position.Stream, a.Position.Partition, a.Position.Offset)
		}
		if a.ID != p.ids[i] || a.Status != http.StatusAccepted {
			s.c.j.note("senseless", a.ID, a.Status)
		}
		s.c.j.note("ack", a.ID, at+"|", a.Repeated)
	}
}

package gateway

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// tailListener is the reader of a tail.
type tailListener struct {
	testing.TB
	res  *http.Response
	in   *bufio.Reader
	quit context.CancelFunc
}

// sseBlock is one parsed block of the stream.
type sseBlock struct{ id, event, data, comment, retry string }

// listen opens a tail; headers are name, value, name, value…
func (w *world) listen(query string, headers ...string) *tailListener {
	w.Helper()
	l, err := w.tryListen(query, headers...)
	if err != nil {
		w.Fatal(err)
	}
	if l.res.StatusCode != http.StatusOK || l.res.Header.Get("Content-Type") != "text/event-stream" {
		w.Fatalf("a tail answers %s, %v", l.res.Status, l.res.Header)
	}
	return l
}

func (w *world) tryListen(query string, headers ...string) (*tailListener, error) {
	ctx, cancel := context.WithTimeout(w.Context(), patienceOfTests)
	w.Cleanup(cancel)
	req := must1(http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/streams/"+query, nil))(w)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return newListener(w.TB, res, cancel), nil
}

func newListener(t testing.TB, res *http.Response, quit context.CancelFunc) *tailListener {
	l := &tailListener{TB: t, res: res, in: bufio.NewReader(res.Body), quit: quit}
	t.Cleanup(l.close)
	return l
}

func (l *tailListener) close() {
	l.quit()
	_ = l.res.Body.Close()
}

// nextBlock returns the next block. An error means that the stream is over.
func (l *tailListener) nextBlock() (b sseBlock, err error) {
	for lines := 0; ; lines++ {
		line, err := l.in.ReadString('\n')
		if err != nil {
			return b, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" && lines > 0 {
			return b, nil
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			b.id = value
		case "event":
			b.event = value
		case "data":
			b.data += value
		case "retry":
			b.retry = value
		case "":
			b.comment = value
		default:
			return b, fmt.Errorf("a line of no known field: %q", line)
		}
	}
}

// firstID returns the id of the first block, which has no event.
func (l *tailListener) firstID() string {
	l.Helper()
	b, err := l.nextBlock()
	if err != nil || b.retry != "1000" || b.id == "" || b.data != "" {
		l.Fatalf("a tail begins with %+v, %v", b, err)
	}
	return b.id
}

// next returns the next event.
func (l *tailListener) next() (api.Tailed, string) {
	l.Helper()
	for {
		b, err := l.nextBlock()
		if err != nil || b.event != "" {
			l.Fatalf("there is no event: %+v, %v", b, err)
		}
		if b.data != "" {
			return tailedOf(l, b), b.id
		}
	}
}

func tailedOf(t testing.TB, b sseBlock) (line api.Tailed) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(b.data))
	d.DisallowUnknownFields()
	if err := d.Decode(&line); err != nil {
		t.Fatalf("%s: %v", b.data, err)
	}
	return line
}

// idOf returns the id of the event in a line; empty if the record is not an event.
func idOf(t testing.TB, line api.Tailed) string {
	t.Helper()
	var e struct{ ID string }
	if line.Event != nil {
		if err := json.Unmarshal(line.Event, &e); err != nil {
			t.Fatal(err)
		}
	}
	return e.ID
}

// allIDs returns the ids of the events until the end of the tail, and the id of the end itself.
func (l *tailListener) allIDs() (events []string, end string) {
	l.Helper()
	for {
		b, err := l.nextBlock()
		switch {
		case err != nil:
			l.Fatalf("the tail breaks off after %d events: %v", len(events), err)
		case b.event == "end":
			if b.data != "{}" || b.id == "" {
				l.Errorf("it ends with %+v", b)
			}
			if rest, err := l.nextBlock(); err == nil {
				l.Errorf("behind the end comes %+v", rest)
			}
			return events, b.id
		case b.data != "":
			events = append(events, idOf(l, tailedOf(l, b)))
		}
	}
}

// tokenLine returns a line of an access file for a token with that text, and the header with that
// token.
func tokenLine(name, secret, rights string) (line string, header []string) {
	return fmt.Sprintf("  %s: {hash: \"sha256:%x\", %s}\n", name, sha256.Sum256([]byte("tm_"+secret)), rights),
		[]string{"Authorization", "Bearer tm_" + secret}
}

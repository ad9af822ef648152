package load

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// countingServer is a server that counts the ids that it gets.
type countingServer struct {
	mu  sync.Mutex
	ids map[string]int
}

func (c *countingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[r.Header.Get("Ce-Id")]++
	for _, part := range strings.Split(string(body), `"id":"`)[1:] {
		id, _, _ := strings.Cut(part, `"`)
		c.ids[id]++
	}
	w.WriteHeader(http.StatusAccepted)
}

func TestEveryEventIsCountedAndHasItsOwnID(t *testing.T) {
	t.Parallel()
	for name, task := range map[string]Task{
		"saturated": {Connections: 3},
		"batches":   {Connections: 2, Batch: 10},
		"paced":     {Connections: 4, Rate: 2000},
	} {
		c := &countingServer{ids: map[string]int{}}
		s := httptest.NewServer(c)
		defer s.Close()
		task.Addr, task.Path, task.Run = s.Listener.Addr().String(), "/events", "r"
		task.Warm, task.Last = 20*time.Millisecond, 50*time.Millisecond
		g, err := Open(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		warm := len(c.ids)
		r, err := g.Measure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		delete(c.ids, "")
		if r.Answered != len(c.ids) || r.Events < r.Requests || r.Events == 0 || warm == 0 || r.Events >= r.Answered {
			t.Errorf("%s: %+v, %d ids arrived, %d of them in the warm-up", name, r, len(c.ids), warm)
		}
		for id, n := range c.ids {
			if n != 1 {
				t.Errorf("%s: id %s came %d times", name, id, n)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAnAnswerThatIsNo202EndsTheMeasurement(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too much", http.StatusTooManyRequests)
	}))
	defer s.Close()
	_, err := Open(t.Context(), Task{Addr: s.Listener.Addr().String(), Path: "/", Connections: 4, Warm: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "answers 429 (closes the connection: false): too much") {
		t.Error(err)
	}
}

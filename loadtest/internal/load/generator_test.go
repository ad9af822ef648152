package load

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// testLast is long enough for some requests of each connection on a busy machine.
const testLast = 500 * time.Millisecond

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
		task.Warm, task.Last = 200*time.Millisecond, testLast
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

// Messages of gRPC are sent in turn as they are.
func TestGRPC(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	counts := map[string]int{}
	s := grpc.NewServer(grpc.ForceServerCodecV2(encoded{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		mu.Lock()
		counts[method+" "+string(message)]++
		mu.Unlock()
		if method != "/s/echo" {
			return status.Error(codes.Unimplemented, "only echo")
		}
		return stream.SendMsg(&message)
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	if answer, err := CallGRPC(l.Addr().String(), "/s/echo", []byte("hello")); err != nil || string(answer) != "hello" {
		t.Errorf("the answer is %q: %v", answer, err)
	}
	if _, err := CallGRPC(l.Addr().String(), "/s/other", []byte("hello")); err == nil || !strings.Contains(err.Error(), "only echo") {
		t.Errorf("another method: %v", err)
	}
	clear(counts)
	file := filepath.Join(t.TempDir(), "bodies")
	if err := os.WriteFile(file, []byte(`["b25l","dHdv"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := Open(t.Context(), Task{Addr: l.Addr().String(), Path: "/s/echo", GRPC: true, Connections: 2, Bodies: file, Last: testLast})
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if one, two := counts["/s/echo one"], counts["/s/echo two"]; one == 0 || two == 0 || one+two != r.Answered || len(counts) != 2 {
		t.Errorf("%+v, and the server got %v", r, counts)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// Bodies are posted in turn, with their own headers, and 200 is their good answer.
func TestBodies(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	counts := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		counts[r.Header.Get("Content-Type")+" "+r.Header.Get("X-More")+" "+string(body)]++
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "bodies")
	if err := os.WriteFile(file, []byte(`["b25l","dHdv"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := Open(t.Context(), Task{Addr: s.Listener.Addr().String(), Path: "/", Connections: 2, Bodies: file, ContentType: "text/plain", Head: "X-More: yes\r\n",
		Last: testLast})
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one, two := counts["text/plain yes one"], counts["text/plain yes two"]
	if one == 0 || two == 0 || one+two != r.Answered || len(counts) != 2 {
		t.Errorf("%+v, and the server got %v", r, counts)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(t.Context(), Task{Bodies: file + "x"}); err == nil {
		t.Error("a missing file of bodies is no error")
	}
}

package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

const (
	patience = 2 * time.Minute
	token    = "token-of-this-attempt"
	name     = "run1-1"
)

// gateway is a gateway in memory, without a ledger.
type gateway struct {
	t      *testing.T
	server *httptest.Server
	at     *listener
	asking sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{} // closed at each change
	order    api.Order
	events   string
	objects  map[string][]byte
	trees    map[string][]api.File
	chunks   map[int][]byte
	progress []api.Progress
	beats    int
	many     int                       // number of agents that work on the attempt together; 0 is one
	parts    map[string]string         // last state of each agent
	met      bool                      // whether all were ready
	others   map[string]map[int][]byte // logs, by agent and chunk number
	given    []api.Given               // attempts for lingering pods, in order
	waits    []api.Idling
	answer   api.Beat
	saved    []api.TreeRef
	finished []api.Finish
	asked    []string // routes of requests, in order
	// fault answers a request instead of the gateway, if it returns true. It is called without
	// the lock.
	fault func(w http.ResponseWriter, r *http.Request, route string) bool
}

func newGateway(t *testing.T) *gateway {
	g := &gateway{t: t, changed: make(chan struct{}), objects: map[string][]byte{}, trees: map[string][]api.File{}, chunks: map[int][]byte{}}
	g.order = api.Order{Run: "run1", Recipe: "intent", Key: "bot-42", Attempt: 1, Causes: 1, Event: json.RawMessage(`{"id":"e1"}`), BeatSeconds: 0.1,
		Plan: tidemill.Plan{Dir: t.TempDir(), Pool: "default", Deadline: patience, Grace: 30 * time.Second, MaxOutput: 1 << 30, MaxLog: 1 << 30}}
	g.server = httptest.NewUnstartedServer(g)
	g.at = &listener{Listener: g.server.Listener}
	g.server.Listener = g.at
	g.server.Start()
	t.Cleanup(g.server.Close)
	return g
}

// listener is the gateway's listener. While it is shut, connections are closed; the gateway keeps
// its address, because another process could take that address otherwise.
type listener struct {
	net.Listener
	shut atomic.Bool
}

func (p *listener) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil || !p.shut.Load() {
			return c, err
		}
		_ = c.Close()
	}
}

// restart closes all connections and refuses new ones until again is called.
func (g *gateway) restart() (again func()) {
	g.at.shut.Store(true)
	g.server.CloseClientConnections()
	g.asking.Wait()
	return func() { g.at.shut.Store(false) }
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.asking.Add(1)
	defer g.asking.Done()
	route, ok := strings.CutPrefix(r.URL.Path, "/agent/v1/attempts/"+name)
	g.mu.Lock()
	g.asked = append(g.asked, route)
	fault := g.fault
	g.mu.Unlock()
	defer g.tell()
	switch {
	case !ok:
		problem(w, http.StatusNotFound, api.NotFound)
	case r.Header.Get("Authorization") != "Bearer "+token:
		problem(w, http.StatusUnauthorized, api.Unauthenticated)
	case fault != nil && fault(w, r, route):
	case g.isOver() && route != "/finish" && route != "/next" && route != "/log":
		problem(w, http.StatusConflict, api.Superseded)
	default:
		g.route(w, r, route)
	}
}

// isOver reports whether an attempt of several agents has ended.
func (g *gateway) isOver() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.many > 1 && len(g.finished) > 0
}

// gather handles a beat of one of several agents, and returns the state of all.
func (g *gateway) gather(q url.Values) api.Beat {
	b := g.answer
	who := map[string]string{"worker": "w", "server": "ps"}[q.Get("part")] + q.Get("index")
	if who == "" {
		return b
	}
	if g.parts == nil {
		g.parts = map[string]string{}
	}
	switch {
	case q.Get("over") == "true":
		g.parts[who] = "over"
	case q.Get("ready") == "true":
		g.parts[who] = "ready"
	}
	g.met = g.met || len(g.parts) == g.many
	over := 0
	for part, state := range g.parts {
		if part != "w0" && state == "over" {
			over++
		}
	}
	b.All, b.End, b.Alone = g.met, g.parts["w0"] == "over", over == g.many-1
	return b
}

func problem(w http.ResponseWriter, status int, slug string) {
	w.Header().Set("Content-Type", api.ProblemType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemBase + slug, Title: slug, Status: status, Detail: "the test says " + slug})
}

func (g *gateway) route(w http.ResponseWriter, r *http.Request, route string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has closed the connection
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch r.Method + " " + route {
	case "GET ":
		write(w, g.order)
	case "GET /events":
		_, _ = io.WriteString(w, g.events)
	case "GET /files":
		for _, f := range g.trees[r.URL.Query().Get("tree")] {
			write(w, f)
		}
	case "GET /object":
		_, _ = w.Write(g.objects[r.URL.Query().Get("digest")])
	case "POST /objects/missing":
		g.missing(w, body)
	case "POST /objects":
		g.put(body)
		w.WriteHeader(http.StatusNoContent)
	case "POST /object":
		g.objects[digestOfBytes(body)] = body
		w.WriteHeader(http.StatusNoContent)
	case "POST /log":
		seq, _ := strconv.Atoi(r.URL.Query().Get("seq"))
		if who := r.URL.Query().Get("part"); who != "" {
			if g.others == nil {
				g.others = map[string]map[int][]byte{}
			}
			if g.others[who] == nil {
				g.others[who] = map[int][]byte{}
			}
			g.others[who][seq] = body
		} else {
			g.chunks[seq] = body
		}
		w.WriteHeader(http.StatusNoContent)
	case "POST /progress":
		var p api.Progress
		g.read(body, &p)
		g.progress = append(g.progress, p)
		w.WriteHeader(http.StatusNoContent)
	case "POST /beat":
		g.beats++
		write(w, g.gather(r.URL.Query()))
	case "POST /checkpoint":
		var c api.CheckpointTaken
		g.read(body, &c)
		g.saved = append(g.saved, g.tree(c.Files))
		write(w, g.saved[len(g.saved)-1])
	case "POST /next":
		var said api.Idling
		g.read(body, &said)
		g.waits = append(g.waits, said)
		if len(g.given) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next := g.given[0]
		g.given = g.given[1:]
		write(w, next)
	case "POST /finish":
		if g.many > 1 && len(g.finished) > 0 {
			problem(w, http.StatusConflict, api.Superseded)
			return
		}
		var f api.Finish
		g.read(body, &f)
		g.tree(f.Files)
		g.finished = append(g.finished, f)
		write(w, api.Finished{State: tidemill.RunSucceeded})
	default:
		problem(w, http.StatusNotFound, api.NotFound)
	}
}

func write(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

func (g *gateway) read(body []byte, to any) {
	if err := json.Unmarshal(body, to); err != nil {
		g.t.Errorf("the agent said %q: %v", body, err)
	}
}

func (g *gateway) missing(w io.Writer, body []byte) {
	var asked, lack api.Missing
	g.read(body, &asked)
	for _, p := range asked.Objects {
		if g.objects[p.Digest] == nil {
			lack.Objects = append(lack.Objects, p)
		}
	}
	write(w, lack)
}

func (g *gateway) put(body []byte) {
	for len(body) > 0 {
		digest, size := hex.EncodeToString(body[:32]), binary.BigEndian.Uint64(body[32:])
		g.objects[digest] = body[40 : 40+size]
		body = body[40+size:]
	}
}

// tree creates a tree of files, whose objects must be there.
func (g *gateway) tree(files []api.File) api.TreeRef {
	ref := api.TreeRef{Tree: fmt.Sprintf("tree-%d", len(g.trees)), Files: len(files)}
	for _, f := range files {
		if g.objects[f.Digest] == nil && len(f.Parts) == 0 {
			g.t.Errorf("%s was named before its object was put", f.Path)
		}
		ref.Bytes += f.Size
	}
	g.trees[ref.Tree] = files
	return ref
}

func digestOfBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// addTree adds a tree to the gateway.
func (g *gateway) addTree(files map[string]string) api.TreeRef {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []api.File
	for path, text := range files {
		digest := digestOfBytes([]byte(text))
		g.objects[digest] = []byte(text)
		all = append(all, api.File{Path: path, Digest: digest, Size: int64(len(text))})
	}
	slices.SortFunc(all, func(a, b api.File) int { return strings.Compare(a.Path, b.Path) })
	return g.tree(all)
}

// content returns the content of files by path.
func (g *gateway) content(files []api.File) map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]string{}
	for _, f := range files {
		all[f.Path] = string(g.objects[f.Digest])
	}
	return all
}

func (g *gateway) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gateway) set(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn()
}

// waitUntil waits for an effect of the agent's requests.
func (g *gateway) waitUntil(what string, is func() bool) {
	g.t.Helper()
	late := time.After(patience)
	for {
		g.mu.Lock()
		done, changed := is(), g.changed
		g.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-late:
			g.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// log returns the lines of the log without times.
func (g *gateway) log() (lines []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lines(g.chunks)
}

// logOf returns the lines of another agent's log without times.
func (g *gateway) logOf(who string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lines(g.others[who])
}

func (g *gateway) lines(chunks map[int][]byte) (lines []string) {
	for seq := range len(chunks) {
		for line := range bytes.Lines(chunks[seq]) {
			at, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
			if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
				g.t.Errorf("a line of the log has no time: %q", line)
			}
			lines = append(lines, rest)
		}
	}
	return lines
}

// sh makes a script the command.
func (g *gateway) sh(script string) { g.order.Plan.Command = []string{"sh", "-c", script} }

// options returns the options of an agent of this gateway.
func (g *gateway) options() Options {
	return Options{Gateway: g.server.URL, Token: token, Attempt: name, Work: filepath.Join(g.t.TempDir(), "work"), Cache: g.t.TempDir(), Node: "node-1"}
}

// run does the attempt and returns the report of its end.
func (g *gateway) run(o Options) api.Finish {
	g.t.Helper()
	if err := Run(context.Background(), o); err != nil {
		g.t.Fatal(err)
	}
	if _, err := os.Stat(o.Work); !os.IsNotExist(err) {
		g.t.Errorf("the folder of the attempt is still there: %v", err)
	}
	return g.word()
}

// tooLate repeats a run with longer and longer deadlines until the command has written output
// before the deadline. How long that takes depends on the machine.
func tooLate(t *testing.T, set func(*gateway) Options) (f api.Finish, reason string) {
	t.Helper()
	for deadline := 300 * time.Millisecond; deadline < 2*patience; deadline *= 2 {
		g := newGateway(t)
		o := set(g)
		g.order.Plan.Deadline = deadline
		f = g.run(o)
		if f.Result.LastLines != "" && !strings.HasPrefix(f.Result.LastLines, "tidemill: ") {
			return f, "deadline of " + short(deadline) + " passed"
		}
	}
	t.Fatalf("the command has never begun: %+v", f)
	return f, ""
}

func (g *gateway) word() api.Finish {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.finished) != 1 {
		g.t.Fatalf("the attempt has told its end %d times", len(g.finished))
	}
	return g.finished[0]
}

// begin starts the attempt. The channel receives its error.
func (g *gateway) begin(ctx context.Context, o Options) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	return ended
}

func (g *gateway) wait(ended <-chan error) error {
	g.t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		g.t.Fatal("the attempt does not end")
		return nil
	}
}

func planOfImage() *tidemill.Plan {
	return &tidemill.Plan{Image: "trainer:3", Command: []string{"python", "train.py"}}
}

package rest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/oip"
)

// Options configure a Handler.
type Options struct {
	Server  *oip.Server
	MaxBody int64 // largest request body in bytes; 0 means 64 MiB
}

const defaultBody = 64 << 20

// Handler answers requests for paths below /v2. The gateway has authorized the caller
// before.
type Handler struct {
	o         Options
	questions sync.Pool // values are *question
}

// New makes a handler.
func New(o Options) *Handler {
	if o.MaxBody == 0 {
		o.MaxBody = defaultBody
	}
	return &Handler{o: o, questions: sync.Pool{New: func() any { return &question{} }}}
}

// ServeHTTP reads the body and answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, h.o.MaxBody+1))
	switch {
	case err != nil:
		fail(w, badf("read the body: %v", err))
	case int64(len(body)) > h.o.MaxBody:
		fail(w, tooLarge(h.o.MaxBody))
	default:
		h.Serve(r.Context(), w, r, body)
	}
}

func tooLarge(most int64) error {
	return oip.Errorf(oip.TooLarge, "the body has more than %d bytes: send fewer rows per request", most)
}

// Serve answers one request whose body has been read. The body must not change until Serve returns.
func (h *Handler) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte) {
	what, err := parsePath(r.URL.Path)
	if err == nil {
		err = allow(w, r.Method, what.method())
	}
	if err == nil && what.kind == toInfer {
		err = h.infer(ctx, w, r.Header, what, body)
	} else if err == nil {
		err = h.answer(ctx, w, what, body)
	}
	if err != nil {
		fail(w, err)
	}
}

// infer answers an inference request. It writes nothing if it returns an error.
func (h *Handler) infer(ctx context.Context, w http.ResponseWriter, header http.Header, what target, body []byte) error {
	c, err := h.o.Server.Begin(ctx, what.model, what.version)
	if err != nil {
		return err
	}
	defer c.End()
	q := h.questions.Get().(*question)
	defer h.questions.Put(q)
	defer q.reset()
	q.call = c
	if body, err = unpacked(ctx, header.Get("Content-Encoding"), body, h.o.MaxBody); err != nil {
		return err
	}
	if q.b, q.tail, err = split(header.Get(binaryHeader), body); err != nil {
		return err
	}
	if err := q.read(); err != nil {
		return err
	}
	if err := c.Run(); err != nil {
		return err
	}
	if err := q.write(); err != nil {
		return err
	}
	q.send(w)
	return nil
}

// send sends the answer.
func (q *question) send(w http.ResponseWriter) {
	kind := "application/json"
	if q.mixed {
		kind = "application/octet-stream"
		w.Header().Set(binaryHeader, strconv.Itoa(len(q.answer)))
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(q.answer)+len(q.bytes)))
	_, _ = w.Write(q.answer) // fails only if the client has disconnected
	if len(q.bytes) > 0 {
		_, _ = w.Write(q.bytes)
	}
}

// failure is the body of every answer that is not a success.
type failure struct {
	Error string `json:"error"`
}

// wrongMethod is the error of a request whose path has another method.
type wrongMethod struct{ given, allowed string }

// Error says which method the path has.
func (e *wrongMethod) Error() string {
	return fmt.Sprintf("the method %.20q is not for this path: use %s", e.given, e.allowed)
}

func badf(format string, args ...any) error { return oip.Errorf(oip.Invalid, format, args...) }

func statusOf(err error) int {
	if _, ok := err.(*wrongMethod); ok {
		return http.StatusMethodNotAllowed
	}
	switch oip.CodeOf(err) {
	case oip.Invalid:
		return http.StatusBadRequest
	case oip.NotFound:
		return http.StatusNotFound
	case oip.TooLarge:
		return http.StatusRequestEntityTooLarge
	case oip.Broken:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}

func allow(w http.ResponseWriter, method, allowed string) error {
	if method == allowed {
		return nil
	}
	w.Header().Set("Allow", allowed)
	return &wrongMethod{method, allowed}
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	write(w, status, failure{err.Error()})
}

// write answers with JSON.
func write(w http.ResponseWriter, status int, answer any) {
	text, _ := json.Marshal(answer) // texts, numbers and booleans cannot fail
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // fails only if the client has disconnected
}

// answer answers all requests but inference.
func (h *Handler) answer(ctx context.Context, w http.ResponseWriter, what target, body []byte) error {
	s := h.o.Server
	switch what.kind {
	case aboutServer:
		write(w, http.StatusOK, s.Metadata())
	case aboutLive:
		write(w, http.StatusOK, map[string]bool{"live": true})
	case aboutReady:
		writeReady(w, map[string]any{}, s.Ready(ctx))
	case aboutModelReady:
		ready, err := s.ModelReady(ctx, what.model, what.version)
		if err != nil {
			return err
		}
		writeReady(w, map[string]any{"name": what.model}, ready)
	case toIndex:
		return h.index(ctx, w, body)
	case toLoad:
		if err := s.Load(ctx, what.model); err != nil {
			return err
		}
		write(w, http.StatusOK, struct{}{})
	case toUnload:
		if err := s.Unload(ctx, what.model); err != nil {
			return err
		}
		write(w, http.StatusOK, struct{}{})
	default:
		m, err := s.ModelMetadata(ctx, what.model, what.version)
		if err != nil {
			return err
		}
		write(w, http.StatusOK, m)
	}
	return nil
}

// index answers with the models. The body may ask for those in memory only.
func (h *Handler) index(ctx context.Context, w http.ResponseWriter, body []byte) error {
	asked := struct {
		Ready bool `json:"ready"`
	}{}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &asked); err != nil {
			return badf(`the body is not a request for the index: send {"ready":true} for the models in memory, or {} for all`)
		}
	}
	all, err := h.o.Server.Index(ctx, asked.Ready)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, all)
	return nil
}

// writeReady completes an answer with the status that matches it.
func writeReady(w http.ResponseWriter, answer map[string]any, ready bool) {
	status := http.StatusOK
	if answer["ready"] = ready; !ready {
		status = http.StatusServiceUnavailable
	}
	write(w, status, answer)
}

// unpacked returns a body without its content encoding: gzip, or deflate, which is zlib's format. The
// memory is taken from the request's budget before it is used, because a body can be a thousand times
// as large as it was sent.
func unpacked(ctx context.Context, encoding string, body []byte, most int64) ([]byte, error) {
	var from io.ReadCloser
	var err error
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		from, err = gzip.NewReader(bytes.NewReader(body))
	case "deflate":
		from, err = zlib.NewReader(bytes.NewReader(body))
	default:
		return nil, badf("the content encoding %.20q is not read here: use gzip or deflate, or none", encoding)
	}
	if err != nil {
		return nil, badf("the body is not %s: %v", encoding, err)
	}
	budget := infer.BudgetOf(ctx)
	var plain []byte
	for err == nil {
		if len(plain) == cap(plain) {
			size := max(2*cap(plain), 64<<10)
			if budget != nil {
				if err := budget.Take(int64(size)); err != nil {
					return nil, err
				}
			}
			plain = append(make([]byte, 0, size), plain...)
		}
		var n int
		n, err = from.Read(plain[len(plain):cap(plain)])
		if plain = plain[:len(plain)+n]; int64(len(plain)) > most {
			return nil, tooLarge(most)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, badf("the body is not %s: %v", encoding, err)
	}
	return plain, nil
}

// Within reports whether a path is answered here.
func Within(path string) bool { return path == "/v2" || strings.HasPrefix(path, "/v2/") }

// Paths says which paths there are.
const Paths = "ask /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/NUMBER][/ready|/infer], /v2/repository/index or /v2/repository/models/NAME/load|unload"

// kind is the kind of resource that a path requests.
type kind int8

const (
	aboutServer kind = iota
	aboutLive
	aboutReady
	aboutModel
	aboutModelReady
	toInfer
	toIndex
	toLoad
	toUnload
)

// target is a path's resource and model.
type target struct {
	kind    kind
	model   string
	version int // 0 means the champion
}

func (t target) method() string {
	if t.kind >= toInfer {
		return http.MethodPost
	}
	return http.MethodGet
}

const (
	modelsPath     = "/v2/models/"
	repositoryPath = "/v2/repository/models/"
)

// parsePath parses a path. A model's name may have slashes, so the path is read from
// its end: a segment that can be a verb or a version counts as a verb or a version.
func parsePath(path string) (target, error) {
	switch strings.TrimSuffix(path, "/") {
	case "/v2":
		return target{kind: aboutServer}, nil
	case "/v2/health/live":
		return target{kind: aboutLive}, nil
	case "/v2/health/ready":
		return target{kind: aboutReady}, nil
	case "/v2/repository/index":
		return target{kind: toIndex}, nil
	}
	if name, ok := strings.CutPrefix(path, repositoryPath); ok {
		if model, ok := strings.CutSuffix(name, "/unload"); ok {
			return target{kind: toUnload, model: model}, nil
		}
		if model, ok := strings.CutSuffix(name, "/load"); ok {
			return target{kind: toLoad, model: model}, nil
		}
	}
	name, ok := strings.CutPrefix(path, modelsPath)
	if !ok {
		return target{}, oip.Errorf(oip.NotFound, "there is nothing at %.100q: %s", path, Paths)
	}
	t := target{kind: aboutModel, model: name}
	if rest, ok := strings.CutSuffix(name, "/ready"); ok {
		t.kind, t.model = aboutModelReady, rest
	} else if rest, ok := strings.CutSuffix(name, "/infer"); ok {
		t.kind, t.model = toInfer, rest
	}
	return t.cutVersion()
}

func (t target) cutVersion() (target, error) {
	const word = "/versions/"
	at := strings.LastIndex(t.model, word)
	if at < 0 || strings.Contains(t.model[at+len(word):], "/") {
		return t, nil
	}
	text := t.model[at+len(word):]
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || strconv.Itoa(n) != text {
		return t, oip.Errorf(oip.NotFound, "%.40q is not a version: a version is a number from 1", text)
	}
	t.model, t.version = t.model[:at], n
	return t, nil
}

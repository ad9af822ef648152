package oip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/serving"
)

// Options configure a Handler.
type Options struct {
	// Models returns the models. The first request that needs them calls it.
	Models  func(context.Context) (*serving.Models, error)
	Ready   func(context.Context) bool
	Version string // program's version
	MaxBody int64  // largest request body in bytes; 0 means 64 MiB
}

const defaultBody = 64 << 20

// Handler answers requests for paths below /v2. The gateway has authorized the caller
// before.
type Handler struct{ o Options }

// New makes a handler.
func New(o Options) *Handler {
	if o.MaxBody == 0 {
		o.MaxBody = defaultBody
	}
	return &Handler{o}
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what, err := parsePath(r.URL.Path)
	if err == nil {
		err = allow(w, r.Method, what.method())
	}
	var answer any
	status := http.StatusOK
	if err == nil {
		answer, status, err = h.answer(r, what)
	}
	if err != nil {
		answer, status = failure{err.Error()}, statusOf(err)
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
	}
	write(w, status, answer)
}

// failure is the body of every answer that is not a success.
type failure struct {
	Error string `json:"error"`
}

// fault is an error with its HTTP status.
type fault struct {
	status  int
	message string
}

// Error returns the message.
func (f *fault) Error() string { return f.message }

func faultf(status int, format string, args ...any) error {
	return &fault{status, fmt.Sprintf(format, args...)}
}

func badf(format string, args ...any) error { return faultf(http.StatusBadRequest, format, args...) }

func statusOf(err error) int {
	var f *fault
	if errors.As(err, &f) {
		return f.status
	}
	return http.StatusServiceUnavailable
}

func allow(w http.ResponseWriter, method, allowed string) error {
	if method == allowed {
		return nil
	}
	w.Header().Set("Allow", allowed)
	return faultf(http.StatusMethodNotAllowed, "the method %.20q is not for this path: use %s", method, allowed)
}

func write(w http.ResponseWriter, status int, answer any) {
	text, err := json.Marshal(answer)
	if err != nil { // JSON cannot express the number (NaN or infinity)
		status, text = http.StatusInternalServerError, []byte(`{"error":"the model's answer contains NaN or infinity"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // fails only if the client has disconnected
	_, _ = w.Write([]byte{'\n'})
}

func (h *Handler) answer(r *http.Request, what target) (answer any, status int, err error) {
	ctx := r.Context()
	switch what.kind {
	case aboutServer:
		return serverMetadata{Name: "tidemill", Version: h.o.Version, Extensions: []string{}}, http.StatusOK, nil
	case aboutLive:
		return map[string]bool{"live": true}, http.StatusOK, nil
	case aboutReady:
		return readiness(map[string]any{}, h.o.Ready(ctx))
	case aboutModelReady:
		return h.modelReady(ctx, what)
	}
	m, err := h.open(ctx, what)
	if err != nil {
		return nil, 0, err
	}
	defer m.Release()
	if what.kind == aboutModel {
		return metadataOf(m), http.StatusOK, nil
	}
	answer, err = h.infer(r, m)
	return answer, http.StatusOK, err
}

// readiness completes an answer with the status that matches it.
func readiness(answer map[string]any, ready bool) (any, int, error) {
	answer["ready"] = ready
	if !ready {
		return answer, http.StatusServiceUnavailable, nil
	}
	return answer, http.StatusOK, nil
}

// modelReady loads the model, because only a loaded model can serve.
func (h *Handler) modelReady(ctx context.Context, what target) (any, int, error) {
	m, err := h.open(ctx, what)
	if err != nil && statusOf(err) != http.StatusServiceUnavailable {
		return nil, 0, err
	}
	if err == nil {
		m.Release()
	}
	return readiness(map[string]any{"name": what.model}, err == nil)
}

// open returns the requested version, which the caller releases.
func (h *Handler) open(ctx context.Context, what target) (*infer.Model, error) {
	if err := tidemill.CheckDataset(what.model); err != nil {
		return nil, faultf(http.StatusNotFound, "%.100q names no model: %v", what.model, err)
	}
	models, err := h.o.Models(ctx)
	if err != nil {
		return nil, err
	}
	if what.version > 0 {
		return h.version(ctx, models, what)
	}
	return champion(ctx, models, what.model)
}

// version loads a version of a model that has or had a champion. Versions of other
// models must not be served.
func (h *Handler) version(ctx context.Context, models *serving.Models, what target) (*infer.Model, error) {
	if !models.Known(what.model) {
		return nil, unknownModel(what.model)
	}
	m, err := models.At(ctx, what.model, what.version)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, err
	case errors.Is(err, infer.ErrUnfit), errors.Is(err, infer.ErrNoRuntime):
		return nil, faultf(http.StatusInternalServerError, "%v", err)
	}
	return nil, faultf(http.StatusNotFound, "%v", err)
}

func unknownModel(name string) error {
	return faultf(http.StatusNotFound, "model %q has no champion, or there is none: GET /api/v1/models lists the models", name)
}

// champion waits for a model that is being loaded, until the context ends.
func champion(ctx context.Context, models *serving.Models, name string) (*infer.Model, error) {
	if !models.Known(name) {
		return nil, unknownModel(name)
	}
	for slot := models.Slot(name); ; {
		m, state := slot.Use()
		switch state {
		case serving.Ready:
			return m, nil
		case serving.Missing:
			return nil, unknownModel(name)
		case serving.Broken:
			return nil, faultf(http.StatusInternalServerError, "model %s cannot be loaded: %v", name, slot.Err())
		}
		if err := slot.Err(); errors.Is(err, infer.ErrNoRuntime) { // a person has to install it
			return nil, faultf(http.StatusInternalServerError, "model %s cannot be loaded: %v", name, err)
		}
		select {
		case <-slot.Waiter():
		case <-ctx.Done():
			return nil, fmt.Errorf("model %s is not loaded yet: %w", name, errors.Join(context.Cause(ctx), slot.Err()))
		}
	}
}

// Within reports whether a path is answered here.
func Within(path string) bool { return path == "/v2" || strings.HasPrefix(path, "/v2/") }

// kind is the kind of resource that a path requests.
type kind int8

const (
	aboutServer kind = iota
	aboutLive
	aboutReady
	aboutModel
	aboutModelReady
	toInfer
)

// target is a path's resource and model.
type target struct {
	kind    kind
	model   string
	version int // 0 means the champion
}

func (t target) method() string {
	if t.kind == toInfer {
		return http.MethodPost
	}
	return http.MethodGet
}

const modelsPath = "/v2/models/"

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
	}
	name, ok := strings.CutPrefix(path, modelsPath)
	if !ok {
		return target{}, faultf(http.StatusNotFound, "there is nothing at %.100q: ask /v2, /v2/health/live, /v2/health/ready or /v2/models/NAME[/versions/NUMBER][/ready|/infer]", path)
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
		return t, faultf(http.StatusNotFound, "%.40q is not a version: a version is a number from 1", text)
	}
	t.model, t.version = t.model[:at], n
	return t, nil
}

type serverMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

type modelMetadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Inputs   []tensorMetadata `json:"inputs"`
	Outputs  []tensorMetadata `json:"outputs"`
}

type tensorMetadata struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"` // -1 is any size
}

// platform is the protocol's name for ONNX models, with every engine.
const platform = "onnx_onnxv1"

// metadataOf describes one version: the requested one, or the champion.
func metadataOf(m *infer.Model) modelMetadata {
	return modelMetadata{Name: m.Ref().Model, Versions: []string{strconv.Itoa(m.Ref().Version)}, Platform: platform,
		Inputs: tensorsMetadata(m.Inputs()), Outputs: tensorsMetadata(m.Outputs())}
}

func tensorsMetadata(all []tensor.Spec) []tensorMetadata {
	told := make([]tensorMetadata, len(all))
	for i, s := range all {
		told[i] = tensorMetadata{s.Name, datatypeOf(s.Type), append([]int{}, s.Shape...)}
	}
	return told
}

func datatypeOf(t tensor.Type) string {
	switch t {
	case tensor.Float:
		return "FP32"
	case tensor.Double:
		return "FP64"
	case tensor.Int32:
		return "INT32"
	case tensor.Int64:
		return "INT64"
	case tensor.Bool:
		return "BOOL"
	}
	return "BYTES"
}

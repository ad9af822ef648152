// Package oip speaks the Open Inference Protocol, version 2, by REST: a model is
// asked with tensors, by its name and perhaps its version, as Triton, KServe and
// MLServer are.
package oip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/served"
)

// Options say what stands behind it.
type Options struct {
	// Models are asked for with the first request that needs them.
	Models  func(context.Context) (*served.Models, error)
	Ready   func(context.Context) bool
	Version string // of the program
	MaxBody int64  // bytes of a request; 0 is 64 MiB
}

const defaultBody = 64 << 20

// Handler answers what is asked below /v2. A request's path and body count; who
// asks has been looked at.
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
	}
	write(w, status, answer)
}

// failure is the body of every answer that is not a success.
type failure struct {
	Error string `json:"error"`
}

// fault is an error with the status that tells of it.
type fault struct {
	status  int
	message string
}

// Error says what is wrong.
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
	if err != nil { // a number that JSON has no word for
		status, text = http.StatusInternalServerError, []byte(`{"error":"the model answers with what is no number"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // whoever asked has gone
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

// readiness fills in an answer whose status says the same as it does.
func readiness(answer map[string]any, ready bool) (any, int, error) {
	answer["ready"] = ready
	if !ready {
		return answer, http.StatusServiceUnavailable, nil
	}
	return answer, http.StatusOK, nil
}

// modelReady has the model loaded, for it is only then that it can serve.
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

// open is the version that is asked for, which the caller releases.
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

// version loads one of a model that has or had a champion: of others nothing may
// be served.
func (h *Handler) version(ctx context.Context, models *served.Models, what target) (*infer.Model, error) {
	if !models.Known(what.model) {
		return nil, unknownModel(what.model)
	}
	m, err := models.At(ctx, what.model, what.version)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, err
	case errors.Is(err, infer.ErrUnfit):
		return nil, faultf(http.StatusInternalServerError, "%v", err)
	}
	return nil, faultf(http.StatusNotFound, "%v", err)
}

func unknownModel(name string) error {
	return faultf(http.StatusNotFound, "model %q has no champion, or there is none: GET /api/v1/models lists those there are", name)
}

// champion waits for a model that is being loaded as long as the context allows.
func champion(ctx context.Context, models *served.Models, name string) (*infer.Model, error) {
	if !models.Known(name) {
		return nil, unknownModel(name)
	}
	for slot := models.Slot(name); ; {
		m, state := slot.Use()
		switch state {
		case served.Ready:
			return m, nil
		case served.Missing:
			return nil, unknownModel(name)
		case served.Broken:
			return nil, faultf(http.StatusInternalServerError, "model %s cannot be loaded: %v", name, slot.Err())
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

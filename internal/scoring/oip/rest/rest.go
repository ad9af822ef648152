package rest

import (
	"encoding/json"
	"fmt"
	"net/http"

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
	ctx, s := r.Context(), h.o.Server
	switch what.kind {
	case aboutServer:
		return s.Metadata(), http.StatusOK, nil
	case aboutLive:
		return map[string]bool{"live": true}, http.StatusOK, nil
	case aboutReady:
		return readiness(map[string]any{}, s.Ready(ctx))
	case aboutModelReady:
		ready, err := s.ModelReady(ctx, what.model, what.version)
		if err != nil {
			return nil, 0, err
		}
		return readiness(map[string]any{"name": what.model}, ready)
	case aboutModel:
		answer, err = s.ModelMetadata(ctx, what.model, what.version)
		return answer, http.StatusOK, err
	}
	answer, err = h.infer(r, what)
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

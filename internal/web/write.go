package web

import (
	"encoding/json"
	"net/http"

	"tidemill.dev/internal/api"
)

// retryAfter is what a refusal that passes tells the caller to wait, in seconds.
const retryAfter = "1"

func writeProblem(w http.ResponseWriter, p *api.Problem) {
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	write(w, p.Status, api.ProblemType, p)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	write(w, status, jsonType, body)
}

const jsonType = "application/json"

// writeText writes a body that is JSON already.
func writeText(w http.ResponseWriter, status int, media string, body []byte) {
	writeHead(w, status, media)
	_, _ = w.Write(body) // the caller has gone if it fails
}

func writeHead(w http.ResponseWriter, status int, media string) {
	h := w.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}

func write(w http.ResponseWriter, status int, media string, body any) {
	writeHead(w, status, media)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // the caller has gone if it fails
}

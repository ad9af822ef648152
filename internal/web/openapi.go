package web

import (
	_ "embed"
	"net/http"

	"tidemill.dev/internal/api"
)

// The document says to others what internal/api says to us. A test holds it
// against every answer of every route.
//
//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the document.
func (g *Gateway) openAPI(w http.ResponseWriter, _ *request) *api.Problem {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // the next version may say more
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(openAPIDocument)
	return nil
}

package web

import (
	"net/http"
	"strconv"

	"tidemill.dev/internal/api"
)

// getObject answers with an object, or with where it may be got directly.
func (g *Gateway) getObject(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	values, p := r.query([]string{"digest"})
	if p != nil {
		return p
	}
	digest := values.Get("digest")
	if p := badDigest(digest); p != nil {
		return p
	}
	to, err := s.SignedGet(r.Context(), digest)
	if err != nil {
		return g.storeFault("sign where an object may be got", err)
	}
	if to != "" {
		w.Header().Set("Location", to)
		writeHead(w, http.StatusTemporaryRedirect, "text/plain")
		return nil
	}
	f, p := g.flowing(r)
	if p != nil {
		return p
	}
	from, size, err := s.Object(r.Context(), digest)
	if err != nil {
		return g.storeFault("open an object", err)
	}
	defer from.Close()
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	writeHead(w, http.StatusOK, "application/octet-stream")
	// Net/http cuts the connection of an answer that is shorter than its length.
	if read, _ := f.send(w, from); read != nil && r.Context().Err() == nil {
		g.log.Error("an object cannot be read to its end", "file", digest, "reason", read)
	}
	return nil
}

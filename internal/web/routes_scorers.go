package web

import (
	"net/http"

	"tidemill.dev/internal/access"
)

// scorerTable is what the gateway answers about scorers. Who may read may ask
// them: an answer is what stands on the stream of their scores, and asking
// publishes nothing.
func (g *Gateway) scorerTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/scorers", role: access.Read, handle: g.listScorers},
		{method: http.MethodGet, path: "/api/v1/scorers/{scorer}", role: access.Read, handle: g.showScorer},
		{method: http.MethodPost, path: "/api/v1/scorers/{scorer}/score", role: access.Read, handle: g.scoreOnce},
		{method: http.MethodPost, path: "/api/v1/scorers/{scorer}/rescore", role: access.Operate, handle: g.rescore},
	}
}

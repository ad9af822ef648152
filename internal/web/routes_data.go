package web

import (
	"net/http"

	"tidemill.dev/internal/access"
)

// dataTable is what the gateway answers about data, below /api/v1/data.
func (g *Gateway) dataTable() []route {
	return []route{
		{method: http.MethodPost, path: "/api/v1/data/objects/missing", role: access.Operate, handle: g.missingObjects},
		{method: http.MethodPost, path: "/api/v1/data/objects", role: access.Operate, handle: g.putObjects},
		{method: http.MethodPost, path: "/api/v1/data/object", role: access.Operate, handle: g.putObject},
		{method: http.MethodGet, path: "/api/v1/data/object", role: access.Read, handle: g.getObject},
		{method: http.MethodPost, path: "/api/v1/data/commits", role: access.Operate, handle: g.commit},
		{method: http.MethodGet, path: "/api/v1/data/datasets", role: access.Read, handle: g.listDatasets},
		{method: http.MethodGet, path: "/api/v1/data/files", role: access.Read, handle: g.listFiles},
		{method: http.MethodGet, path: "/api/v1/data/log", role: access.Read, handle: g.listCommits},
		{method: http.MethodGet, path: "/api/v1/data/diff", role: access.Read, handle: g.diff},
		{method: http.MethodGet, path: "/api/v1/data/commit", role: access.Read, handle: g.showCommit},
		{method: http.MethodPost, path: "/api/v1/data/branches", role: access.Operate, handle: g.branch},
		{method: http.MethodPost, path: "/api/v1/data/gc", role: access.Operate, handle: g.collect},
	}
}

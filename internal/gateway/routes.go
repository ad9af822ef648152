package gateway

import (
	"net/http"
	"slices"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// route is one thing that a caller can ask for.
type route struct {
	method string
	path   string      // a segment in braces stands for any; its text is request.value
	role   access.Role // that the caller must have
	handle func(w http.ResponseWriter, r *request) *api.Problem

	measure measure
}

const (
	anyone access.Role = ""    // no token is needed
	known  access.Role = "any" // any token will do
)

// table is everything that the gateway answers. openapi.json says the same.
func (g *Gateway) table() []route {
	return slices.Concat([]route{
		{method: http.MethodPost, path: "/events", role: access.Publish, handle: g.publish},
		{method: http.MethodPost, path: "/streams/{stream}", role: access.Publish, handle: g.publishTo},
		{method: http.MethodGet, path: "/healthz", role: anyone, handle: g.health},
		{method: http.MethodHead, path: "/healthz", role: anyone, handle: g.health},
		{method: http.MethodGet, path: "/readyz", role: anyone, handle: g.ready},
		{method: http.MethodHead, path: "/readyz", role: anyone, handle: g.ready},
		{method: http.MethodGet, path: "/api/v1/streams", role: access.Read, handle: g.listStreams},
		{method: http.MethodGet, path: "/api/v1/streams/{stream}", role: access.Read, handle: g.showStream},
		{method: http.MethodGet, path: "/api/v1/streams/{stream}/events", role: access.Read, handle: g.tail},
		{method: http.MethodGet, path: "/api/v1/triggers", role: access.Read, handle: g.listTriggers},
		{method: http.MethodGet, path: "/api/v1/triggers/{trigger}", role: access.Read, handle: g.showTrigger},
		{method: http.MethodPost, path: "/api/v1/triggers/{trigger}/pause", role: access.Operate, handle: g.pauseTrigger},
		{method: http.MethodPost, path: "/api/v1/triggers/{trigger}/resume", role: access.Operate, handle: g.resumeTrigger},
		{method: http.MethodPost, path: "/api/v1/triggers/{trigger}/replay", role: access.Operate, handle: g.replayTrigger},
		{method: http.MethodGet, path: "/api/v1/dead-letters", role: access.Read, handle: g.listLetters},
		{method: http.MethodGet, path: "/api/v1/dead-letters/{id}", role: access.Read, handle: g.showLetter},
		{method: http.MethodPost, path: "/api/v1/dead-letters/replay", role: access.Operate, handle: g.replayLetters},
		{method: http.MethodPost, path: "/api/v1/dead-letters/drop", role: access.Operate, handle: g.dropLetters},
		{method: http.MethodGet, path: "/api/v1/schedules", role: access.Read, handle: g.listSchedules},
		{method: http.MethodPost, path: "/api/v1/schedules/{schedule}/pause", role: access.Operate, handle: g.pauseSchedule},
		{method: http.MethodPost, path: "/api/v1/schedules/{schedule}/resume", role: access.Operate, handle: g.resumeSchedule},
		{method: http.MethodGet, path: "/api/v1/runs/{run}/log", role: access.Read, handle: g.runLog},
		{method: http.MethodGet, path: "/api/v1/runs", role: access.Read, handle: g.listRuns},
		{method: http.MethodPost, path: "/api/v1/runs", role: access.Operate, handle: g.startRuns},
		{method: http.MethodPost, path: "/api/v1/runs/cancel", role: access.Operate, handle: g.cancelRuns},
		{method: http.MethodPost, path: "/api/v1/runs/retry", role: access.Operate, handle: g.retryRuns},
		{method: http.MethodGet, path: "/api/v1/runs/{run}", role: access.Read, handle: g.showRun},
		{method: http.MethodGet, path: "/api/v1/why", role: access.Read, handle: g.showWhy},
		{method: http.MethodGet, path: "/api/v1/recipes", role: access.Read, handle: g.listRecipes},
		{method: http.MethodPost, path: "/api/v1/recipes/{recipe}/pause", role: access.Operate, handle: g.pauseRecipe},
		{method: http.MethodPost, path: "/api/v1/recipes/{recipe}/resume", role: access.Operate, handle: g.resumeRecipe},
		{method: http.MethodGet, path: "/api/v1/pools", role: access.Read, handle: g.listPools},
		{method: http.MethodPost, path: "/api/v1/pools/{pool}/pause", role: access.Operate, handle: g.pausePool},
		{method: http.MethodPost, path: "/api/v1/pools/{pool}/resume", role: access.Operate, handle: g.resumePool},
		{method: http.MethodGet, path: "/api/v1/openapi.json", role: known, handle: g.openAPI},
		{method: http.MethodGet, path: "/metrics", role: access.Read, handle: g.showMetrics},
	}, g.modelTable(), g.scorerTable(), g.inferenceTable(), g.dataTable(), g.keysTable(), g.agentTable())
}

// routes find the route of a request.
type routes struct {
	exact    map[string][]*route // by path
	patterns [][]*route          // of one path each
}

func newRoutes(table []route, m *metrics) *routes {
	rs := &routes{exact: map[string][]*route{}}
	for i := range table {
		table[i].measure = m.of(table[i].method + " " + table[i].path)
		rs.add(&table[i])
	}
	return rs
}

func (rs *routes) add(r *route) {
	if !strings.Contains(r.path, "{") {
		rs.exact[r.path] = append(rs.exact[r.path], r)
		return
	}
	i := slices.IndexFunc(rs.patterns, func(same []*route) bool { return same[0].path == r.path })
	if i < 0 {
		rs.patterns = append(rs.patterns, []*route{r})
		return
	}
	rs.patterns[i] = append(rs.patterns[i], r)
}

// find returns the routes of a path, one a method, and what stood in its braces.
func (rs *routes) find(path string) (same []*route, value string) {
	if same := rs.exact[path]; same != nil {
		return same, ""
	}
	for _, same := range rs.patterns {
		if value, ok := matchPath(same[0].path, path); ok {
			return same, value
		}
	}
	return nil, ""
}

// matchPath holds a path against a pattern with one segment in braces, which only
// behind inferencePath may be several.
func matchPath(pattern, path string) (value string, ok bool) {
	before, rest, _ := strings.Cut(pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	if len(path) <= len(before)+len(after) || !strings.HasPrefix(path, before) || !strings.HasSuffix(path, after) {
		return "", false
	}
	value = path[len(before) : len(path)-len(after)]
	return value, before == inferencePath || !strings.Contains(value, "/")
}

// of is the route of one method.
func of(same []*route, method string) *route {
	for _, r := range same {
		if r.method == method {
			return r
		}
	}
	return nil
}

// allowed is the Allow header of a path.
func allowed(same []*route) string {
	methods := []string{http.MethodOptions}
	for _, r := range same {
		methods = append(methods, r.method)
	}
	return strings.Join(methods, ", ")
}

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

// modelTable is what the gateway answers about models and their promotions. A
// model's name has slashes, so that it is a parameter and no part of a path.
func (g *Gateway) modelTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/models", role: access.Read, handle: g.listModels},
		{method: http.MethodPost, path: "/api/v1/models/rollback", role: access.Approve, handle: g.rollbackModels},
		{method: http.MethodGet, path: "/api/v1/model", role: access.Read, handle: g.showModel},
		{method: http.MethodPost, path: "/api/v1/model/promote", role: access.Approve, handle: g.promoteModel},
		{method: http.MethodPost, path: "/api/v1/model/rollback", role: access.Approve, handle: g.rollbackModel},
		{method: http.MethodPost, path: "/api/v1/model/pin", role: access.Approve, handle: g.pinModel},
		{method: http.MethodPost, path: "/api/v1/model/unpin", role: access.Approve, handle: g.unpinModel},
		{method: http.MethodGet, path: "/api/v1/promotions", role: access.Read, handle: g.listFreezes},
		{method: http.MethodPost, path: "/api/v1/promotions/freeze", role: access.Approve, handle: g.freezePromotions},
		{method: http.MethodPost, path: "/api/v1/promotions/thaw", role: access.Approve, handle: g.thawPromotions},
	}
}

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

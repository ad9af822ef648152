package gateway

import (
	_ "embed"
	"net/http"
	"slices"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/dashboard"
)

// route is one method and path that the gateway answers.
type route struct {
	method string
	path   string      // pattern; the text that matches a segment in braces becomes request.value
	role   access.Role // role that the caller must have
	handle func(w http.ResponseWriter, r *request) *api.Problem

	measure routeMetrics
}

const (
	anyone access.Role = ""    // no token is needed
	known  access.Role = "any" // any valid token is enough
)

// routeTable lists all routes of the gateway. openapi.json describes the same routes.
func (g *Gateway) routeTable() []route {
	return slices.Concat([]route{
		{method: http.MethodPost, path: "/events", role: access.Publish, handle: g.withRoom(g.publish)},
		{method: http.MethodPost, path: "/streams/{stream}", role: access.Publish, handle: g.withRoom(g.publishTo)},
		{method: http.MethodGet, path: "/healthz", role: anyone, handle: g.answerHealth},
		{method: http.MethodHead, path: "/healthz", role: anyone, handle: g.answerHealth},
		{method: http.MethodGet, path: "/readyz", role: anyone, handle: g.answerReady},
		{method: http.MethodHead, path: "/readyz", role: anyone, handle: g.answerReady},
		{method: http.MethodGet, path: "/api/v1/live", role: access.Read, handle: g.followTopics},
		{method: http.MethodGet, path: "/api/v1/freshness", role: access.Read, handle: g.showFreshness},
		{method: http.MethodGet, path: "/api/v1/history", role: access.Read, handle: g.showHistory},
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
		{method: http.MethodGet, path: "/api/v1/runs/{run}/curves", role: access.Read, handle: g.showCurves},
		{method: http.MethodGet, path: "/api/v1/runs/{run}/files", role: access.Read, handle: g.listRunFiles},
		{method: http.MethodGet, path: "/api/v1/runs/{run}/file", role: access.Read, handle: g.sendRunFile},
		{method: http.MethodGet, path: "/api/v1/runs", role: access.Read, handle: g.listRuns},
		{method: http.MethodPost, path: "/api/v1/runs", role: access.Operate, handle: g.withRoom(g.startRuns)},
		{method: http.MethodPost, path: "/api/v1/runs/cancel", role: access.Operate, handle: g.cancelRuns},
		{method: http.MethodPost, path: "/api/v1/runs/retry", role: access.Operate, handle: g.withRoom(g.retryRuns)},
		{method: http.MethodGet, path: "/api/v1/runs/{run}", role: access.Read, handle: g.showRun},
		{method: http.MethodGet, path: "/api/v1/why", role: access.Read, handle: g.showWhy},
		{method: http.MethodGet, path: "/api/v1/recipes", role: access.Read, handle: g.listRecipes},
		{method: http.MethodPost, path: "/api/v1/recipes/{recipe}/pause", role: access.Operate, handle: g.pauseRecipe},
		{method: http.MethodPost, path: "/api/v1/recipes/{recipe}/resume", role: access.Operate, handle: g.resumeRecipe},
		{method: http.MethodGet, path: "/api/v1/pools", role: access.Read, handle: g.listPools},
		{method: http.MethodPost, path: "/api/v1/pools/{pool}/pause", role: access.Operate, handle: g.pausePool},
		{method: http.MethodPost, path: "/api/v1/pools/{pool}/resume", role: access.Operate, handle: g.resumePool},
		{method: http.MethodGet, path: "/api/v1/commands", role: access.Read, handle: g.listCommands},
		{method: http.MethodGet, path: "/api/v1/caller", role: known, handle: g.showCaller},
		{method: http.MethodGet, path: "/api/v1/openapi.json", role: known, handle: g.openAPI},
		{method: http.MethodGet, path: "/metrics", role: access.Metrics, handle: g.showMetrics},
	}, g.modelTable(), g.rolloutTable(), g.fleetTable(), g.scorerTable(), g.inferenceTable(), g.dataTable(), g.keysTable(), g.agentTable())
}

// dataTable lists the routes of data, below /api/v1/data.
func (g *Gateway) dataTable() []route {
	return []route{
		{method: http.MethodPost, path: "/api/v1/data/objects/missing", role: access.Operate, handle: g.missingObjects},
		{method: http.MethodPost, path: "/api/v1/data/objects", role: access.Operate, handle: g.withRoom(g.putObjects)},
		{method: http.MethodPost, path: "/api/v1/data/object", role: access.Operate, handle: g.withRoom(g.putObject)},
		{method: http.MethodGet, path: "/api/v1/data/object", role: access.Read, handle: g.getObject},
		{method: http.MethodPost, path: "/api/v1/data/commits", role: access.Operate, handle: g.withRoom(g.commitChanges)},
		{method: http.MethodGet, path: "/api/v1/data/datasets", role: access.Read, handle: g.listDatasets},
		{method: http.MethodGet, path: "/api/v1/data/files", role: access.Read, handle: g.listFiles},
		{method: http.MethodGet, path: "/api/v1/data/file", role: access.Read, handle: g.sendDataFile},
		{method: http.MethodGet, path: "/api/v1/data/log", role: access.Read, handle: g.listCommits},
		{method: http.MethodGet, path: "/api/v1/data/diff", role: access.Read, handle: g.diffCommits},
		{method: http.MethodGet, path: "/api/v1/data/commit", role: access.Read, handle: g.showCommit},
		{method: http.MethodPost, path: "/api/v1/data/branches", role: access.Operate, handle: g.createBranch},
		{method: http.MethodPost, path: "/api/v1/data/gc", role: access.Operate, handle: g.collectGarbage},
	}
}

// modelTable lists the routes of models and promotions. A model's name has slashes, so it is
// a parameter and not part of the path.
func (g *Gateway) modelTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/models", role: access.Read, handle: g.listModels},
		{method: http.MethodPost, path: "/api/v1/models/rollback", role: access.Approve, handle: g.rollbackModels},
		{method: http.MethodGet, path: "/api/v1/model", role: access.Read, handle: g.showModel},
		{method: http.MethodGet, path: "/api/v1/trials", role: access.Read, handle: g.listTrials},
		{method: http.MethodGet, path: "/api/v1/trials/ended", role: access.Read, handle: g.listEndedTrials},
		{method: http.MethodGet, path: "/api/v1/model/rejudge", role: access.Read, handle: g.rejudge},
		{method: http.MethodGet, path: "/api/v1/model/files", role: access.Read, handle: g.listModelFiles},
		{method: http.MethodGet, path: "/api/v1/model/file", role: access.Read, handle: g.sendModelFile},
		{method: http.MethodPost, path: "/api/v1/model/promote", role: access.Approve, handle: g.promoteModel},
		{method: http.MethodPost, path: "/api/v1/model/rollback", role: access.Approve, handle: g.rollbackModel},
		{method: http.MethodPost, path: "/api/v1/model/pin", role: access.Approve, handle: g.pinModel},
		{method: http.MethodPost, path: "/api/v1/model/refuse", role: access.Approve, handle: g.refuseModel},
		{method: http.MethodPost, path: "/api/v1/model/unpin", role: access.Approve, handle: g.unpinModel},
		{method: http.MethodGet, path: "/api/v1/promotions", role: access.Read, handle: g.listFreezes},
		{method: http.MethodPost, path: "/api/v1/promotions/freeze", role: access.Approve, handle: g.freezePromotions},
		{method: http.MethodPost, path: "/api/v1/promotions/thaw", role: access.Approve, handle: g.thawPromotions},
	}
}

// scorerTable lists the routes of scorers. A caller with the role read may also request scores,
// because the same scores are on the stream of scores, and nothing is published.
func (g *Gateway) scorerTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/scorers", role: access.Read, handle: g.listScorers},
		{method: http.MethodGet, path: "/api/v1/scorers/{scorer}", role: access.Read, handle: g.showScorer},
		{method: http.MethodPost, path: "/api/v1/scorers/{scorer}/score", role: access.Read, handle: g.scoreOnce},
		{method: http.MethodPost, path: "/api/v1/scorers/{scorer}/rescore", role: access.Operate, handle: g.rescore},
		{method: http.MethodPost, path: "/api/v1/scorers/{scorer}/labels", role: access.Operate, handle: g.withRoom(g.giveLabel)},
	}
}

// router finds the route of a request.
type router struct {
	exact    map[string][]*route // routes without braces, by path
	patterns [][]*route          // routes with braces, grouped by path
}

func newRoutes(table []route, m *metrics) *router {
	rs := &router{exact: map[string][]*route{}}
	for i := range table {
		table[i].measure = m.of(table[i].method + " " + table[i].path)
		rs.add(&table[i])
	}
	return rs
}

func (rs *router) add(r *route) {
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

// find returns the routes of a path (one route per method) and the text that matches the braces.
func (rs *router) find(path string) (same []*route, value string) {
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

// matchPath matches a path with a pattern that has one segment in braces. Only under
// inferencePath, repositoryPath and pagesPath may the braces match several segments.
func matchPath(pattern, path string) (value string, ok bool) {
	before, rest, _ := strings.Cut(pattern, "{")
	_, after, _ := strings.Cut(rest, "}")
	if len(path) <= len(before)+len(after) || !strings.HasPrefix(path, before) || !strings.HasSuffix(path, after) {
		return "", false
	}
	value = path[len(before) : len(path)-len(after)]
	return value, before == inferencePath || before == repositoryPath || before == pagesPath || !strings.Contains(value, "/")
}

// routeOf returns the route of one method; nil if there is none.
func routeOf(same []*route, method string) *route {
	for _, r := range same {
		if r.method == method {
			return r
		}
	}
	return nil
}

// allowHeader returns the Allow header of a path.
func allowHeader(same []*route) string {
	methods := []string{http.MethodOptions}
	for _, r := range same {
		methods = append(methods, r.method)
	}
	return strings.Join(methods, ", ")
}

// withRoom refuses a request that stores something while the disk is full. Otherwise the caller would
// wait until Kafka's timeout, and would be told to try again. Requests that free room are not refused.
func (g *Gateway) withRoom(handle func(http.ResponseWriter, *request) *api.Problem) func(http.ResponseWriter, *request) *api.Problem {
	if g.opt.Full == nil {
		return handle
	}
	return func(w http.ResponseWriter, r *request) *api.Problem {
		if words := g.opt.Full(); words != "" {
			w.Header().Set("Connection", "close") // the body is not read
			return diskFull(words)
		}
		return handle(w, r)
	}
}

// openAPIDocument describes the API for other clients, as package api does for ours. A test
// compares the document with every answer of every route.
//
//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the document.
func (g *Gateway) openAPI(w http.ResponseWriter, _ *request) *api.Problem {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // a newer version of the document may have more
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(openAPIDocument)
	return nil
}

// pagesPath is the prefix of the dashboard's pages, except the first at /.
const pagesPath = "/ui/"

// openPages prepares the dashboard. Its pages call serveHTTP in-process.
func (g *Gateway) openPages() {
	live := slices.ContainsFunc(g.routeTable(), func(r route) bool { return r.path == "/api/v1/live" })
	o := dashboard.Options{API: http.HandlerFunc(g.serveHTTP), Install: func() string { return g.opt.Config().Name }, Version: g.opt.Version, Live: live, Logger: g.log}
	if g.opt.Access != nil {
		o.SignIn = g.opt.Access
	}
	g.pages = dashboard.New(o)
}

// pageTable lists the routes of the dashboard, which openapi.json leaves out. They need no token: a
// page shows what the API answers to the page's own caller.
func (g *Gateway) pageTable() (all []route) {
	for _, path := range []string{"/", pagesPath + "{page}"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			all = append(all, route{method: method, path: path, role: anyone, handle: g.showPage})
		}
	}
	return all
}

// showPage refuses the forms of other sites also if the gateway has an access file. Only its own pages have such forms.
func (g *Gateway) showPage(w http.ResponseWriter, r *request) *api.Problem {
	if g.crossOrigin.Check(r.Request) != nil {
		g.metrics.refused.host.Inc()
		return strangeForm(r.Header.Get("Origin"))
	}
	g.pages.ServeHTTP(w, r.Request)
	return nil
}

// showCaller answers with the caller and its roles.
func (g *Gateway) showCaller(w http.ResponseWriter, r *request) *api.Problem {
	answer := api.Caller{Name: r.caller.Name(), Roles: []string{}}
	for _, name := range config.AccessRoles() {
		role := access.Role(name)
		if !r.caller.Has(role) {
			continue
		}
		answer.Roles = append(answer.Roles, name)
		answer.Limited = answer.Limited || !r.caller.AllKeys(role)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

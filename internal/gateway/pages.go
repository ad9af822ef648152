package gateway

import (
	"net/http"
	"slices"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/dashboard"
)

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

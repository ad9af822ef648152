package main

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"knative.dev/networking/pkg/apis/networking/v1alpha1"
)

// table maps requests to routes. It is replaced as a whole.
type table struct {
	hosts atomic.Pointer[map[string][]route]
}

// route is a path of a host.
type route struct {
	path    string
	match   map[string]string
	host    string // replacement for the request's host; empty keeps it
	headers map[string]string
	splits  []split
}

// split is a share of a route's requests.
type split struct {
	percent int
	url     *url.URL
	headers map[string]string
}

// set builds the table from all objects.
func (t *table) set(all []*v1alpha1.Ingress) {
	hosts := make(map[string][]route)
	for _, ingress := range all {
		for _, rule := range ingress.Spec.Rules {
			if rule.HTTP == nil {
				continue
			}
			for _, host := range rule.Hosts {
				hosts[host] = append(hosts[host], routesOf(rule.HTTP.Paths)...)
			}
		}
	}
	for _, routes := range hosts {
		slices.SortStableFunc(routes, narrower)
	}
	t.hosts.Store(&hosts)
}

// narrower sorts longer paths first, and for the same path the route with more headers.
func narrower(a, b route) int {
	if d := len(b.path) - len(a.path); d != 0 {
		return d
	}
	return len(b.match) - len(a.match)
}

func routesOf(paths []v1alpha1.HTTPIngressPath) []route {
	var routes []route
	for _, p := range paths {
		r := route{path: p.Path, host: p.RewriteHost, headers: p.AppendHeaders, match: make(map[string]string)}
		for name, want := range p.Headers {
			r.match[name] = want.Exact
		}
		for _, s := range p.Splits {
			r.splits = append(r.splits, splitOf(s, len(p.Splits) == 1))
		}
		routes = append(routes, r)
	}
	return routes
}

func splitOf(s v1alpha1.IngressBackendSplit, only bool) split {
	host := s.ServiceName + "." + s.ServiceNamespace + ".svc.cluster.local"
	out := split{percent: s.Percent, headers: s.AppendHeaders,
		url: &url.URL{Scheme: "http", Host: net.JoinHostPort(host, s.ServicePort.String())}}
	if only {
		out.percent = 100
	}
	return out
}

// find returns the route of a request. share is a number from 0 to 99 that chooses among splits.
func (t *table) find(r *http.Request, share int) (route, split, bool) {
	hosts := t.hosts.Load()
	if hosts == nil {
		return route{}, split{}, false
	}
	for _, route := range (*hosts)[hostOf(r.Host)] {
		if !route.takes(r) {
			continue
		}
		for _, s := range route.splits {
			if share -= s.percent; share < 0 {
				return route, s, true
			}
		}
	}
	return route{}, split{}, false
}

func (r route) takes(request *http.Request) bool {
	if !strings.HasPrefix(request.URL.Path, r.path) {
		return false
	}
	for name, want := range r.match {
		if request.Header.Get(name) != want {
			return false
		}
	}
	return true
}

// hostOf returns a Host header without its port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

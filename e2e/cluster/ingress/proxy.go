package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"

	"knative.dev/networking/pkg/apis/networking"
)

// proxy forwards requests by the table.
type proxy struct {
	table   *table
	forward *httputil.ReverseProxy
}

// chosenKey is the key of a request's route in its context.
type chosenKey struct{}

type chosen struct {
	route route
	split split
}

func newProxy(t *table) *proxy {
	one := transport(func(p *http.Protocols) { p.SetHTTP1(true) })
	two := transport(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
	return &proxy{table: t, forward: &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     byPort{one: one, two: two},
		FlushInterval: -1, // a stream's bytes are sent at once
		ErrorHandler:  refuse,
	}}
}

// transport makes a new connection for each request. A kept connection could lead to the Service's
// previous address, and a request with a body cannot be sent twice if the other side closes the
// connection.
func transport(speaks func(*http.Protocols)) *http.Transport {
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true, Protocols: new(http.Protocols)}
	speaks(t.Protocols)
	return t
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, split, found := p.table.find(r, rand.IntN(100))
	if !found {
		http.Error(w, fmt.Sprintf("no Knative Service has the host %q and path %q", r.Host, r.URL.Path), http.StatusNotFound)
		return
	}
	ctx := context.WithValue(r.Context(), chosenKey{}, chosen{route, split})
	p.forward.ServeHTTP(w, r.WithContext(ctx))
}

func rewrite(r *httputil.ProxyRequest) {
	to, _ := r.In.Context().Value(chosenKey{}).(chosen)
	r.SetURL(to.split.url)
	r.SetXForwarded()
	r.Out.Host = r.In.Host
	if to.route.host != "" {
		r.Out.Host = to.route.host
	}
	for _, headers := range []map[string]string{to.route.headers, to.split.headers} {
		for name, value := range headers {
			r.Out.Header.Set(name, value)
		}
	}
}

func refuse(w http.ResponseWriter, r *http.Request, err error) {
	slog.Warn("a request was not answered", "host", r.Host, "to", r.URL.Host, "reason", err)
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// byPort uses HTTP/2 for Knative's HTTP/2 port.
type byPort struct{ one, two http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b byPort) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Port() == fmt.Sprint(networking.ServiceHTTP2Port) {
		return b.two.RoundTrip(r)
	}
	return b.one.RoundTrip(r)
}

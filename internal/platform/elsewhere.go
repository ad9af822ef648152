package platform

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"tidemill.dev/config"
	"tidemill.dev/internal/kube"
	"tidemill.dev/triggers/deliver"
)

// Knative is what Options.FunctionsAt says where our functions are Knative
// Services, named after the install: NAME-train and so on.
const Knative = "knative"

// Functions are those of ours that a process of their own can be for.
func Functions() []string { return []string{trainFunction, promoteFunction, config.FunctionForget} }

// serveOurs adds a function of ours. It needs the runs.
func (p *Platform) serveOurs(mux *http.ServeMux, name string) {
	switch name {
	case trainFunction:
		mux.HandleFunc("POST /"+trainFunction+"/{recipe}", p.train)
	case promoteFunction:
		mux.Handle("POST /"+promoteFunction, p.promote())
	case config.FunctionForget:
		mux.Handle("POST /"+config.FunctionForget, p.forget())
	}
}

// ourPath is where a function of ours is called; empty if it is none.
func ourPath(to config.Target) string {
	switch {
	case usesTrain(to):
		return "/" + to.Function + "/" + to.Recipe
	case usesPromote(to), usesForget(to):
		return "/" + to.Function
	}
	return ""
}

// resolveElsewhere finds a function of ours that is another process.
func (p *Platform) resolveElsewhere(to config.Target) (*url.URL, error) {
	path := ourPath(to)
	if path == "" {
		return nil, fmt.Errorf("there is no function %q among ours: give the trigger a url, or a service", to.Function)
	}
	base, err := p.baseOf(to.Function)
	if err != nil {
		return nil, err
	}
	base.Path = strings.TrimSuffix(base.Path, "/") + path
	return base, nil
}

func (p *Platform) baseOf(function string) (*url.URL, error) {
	if p.functionsAt == Knative {
		return p.resolveService(p.names.Install() + "-" + function)
	}
	return url.Parse(FunctionAt(p.functionsAt, function))
}

// FunctionAt is where a function is, of an address that may name it: each may
// be a process of its own.
func FunctionAt(address, function string) string {
	return strings.ReplaceAll(address, "{function}", function)
}

// resolveService finds a Knative Service. One that is not ready is waited for,
// and so is one that nobody has made so far.
func (p *Platform) resolveService(name string) (*url.URL, error) {
	if p.services == nil {
		return nil, fmt.Errorf("there is no cluster here to find the service %s in: give the trigger a url, or run the dispatcher with --kubernetes", name)
	}
	all := p.services.known()
	if all == nil {
		return nil, fmt.Errorf("%w: the config that names the service is still being applied", deliver.ErrNotYet)
	}
	at, err := all.Resolve(name)
	switch {
	case errors.Is(err, kube.ErrElsewhere):
		return nil, err // to wait for it would be to wait for ever
	case err != nil:
		return nil, fmt.Errorf("%w: %w", deliver.ErrNotYet, err)
	}
	return at, nil
}

package platform

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"tidemill.dev/broker/network"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/functions/train"
	"tidemill.dev/internal/runs/kube"
	"tidemill.dev/triggers/deliver"
)

// openFunctions serves our own functions on loopback, because the dispatcher calls them like any
// other subscriber. Each process makes its own token, because every user of the machine can reach
// the port. If the functions run in other processes, nothing is served here.
func (p *Platform) openFunctions(ctx context.Context) error {
	if p.functionsAt != "" || len(p.functions) == 0 && p.works == nil {
		return nil
	}
	mux := http.NewServeMux()
	if p.works != nil {
		for _, name := range Functions() {
			p.serveOurs(mux, name)
		}
	}
	for name, f := range p.functions {
		mux.Handle("/"+name, functions.Handler(f, functions.Options{Logger: p.log}))
	}
	l, err := p.network.ListenTCP(ctx, "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve our functions: %w", err)
	}
	p.called, p.calledToken = l.Addr().String(), rand.Text()
	server := network.NewServer(network.ServerOptions{Handler: calledWith(p.calledToken, mux), Read: -1, Write: -1, Errors: slog.LevelWarn, Logger: p.log})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	// The dispatcher is stopped earlier in the same stage.
	p.AtStop(Consumers, "our functions", func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	return nil
}

// resolveURL finds the URL of a target that has none in the config.
func (p *Platform) resolveURL(_ context.Context, to config.Target) (*url.URL, error) {
	switch {
	case to.Service != "":
		return p.resolveService(to.Service)
	case p.functionsAt != "":
		return p.resolveElsewhere(to)
	}
	at := p.pathOf(to)
	if at == "" && p.functions[to.Function] != nil {
		at = "/" + to.Function
	}
	if at == "" || p.called == "" {
		return nil, fmt.Errorf("there is no function %q in this program; %s", to.Function, p.thoseThereAre())
	}
	return &url.URL{Scheme: "http", Host: p.called, Path: at}, nil
}

// pathOf returns the path of a function that needs the runs. The path is empty without runs.
func (p *Platform) pathOf(to config.Target) string {
	if p.works == nil {
		return ""
	}
	return ourPath(to)
}

func (p *Platform) thoseThereAre() string {
	if len(p.functions) == 0 {
		return "it has none yet: give their address by --functions, or give the trigger a url"
	}
	return "the functions: " + strings.Join(slices.Sorted(maps.Keys(p.functions)), ", ")
}

// Function serves the probes, and one of our functions for dispatchers in other processes. Callers
// must know the secret that all processes share, because many pods can reach the port. The result
// is the address. The stop order closes the server after the running calls. The platform must have
// been opened with Runs, Telemetry and Secret.
func (p *Platform) Function(ctx context.Context, name, listen string) (string, error) {
	switch {
	case !slices.Contains(Functions(), name):
		return "", fmt.Errorf("there is no function %q; the functions: %s", name, strings.Join(Functions(), ", "))
	case p.works == nil || p.telemetry == nil:
		return "", fmt.Errorf("serve the function %s: the platform was opened without runs or telemetry", name)
	}
	token, err := p.functionsToken()
	if err != nil {
		return "", fmt.Errorf("serve the function %s: %w", name, err)
	}
	ours, mux := http.NewServeMux(), http.NewServeMux()
	p.serveOurs(ours, name)
	p.addProbes(mux)
	mux.Handle("/", calledWith(token, ours))
	l, err := p.network.ListenTCP(ctx, listen)
	if err != nil {
		return "", fmt.Errorf("serve the function %s on %q: %w", name, listen, err)
	}
	p.serveFunction(l, mux)
	return l.Addr().String(), nil
}

// serveFunction serves HTTP/1.1, and HTTP/2 without TLS, which Knative may use.
func (p *Platform) serveFunction(l net.Listener, h http.Handler) {
	server := network.NewServer(network.ServerOptions{Handler: h, HTTP2: true, Write: -1, Errors: slog.LevelDebug, Logger: p.log})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	p.AtStop(Doors, "the function", func(ctx context.Context) error {
		err := errors.Join(server.Shutdown(ctx), server.Close()) // interrupted calls are repeated
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
}

// calledWith refuses requests without the token.
func calledWith(token string, functions http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hmac.Equal([]byte(r.Header.Get("Authorization")), want) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "only Tidemill's dispatcher calls these functions, with a token; publish an event to the gateway instead; a dispatcher in another process needs the same --run-secret", http.StatusUnauthorized)
			return
		}
		functions.ServeHTTP(w, r)
	})
}

// Knative is the value of Options.FunctionsAt if our functions are Knative Services, named after
// the install: NAME-train and so on.
const Knative = "knative"

// Functions returns the names of our functions that can run in their own processes.
func Functions() []string { return []string{trainFunction, promoteFunction, config.FunctionForget} }

// serveOurs adds one of our functions. The function needs the runs.
func (p *Platform) serveOurs(mux *http.ServeMux, name string) {
	switch name {
	case trainFunction:
		mux.HandleFunc("POST /"+trainFunction+"/{recipe}", p.callTrain)
	case promoteFunction:
		mux.Handle("POST /"+promoteFunction, p.promoteHandler())
	case config.FunctionForget:
		mux.Handle("POST /"+config.FunctionForget, p.forgetHandler())
	}
}

// ourPath returns the path of one of our functions; empty for other targets.
func ourPath(to config.Target) string {
	switch {
	case usesTrain(to):
		return "/" + to.Function + "/" + to.Recipe
	case usesPromote(to), usesForget(to):
		return "/" + to.Function
	}
	return ""
}

// resolveElsewhere finds one of our functions in another process.
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

// FunctionAt returns the address of a function. address may contain {function}, because each
// function may have its own process.
func FunctionAt(address, function string) string {
	return strings.ReplaceAll(address, "{function}", function)
}

// resolveService finds a Knative Service. If the service is missing or not ready, the error is
// ErrNotYet, so that the events wait.
func (p *Platform) resolveService(name string) (*url.URL, error) {
	if p.services == nil {
		return nil, fmt.Errorf("the service %s needs a cluster, and there is none: give the trigger a url, or run the dispatcher with --kubernetes", name)
	}
	all := p.services.known()
	if all == nil {
		return nil, fmt.Errorf("%w: the config that names the service is still being applied", deliver.ErrNotYet)
	}
	at, err := all.Resolve(name)
	switch {
	case errors.Is(err, kube.ErrElsewhere):
		return nil, err // the service would never be found
	case err != nil:
		return nil, fmt.Errorf("%w: %w", deliver.ErrNotYet, err)
	}
	return at, nil
}

const trainFunction = "train"

// usesTrain reports whether a trigger's target is our function that requests runs.
func usesTrain(to config.Target) bool { return to.Function == trainFunction && to.Recipe != "" }

// trainFunctions holds the functions that request runs, one per recipe.
type trainFunctions struct {
	mu  sync.Mutex
	all map[string]http.Handler
}

// callTrain calls the function of the recipe in the path.
func (p *Platform) callTrain(w http.ResponseWriter, r *http.Request) {
	p.trainOf(r.PathValue("recipe")).ServeHTTP(w, r)
}

// trainOf returns the function of a recipe. A function for an unknown recipe is not kept, because
// callers may send any path.
func (p *Platform) trainOf(recipe string) http.Handler {
	if _, ok := p.Config().Recipe(recipe); !ok {
		return http.NotFoundHandler()
	}
	p.trains.mu.Lock()
	defer p.trains.mu.Unlock()
	if p.trains.all == nil {
		p.trains.all = map[string]http.Handler{}
	}
	if p.trains.all[recipe] == nil {
		f := train.New(train.Options{Config: p.Config, Asker: p.works.foreman, Keys: p.works.ledger.Keys, Progress: p.works.store}, recipe)
		p.trains.all[recipe] = functions.ViewHandler(f, functions.Options{Logger: p.log})
	}
	return p.trains.all[recipe]
}

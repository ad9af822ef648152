package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/functions"
)

// openFunctions serves the functions of ours that triggers name, on loopback:
// the dispatcher calls them as it calls everybody else.
func (p *Platform) openFunctions(ctx context.Context) error {
	if len(p.functions) == 0 && p.works == nil {
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
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve our functions: %w", err)
	}
	p.called = l.Addr().String()
	server := &http.Server{Handler: calledBy(p.called, mux), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	// It outlives the dispatcher, which is stopped before it in the same stage.
	p.AtStop(Consumers, "our functions", func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	return nil
}

// calledBy answers the dispatcher alone. A page on the web could have its own
// name point to this machine and a browser here call our functions; the host is
// then that name.
func calledBy(host string, functions http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != host {
			http.Error(w, "these functions are called by Tidemill alone; post to the gateway", http.StatusForbidden)
			return
		}
		functions.ServeHTTP(w, r)
	})
}

// resolve finds who has no address of its own.
func (p *Platform) resolve(_ context.Context, to config.Target) (*url.URL, error) {
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

// pathOf is where a function that needs the runs is called; empty without them.
func (p *Platform) pathOf(to config.Target) string {
	if p.works == nil {
		return ""
	}
	return ourPath(to)
}

func (p *Platform) thoseThereAre() string {
	if len(p.functions) == 0 {
		return "it has none yet: say where ours are with --functions, or give the trigger a url"
	}
	return "those there are: " + strings.Join(slices.Sorted(maps.Keys(p.functions)), ", ")
}

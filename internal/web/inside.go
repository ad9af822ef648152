package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// agentRoutes is what all paths of agents begin with.
const agentRoutes = "/agent/"

// openInside prepares the way for the agents of this process: loopback, without
// TLS, and nobody gets anything there but what the token of an attempt opens.
func (g *Gateway) openInside() {
	if g.opt.Inside == nil {
		return
	}
	g.inside = g.newServer()
	g.inside.TLSConfig = nil
	g.inside.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, agentRoutes) {
			http.NotFound(w, r)
			return
		}
		g.serveHTTP(w, r)
	})
}

// serveInside answers them until closeInside.
func (g *Gateway) serveInside() error {
	if g.inside == nil {
		return nil
	}
	if err := g.inside.Serve(g.opt.Inside); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (g *Gateway) closeInside(ctx context.Context) error {
	if g.inside == nil {
		return nil
	}
	if err := g.inside.Shutdown(ctx); err != nil {
		return errors.Join(err, g.inside.Close())
	}
	return nil
}

package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev/internal/api"
)

// readSaid reads what an agent says. It is read leniently: an agent may be of a
// later version than its gateway, and fields are only ever added.
func (g *Gateway) readSaid(r *request, to any) *api.Problem {
	body, p := g.body(r, api.MaxFinish, func() *api.Problem {
		return tooLarge(fmt.Sprintf("what an attempt says may have %d bytes: pack its files into fewer", api.MaxFinish))
	})
	if p != nil {
		return p
	}
	// What is read of it takes as much again.
	if p := g.charge(r, len(body)); p != nil {
		return p
	}
	if err := json.Unmarshal(body, to); err != nil {
		return invalidRequest("the body is not what an agent says here: " + clip(err.Error()) + "; /api/v1/openapi.json says what is")
	}
	return nil
}

// toTheEnd is a context for what has begun, and should not stay half done when
// the caller goes away. The answer is given that much time too: the body may
// have taken most of what net/http allows for both.
func (g *Gateway) toTheEnd(r *request) (context.Context, context.CancelFunc) {
	g.extend(r, storeWithin)
	return context.WithTimeout(context.WithoutCancel(r.Context()), storeWithin)
}

// extend gives an answer so much time from now on, and to be taken.
func (g *Gateway) extend(r *request, within time.Duration) {
	control := http.NewResponseController(&r.answer)
	_ = control.SetWriteDeadline(time.Now().Add(within + g.opt.Limits.Write)) // one that knows no deadline has gone
}

package remote

import (
	"context"

	"tidemill.dev/internal/api"
)

// ForgetKey asks that a key be forgotten, or what that would take away.
func (g *Gateway) ForgetKey(ctx context.Context, named Asking, ask api.KeyAsked) (end api.KeyEnd, err error) {
	return end, g.postNamed(ctx, named, "forget the key", ask, &end, "keys", "forget")
}

// ForgottenKey is how far the end of a key has come.
func (g *Gateway) ForgottenKey(ctx context.Context, id string) (end api.KeyEnd, err error) {
	return end, g.get(ctx, "look for the receipt", &end, nil, "keys", "forgotten", id)
}

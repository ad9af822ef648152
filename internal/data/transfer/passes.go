package transfer

import "context"

// Passes tells whether a failure of Put or Get may pass, so that beginning again
// makes sense: the gateway is away, or has too much to do.
func Passes(ctx context.Context, err error) bool {
	_, ok := passing(ctx, err)
	return ok
}

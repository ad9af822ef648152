package web

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/tail"
)

// viewer is who reads a tail. A tail may outlive what he was let in by: his
// token is taken away or runs out, or his keys change. So he is asked for it
// again before he is sent anything.
type viewer struct {
	guard         *access.Guard // nil at the open door
	authorization string
	caller        *access.Caller
}

func (g *Gateway) viewer(r *request) *viewer {
	return &viewer{g.opt.Access, r.Header.Get("Authorization"), r.caller}
}

var errRefused = errors.New("the reader may read no more")

// again finds out whether he may still read. Whoever was let in stays while his
// issuer cannot be asked.
func (v *viewer) again(ctx context.Context) error {
	if v.guard == nil {
		return nil
	}
	caller, err := v.guard.Caller(ctx, v.authorization)
	switch {
	case errors.Is(err, access.ErrIssuerAway):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errRefused, err)
	case !caller.Has(access.Read):
		return fmt.Errorf("%w: %q lacks the role %s now", errRefused, clip(caller.Name()), access.Read)
	}
	v.caller = caller
	return nil
}

// may tells which events of a stream he may see: those of his keys. An event's
// key is its subject, as a model's key is, or the record's where it has none.
// What holds nothing of anybody, such as word of offsets that are gone, is for
// everyone: who is not told believes he has seen all.
func (v *viewer) may(e *tail.Event) bool {
	if v.caller.AllKeys(access.Read) {
		return true
	}
	key := e.Subject
	if key == "" {
		key = string(e.Key)
	}
	return e.Err != nil && e.Key == nil && e.Data == nil && e.Foreign == nil || v.caller.MayTouch(access.Read, key)
}

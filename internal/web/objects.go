package web

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

// The handlers of objects serve people below /api/v1/data and attempts below
// their own base. Who asks has been settled before: a digest is a capability,
// and whoever knows one may have its object.

const (
	mostObjects   = 10_000  // that one request may ask after
	mostMissing   = 2 << 20 // bytes of its body
	directObject  = 1 << 20 // smaller ones are quicker through the gateway, many at once
	putsAtOnce    = 8       // objects of a batch on their way into the store
	mostBatchBody = 16 << 20
)

// objects is the store, where there is one.
func (g *Gateway) objects() (*store.Store, *api.Problem) {
	if g.opt.Store == nil {
		return nil, noStore()
	}
	return g.opt.Store, nil
}

// missingObjects answers which of the objects that it is asked after are to be
// put, and where.
func (g *Gateway) missingObjects(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	asked, p := g.readMissing(r)
	if p != nil {
		return p
	}
	lack, err := s.Missing(r.Context(), asked)
	if err != nil {
		return g.storeFault("see which objects are missing", err)
	}
	answer := api.Missing{Objects: lack}
	if answer.Objects == nil {
		answer.Objects = []api.Part{}
	}
	if answer.Puts, err = signedPuts(r.Context(), s, lack); err != nil {
		return g.storeFault("sign where objects may be put", err)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (g *Gateway) readMissing(r *request) ([]api.Part, *api.Problem) {
	over := func() *api.Problem {
		return tooLarge(fmt.Sprintf("one request may ask after %d objects: ask in parts", mostObjects))
	}
	body, p := g.body(r, mostMissing, over)
	if p != nil {
		return nil, p
	}
	var asked api.Missing
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, invalidRequest("the body is not what is asked for here: " + clip(err.Error()) + "; /api/v1/openapi.json says what is")
	}
	if len(asked.Objects) > mostObjects {
		return nil, over()
	}
	for _, o := range asked.Objects {
		if p := badObject(o); p != nil {
			return nil, p
		}
	}
	return asked.Objects, nil
}

// signedPuts are where the large ones may be put directly; none if the store
// does not sign.
func signedPuts(ctx context.Context, s *store.Store, lack []api.Part) (map[string]string, error) {
	var puts map[string]string
	for _, o := range lack {
		if o.Size <= directObject {
			continue
		}
		to, err := s.SignedPut(ctx, o)
		if err != nil || to == "" {
			return nil, err
		}
		if puts == nil {
			puts = map[string]string{}
		}
		puts[o.Digest] = to
	}
	return puts, nil
}

// badObject refuses what cannot name an object.
func badObject(o api.Part) *api.Problem {
	if p := badDigest(o.Digest); p != nil {
		return p
	}
	if o.Size < 0 || o.Size > api.PartSize {
		return badParameter("size", fmt.Sprintf("%d is no size of an object; it has 0 to %d bytes, and a larger file is put in parts of that size", o.Size, api.PartSize))
	}
	return nil
}

func badDigest(digest string) *api.Problem {
	raw, err := hex.DecodeString(digest)
	if err != nil || len(raw) != digestSize || hex.EncodeToString(raw) != digest {
		return badParameter("digest", fmt.Sprintf("%q is no digest; give a SHA-256 in 64 small hexadecimal digits", clip(digest)))
	}
	return nil
}

// objectOf reads the object that a request names.
func (r *request) objectOf() (api.Part, *api.Problem) {
	values, p := r.query([]string{"digest", "size"})
	if p != nil {
		return api.Part{}, p
	}
	size, err := strconv.ParseInt(values.Get("size"), 10, 64)
	if err != nil {
		return api.Part{}, badParameter("size", "give the object's size in bytes")
	}
	o := api.Part{Digest: values.Get("digest"), Size: size}
	return o, badObject(o)
}

// storeFault is the problem of what the store did not do.
func (g *Gateway) storeFault(what string, err error) *api.Problem {
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrMissing):
		return unknownData(err.Error())
	case errors.Is(err, store.ErrInvalid):
		return invalidRequest(err.Error())
	case errors.Is(err, context.Canceled):
		return unavailable("the request was given up") // nobody hears of it
	}
	g.log.Warn("the store failed", "what", what, "reason", err)
	return unavailable("the store cannot do that now (" + what + "); send it again a little later")
}

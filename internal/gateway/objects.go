package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

// The handlers of objects serve people below /api/v1/data and attempts below their own base path.
// The handlers run after the caller has been admitted. A digest is a capability: a caller that
// knows a digest may have its object.

const (
	mostObjects   = 10_000  // objects that one request may ask about
	mostMissing   = 2 << 20 // bytes of that request's body
	putsAtOnce    = 8       // objects of a batch that are stored at the same time
	mostBatchBody = 16 << 20
)

// objectStore returns the store, or a problem if there is none.
func (g *Gateway) objectStore() (*store.Store, *api.Problem) {
	if g.opt.Store == nil {
		return nil, noStore()
	}
	return g.opt.Store, nil
}

// missingObjects answers with the listed objects that must be put.
func (g *Gateway) missingObjects(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	asked, p := g.readMissing(r)
	if p != nil {
		return p
	}
	lack, err := s.Missing(r.Context(), asked)
	if err != nil {
		return g.storeFault("list missing objects", err)
	}
	answer := api.Missing{Objects: lack}
	if answer.Objects == nil {
		answer.Objects = []api.Part{}
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (g *Gateway) readMissing(r *request) ([]api.Part, *api.Problem) {
	over := func() *api.Problem {
		return tooLarge(fmt.Sprintf("one request may name %d objects: send several requests", mostObjects))
	}
	body, p := g.readBody(r, mostMissing, over)
	if p != nil {
		return nil, p
	}
	var asked api.Missing
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, invalidRequest("the body is invalid: " + clipText(err.Error()) + "; see /api/v1/openapi.json")
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

// badObject refuses an invalid digest or size.
func badObject(o api.Part) *api.Problem {
	if p := badDigest(o.Digest); p != nil {
		return p
	}
	if o.Size < 0 || o.Size > api.PartSize {
		return badParameter("size", fmt.Sprintf("%d is not the size of an object; it has 0 to %d bytes, and a larger file is uploaded in parts of that size", o.Size, api.PartSize))
	}
	return nil
}

func badDigest(digest string) *api.Problem {
	raw, err := hex.DecodeString(digest)
	if err != nil || len(raw) != digestSize || hex.EncodeToString(raw) != digest {
		return badParameter("digest", fmt.Sprintf("%q is not a digest; give a SHA-256 as 64 lower-case hexadecimal digits", clipText(digest)))
	}
	return nil
}

// objectOf reads the object that a request names.
func (r *request) objectOf() (api.Part, *api.Problem) {
	values, p := r.parseQuery([]string{"digest", "size"})
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

// storeFault is the problem of a failed operation of the store.
func (g *Gateway) storeFault(what string, err error) *api.Problem {
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrMissing):
		return unknownData(err.Error())
	case errors.Is(err, store.ErrInvalid):
		return invalidRequest(err.Error())
	case errors.Is(err, context.Canceled):
		return unavailable("the request was given up") // the caller has disconnected
	}
	g.log.Warn("gateway: an operation of the store failed; the request fails", "what", what, "reason", err)
	switch {
	case errors.Is(err, store.ErrFull):
		return diskFull(err.Error())
	case errors.Is(err, store.ErrGone):
		return unavailable("the folder of the object store " + store.ErrGone.Error())
	case errors.Is(err, store.ErrCorrupt):
		return unavailable(what + ": " + err.Error())
	}
	return unavailable("the store does not answer (" + what + "); send it again later")
}

const digestSize = sha256.Size

// putObject stores the object that the request names, as it arrives.
func (g *Gateway) putObject(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	o, p := r.objectOf()
	if p != nil {
		return p
	}
	f, p := g.newTransfer(r)
	if p != nil {
		return p
	}
	if r.ContentLength >= 0 && r.ContentLength != o.Size {
		return badParameter("size", fmt.Sprintf("it is %d, and the body has %d bytes", o.Size, r.ContentLength))
	}
	err := s.PutObject(r.Context(), o.Digest, o.Size, f)
	if err == nil {
		_, err = io.Copy(io.Discard, f) // the store reads no body if it has the object already
	}
	switch {
	case f.err != nil:
		return g.bodyProblem(r, f.err)
	case err != nil:
		r.answer.Header().Set("Connection", "close") // the rest of the body would be taken for the next request
		return g.storeFault("put an object", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// putObjects stores small objects, many from one body.
func (g *Gateway) putObjects(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	if media := r.Header.Get("Content-Type"); media != api.ObjectsType {
		return problem(api.UnsupportedType, http.StatusUnsupportedMediaType, "the content type is not accepted",
			fmt.Sprintf("content type %q: send objects as %s", clipText(media), api.ObjectsType))
	}
	body, p := g.readBody(r, mostBatchBody, func() *api.Problem {
		return tooLarge(fmt.Sprintf("a batch of objects may have %d bytes: send fewer, and large ones one by one", mostBatchBody))
	})
	if p != nil {
		return p
	}
	all, p := splitObjects(body)
	if p != nil {
		return p
	}
	f := bodyTransfer{g: g, c: http.NewResponseController(&r.answer)}
	f.setFinalDeadlines()
	if p := g.putAll(r.Context(), s, all); p != nil {
		return p
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// framedObject is one object of a batch.
type framedObject struct {
	api.Part
	bytes []byte
}

// splitObjects reads a batch. All digests are checked before any object is stored. If a digest is
// wrong, the answer names its object, because the mistake is the sender's.
func splitObjects(body []byte) (all []framedObject, p *api.Problem) {
	for at := 0; at < len(body); {
		left := body[at:]
		if len(left) < api.ObjectHead {
			return nil, invalidRequest(fmt.Sprintf("the body ends within the header of an object, at byte %d", at))
		}
		o := framedObject{Part: api.Part{Digest: hex.EncodeToString(left[:digestSize])}}
		size := binary.BigEndian.Uint64(left[digestSize:])
		left = left[api.ObjectHead:]
		if size > uint64(len(left)) {
			return nil, invalidRequest(fmt.Sprintf("object %s has %d bytes by its header, and the body has %d more", o.Digest, size, len(left)))
		}
		o.Size, o.bytes = int64(size), left[:size]
		if is := sha256.Sum256(o.bytes); hex.EncodeToString(is[:]) != o.Digest {
			return nil, invalidRequest(fmt.Sprintf("object %s: its bytes do not have this digest; read the file again", o.Digest))
		}
		all = append(all, o)
		at += api.ObjectHead + int(size)
	}
	return all, nil
}

// putAll stores several objects at the same time, because one after the other would take too
// long with a distant store.
func (g *Gateway) putAll(ctx context.Context, s *store.Store, all []framedObject) *api.Problem {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	todo := make(chan *framedObject)
	var putting sync.WaitGroup
	for range min(putsAtOnce, len(all)) {
		putting.Go(func() {
			for o := range todo {
				if err := s.PutObject(ctx, o.Digest, o.Size, bytes.NewReader(o.bytes)); err != nil {
					stop(err)
				}
			}
		})
	}
	for i := range all {
		if ctx.Err() != nil {
			break
		}
		todo <- &all[i]
	}
	close(todo)
	putting.Wait()
	if err := context.Cause(ctx); err != nil {
		return g.storeFault("put objects", err)
	}
	return nil
}

// getObject answers with an object, or redirects to a URL from which the caller can get it
// directly.
func (g *Gateway) getObject(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	values, p := r.parseQuery([]string{"digest"})
	if p != nil {
		return p
	}
	digest := values.Get("digest")
	if p := badDigest(digest); p != nil {
		return p
	}
	to, err := s.SignedGet(r.Context(), digest)
	if err != nil {
		return g.storeFault("sign the download of an object", err)
	}
	if to != "" {
		w.Header().Set("Location", to)
		writeHead(w, http.StatusTemporaryRedirect, "text/plain")
		return nil
	}
	f, p := g.newTransfer(r)
	if p != nil {
		return p
	}
	from, size, err := s.Object(r.Context(), digest)
	if err != nil {
		return g.storeFault("open an object", err)
	}
	defer from.Close()
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	writeHead(w, http.StatusOK, "application/octet-stream")
	// Net/http cuts the connection of an answer that is shorter than its length.
	if read, _ := f.copyTo(w, from); read != nil && r.Context().Err() == nil {
		g.log.Error("gateway: reading an object failed; the answer is cut short", "file", digest, "reason", read)
	}
	return nil
}

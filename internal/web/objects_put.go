package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

const digestSize = sha256.Size

// putObject takes the object that the request names, as it comes.
func (g *Gateway) putObject(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	o, p := r.objectOf()
	if p != nil {
		return p
	}
	f, p := g.flowing(r)
	if p != nil {
		return p
	}
	if r.ContentLength >= 0 && r.ContentLength != o.Size {
		return badParameter("size", fmt.Sprintf("it is %d, and the body has %d bytes", o.Size, r.ContentLength))
	}
	err := s.PutObject(r.Context(), o.Digest, o.Size, f)
	if err == nil {
		_, err = io.Copy(io.Discard, f) // of what was there already nothing need have been read
	}
	switch {
	case f.err != nil:
		return g.unread(r, f.err)
	case err != nil:
		r.answer.Header().Set("Connection", "close") // what is left of the body would be the next request
		return g.storeFault("put an object", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// putObjects takes small objects, many in one body.
func (g *Gateway) putObjects(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	if media := r.Header.Get("Content-Type"); media != api.ObjectsType {
		return problem(api.UnsupportedType, http.StatusUnsupportedMediaType, "the form of the body is not read here",
			fmt.Sprintf("content type %q: send objects as %s", clip(media), api.ObjectsType))
	}
	body, p := g.body(r, mostBatchBody, func() *api.Problem {
		return tooLarge(fmt.Sprintf("a batch of objects may have %d bytes: send fewer, and large ones alone", mostBatchBody))
	})
	if p != nil {
		return p
	}
	all, p := splitObjects(body)
	if p != nil {
		return p
	}
	f := flow{g: g, c: http.NewResponseController(&r.answer)}
	f.rest()
	if p := g.putAll(r.Context(), s, all); p != nil {
		return p
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// framed is one object of a batch.
type framed struct {
	api.Part
	bytes []byte
}

// splitObjects reads a batch. The bytes are held against their digests here,
// before any of them is stored: one that is not right is a slip of the sender's,
// who is told which it is.
func splitObjects(body []byte) (all []framed, p *api.Problem) {
	for at := 0; at < len(body); {
		left := body[at:]
		if len(left) < api.ObjectHead {
			return nil, invalidRequest(fmt.Sprintf("the body ends within the head of an object, at byte %d", at))
		}
		o := framed{Part: api.Part{Digest: hex.EncodeToString(left[:digestSize])}}
		size := binary.BigEndian.Uint64(left[digestSize:])
		left = left[api.ObjectHead:]
		if size > uint64(len(left)) {
			return nil, invalidRequest(fmt.Sprintf("object %s is to have %d bytes, and the body has %d more", o.Digest, size, len(left)))
		}
		o.Size, o.bytes = int64(size), left[:size]
		if is := sha256.Sum256(o.bytes); hex.EncodeToString(is[:]) != o.Digest {
			return nil, invalidRequest(fmt.Sprintf("object %s: its bytes are not those that the digest names; read the file again", o.Digest))
		}
		all = append(all, o)
		at += api.ObjectHead + int(size)
	}
	return all, nil
}

// putAll puts some at once: where the store is far away, one after the other
// would take for ever.
func (g *Gateway) putAll(ctx context.Context, s *store.Store, all []framed) *api.Problem {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	todo := make(chan *framed)
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

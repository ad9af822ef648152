//go:build slow

package store

import (
	"strings"
	"testing"
)

// An object that is larger than a request is uploaded in parts; one that proves wrong leaves no
// part.
func TestS3Parts(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	for _, size := range []int{s3Part - 1, s3Part, s3Part + 1, 2 * s3Part} {
		data := strings.Repeat("x", size)
		p := w.put(data)
		got, err := w.read(p.Digest)
		w.must(err)
		if got != data {
			w.Errorf("%d bytes came back as %d others", size, len(got))
		}
	}
	size := 2*s3Part + 5
	for _, data := range []string{strings.Repeat("w", size), strings.Repeat("r", size-1), strings.Repeat("r", size+1)} {
		w.wants(w.PutObject(t.Context(), digestOf(strings.Repeat("r", size)), int64(size), strings.NewReader(data)), ErrInvalid)
	}
	w.same("uploads left", server.Uploads(), 0)
	w.same("objects", len(w.remains(objectsPrefix)), 4)
	for _, key := range server.Keys() {
		if !strings.HasPrefix(key, "prod/objects/") && key != "prod/"+checkKey {
			t.Errorf("%s has not the prefix of the URL", key)
		}
	}
}

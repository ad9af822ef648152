//go:build real

package store

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

func TestRealS3(t *testing.T) {
	s := startS3(t)
	n := 0
	suite(t, func(t *testing.T) *Store {
		n++
		at, err := s.Bucket(fmt.Sprint("bucket-", n))
		if err != nil {
			t.Fatal(err)
		}
		return openStore(t, at)
	})
}

// A signed URL reads an object without credentials; puts are never signed.
func TestRealS3Signs(t *testing.T) {
	at, err := startS3(t).Bucket("bucket")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Store: openStore(t, at)}
	p := w.put("what is signed for")
	signed, err := w.SignedGet(t.Context(), p.Digest)
	w.must(err)
	r, err := http.Get(signed)
	w.must(err)
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	w.must(err)
	w.same("got", string(got), "what is signed for")
	unsigned, err := w.SignedPut(t.Context(), p)
	w.must(err)
	w.same("a put", unsigned, "")
}

// Opening a store reports that its bucket does not exist.
func TestRealS3WithoutABucket(t *testing.T) {
	at, err := startS3(t).Bucket("there")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{URL: "s3://not-" + at[len("s3://"):]}); err == nil {
		t.Error("a bucket that is not there was opened")
	} else {
		t.Log(err)
	}
}

func startS3(t *testing.T) *realservers.S3 {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", realservers.S3AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", realservers.S3SecretKey)
	s, err := realservers.StartS3(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

//go:build real

package store

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
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
}

// Opening a store reports a bucket that does not exist and credentials that the server refuses, and
// a store reports a server that is gone.
func TestRealS3Refuses(t *testing.T) {
	s := startS3(t)
	at, err := s.Bucket("there")
	if err != nil {
		t.Fatal(err)
	}
	opened := openStore(t, at)
	fails := func(what, url, want string) {
		t.Helper()
		_, err := Open(t.Context(), Options{URL: url})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	fails("no bucket", "s3://not-"+at[len("s3://"):], "there is no such bucket: create it")
	fails("another region", strings.Replace(at, "us-east-1", "eu-central-1", 1), "region")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "other")
	fails("a wrong secret", at, "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)")
	t.Setenv("AWS_ACCESS_KEY_ID", "other")
	fails("a wrong key", at, "access key")
	if err := os.RemoveAll(s.Folder("there")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := opened.Object(t.Context(), digestOf("x")); err == nil || !strings.Contains(err.Error(), "there is no such bucket") {
		t.Errorf("a bucket that is gone: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := opened.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a server that is gone: %v", err)
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
	t.Cleanup(func() { _ = s.Close() })
	return s
}

package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"tidemill.dev/broker/network"
)

const (
	s3Ways     = 32       // number of parallel requests
	s3Part     = 16 << 20 // bytes of an object that one request carries
	s3Tries    = 5        // tries of a request; the waits between them are 200 ms to 1 s
	s3Conflict = 3        // tries of a create that meets another one
	s3Dial     = 10 * time.Second
	s3Abort    = 10 * time.Second // time for giving up an upload
)

// s3 is a backend in a bucket of S3, or of a server that speaks S3.
type s3 struct {
	client    *minio.Core
	place     s3Place
	transport *http.Transport
}

// openS3 makes no request.
func openS3(at string, over network.Network) (*s3, error) {
	place, err := parseS3(at, os.Getenv)
	if err != nil {
		return nil, err
	}
	transport, err := place.transport(over)
	if err != nil {
		return nil, err
	}
	client, err := minio.NewCore(place.host, &minio.Options{Creds: place.credentials(transport), Secure: place.secure, Region: place.region,
		BucketLookup: place.lookup, Transport: transport, MaxRetries: s3Tries})
	if err != nil {
		return nil, fmt.Errorf("use endpoint %s: %w", place.host, err)
	}
	client.SetS3EnableDualstack(place.dualstack)
	return &s3{client: client, place: place, transport: transport}, nil
}

func (b *s3) close() { b.transport.CloseIdleConnections() }

// ping lists one key. It needs no right that the store does not need anyway, and S3 explains a
// refusal of it, other than one of a HEAD request.
func (b *s3) ping(ctx context.Context) error {
	err := b.walk(ctx, "", 1, func(item) error { return errPinged })
	if errors.Is(err, errPinged) {
		return nil
	}
	return err
}

// check makes sure that the server honours the condition of a create. A server that ignores it would
// let one commit overwrite another. The key is left, so that all later checks are one request.
func (b *s3) check(ctx context.Context) error {
	for range 2 {
		err := b.create(ctx, checkKey, []byte(checkText), func() {})
		if errors.Is(err, errTaken) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write the key %s: %w", checkKey, err)
		}
	}
	return errors.New("the server ignores If-None-Match in a PUT, so commits could overwrite each other: use a server with conditional writes, or a folder")
}

const (
	checkKey  = "check-create"
	checkText = "Tidemill checks here that the server does not overwrite a key that exists.\n"
)

var errPinged = errors.New("the bucket answers")

func (b *s3) key(key string) string { return b.place.prefix + key }

// write needs the first part in memory before it sends anything: only at the end of r is it known
// whether the bytes are right.
func (b *s3) write(ctx context.Context, key string, size int64, r io.Reader) error {
	buf := make([]byte, min(size+1, s3Part))
	n, err := fill(r, buf)
	if errors.Is(err, io.EOF) {
		return b.put(ctx, key, buf[:n], b.options())
	}
	if err != nil {
		return err
	}
	return b.writeParts(ctx, key, buf, r)
}

// fill reads until the buffer is full or r ends.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var more int
		more, err = r.Read(buf[n:])
		n += more
	}
	return n, err
}

func (b *s3) options() minio.PutObjectOptions {
	// Each request has the digest of its bytes, so the client need not sign them piece by piece.
	return minio.PutObjectOptions{ServerSideEncryption: b.place.encryption, DisableContentSha256: true}
}

func (b *s3) put(ctx context.Context, key string, data []byte, o minio.PutObjectOptions) error {
	sum := sha256.Sum256(data)
	_, err := b.client.PutObject(ctx, b.place.bucket, b.key(key), bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), o)
	return b.explained(err)
}

// writeParts uploads a key in parts; the first is in the buffer, which it uses for the others too.
// The key changes when all parts are there.
func (b *s3) writeParts(ctx context.Context, key string, buf []byte, r io.Reader) error {
	id, err := b.client.NewMultipartUpload(ctx, b.place.bucket, b.key(key), b.options())
	if err != nil {
		return b.explained(err)
	}
	parts, err := b.sendParts(ctx, key, id, buf, r)
	if err == nil {
		_, err = b.client.CompleteMultipartUpload(ctx, b.place.bucket, b.key(key), id, parts, minio.PutObjectOptions{})
		err = b.explained(err)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s3Abort)
		defer cancel()
		// A bucket's lifecycle rule removes parts whose removal fails.
		_ = b.client.AbortMultipartUpload(ctx, b.place.bucket, b.key(key), id)
	}
	return err
}

func (b *s3) sendParts(ctx context.Context, key, id string, buf []byte, r io.Reader) (sent []minio.CompletePart, err error) {
	for n := len(buf); n > 0; {
		sum := sha256.Sum256(buf[:n])
		p, err := b.client.PutObjectPart(ctx, b.place.bucket, b.key(key), id, len(sent)+1, bytes.NewReader(buf[:n]), int64(n),
			minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(sum[:]), DisableContentSha256: true})
		if err != nil {
			return nil, b.explained(err)
		}
		sent = append(sent, minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag})
		if n, err = fill(r, buf); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	return sent, nil
}

func (b *s3) over(ctx context.Context, key string, data []byte) error {
	return b.put(ctx, key, data, b.options())
}

// create asks S3 to write the key only if it is not there. S3 answers a create that meets another
// one with a conflict, and the other one may fail.
func (b *s3) create(ctx context.Context, key string, data []byte, step func()) error {
	defer step()
	o := b.options()
	o.SetMatchETagExcept("*")
	var err error
	for range s3Conflict {
		err = b.put(ctx, key, data, o)
		if status := statusOf(err); status == http.StatusPreconditionFailed {
			return errTaken
		} else if status != http.StatusConflict {
			return err
		}
	}
	return errTaken
}

func (b *s3) open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	r, i, _, err := b.client.GetObject(ctx, b.place.bucket, b.key(key), minio.GetObjectOptions{})
	if err != nil {
		return nil, 0, b.explained(err)
	}
	return r, i.Size, nil
}

func (b *s3) stat(ctx context.Context, key string) (item, error) {
	i, err := b.client.StatObject(ctx, b.place.bucket, b.key(key), minio.StatObjectOptions{})
	if err != nil {
		return item{}, b.explained(err)
	}
	return item{key: key, size: i.Size, time: i.LastModified}, nil
}

func (b *s3) touch(context.Context, string, time.Time) error { return errors.ErrUnsupported }

func (b *s3) remove(ctx context.Context, key string) error {
	return b.explained(b.client.RemoveObject(ctx, b.place.bucket, b.key(key), minio.RemoveObjectOptions{}))
}

func (b *s3) listAll(ctx context.Context, prefix string, fn func(item) error) error {
	if err := b.walk(ctx, prefix, 0, fn); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

// walk lists keys in pages of the given size; 0 means the server's own size.
func (b *s3) walk(ctx context.Context, prefix string, page int, fn func(item) error) error {
	o := minio.ListObjectsOptions{Prefix: b.key(prefix), Recursive: true, MaxKeys: page, FetchOwner: new(bool)}
	for i := range b.client.ListObjectsIter(ctx, b.place.bucket, o) {
		if i.Err != nil {
			return b.explained(i.Err)
		}
		if err := fn(item{key: strings.TrimPrefix(i.Key, b.place.prefix), size: i.Size, time: i.LastModified}); err != nil {
			return err
		}
	}
	return ctx.Err() // the client ends a listing without an error when the context ends
}

func (b *s3) sign(ctx context.Context, key string, valid time.Duration) (string, error) {
	if b.place.anonymous {
		return "", nil
	}
	u, err := b.client.PresignedGetObject(ctx, b.place.bucket, b.key(key), valid, nil)
	if err != nil {
		return "", b.explained(err)
	}
	return u.String(), nil
}

// prune and pruneOne have nothing to do: S3 has no folders.
func (b *s3) prune(string) error    { return nil }
func (b *s3) pruneOne(string) error { return nil }

// refusal is an answer of S3 that is an error.
type refusal struct {
	answer minio.ErrorResponse
	advice string
}

func (r *refusal) Error() string {
	text := strings.TrimRight(r.answer.Message, ".")
	if text == "" {
		text = http.StatusText(r.answer.StatusCode)
	}
	return fmt.Sprintf("S3 answers %d %s: %s%s", r.answer.StatusCode, r.answer.Code, text, r.advice)
}

// statusOf returns the status of an answer of S3; 0 if the error is none.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.answer.StatusCode
	}
	return 0
}

// explained says in an error what to do. An error for a missing key becomes ErrNotFound.
func (b *s3) explained(err error) error {
	if lost, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("reach S3 at %s: %w", b.client.EndpointURL(), lost.Err) // the error's URL would say the same, and more
	}
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return err
	}
	switch {
	case answer.Code == minio.NoSuchBucket:
		return errors.New("there is no such bucket: create it, or name another")
	case answer.Code == minio.NoSuchKey: // the client's code for any 404 without one, too
		return ErrNotFound
	case answer.Region != "" && answer.Region != b.place.region:
		return &refusal{answer, fmt.Sprintf("; the bucket is in region %s, not in %s: correct region= in the URL", answer.Region, b.place.region)}
	case answer.Code == minio.RequestTimeTooSkewed:
		return &refusal{answer, "; set the clock of this machine"}
	case answer.StatusCode == http.StatusForbidden:
		return &refusal{answer, "; check the credentials (" + b.place.source() + ") and their rights to list, read, write and remove"}
	}
	return &refusal{answer: answer}
}

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/memblob" // mem://
	_ "gocloud.dev/blob/s3blob"  // s3://
	"gocloud.dev/gcerrors"
)

// errTaken reports that a key exists already.
var errTaken = errors.New("is taken")

const octets = "application/octet-stream"

// bucket reads and writes keys. On a folder some operations bypass the driver, because the driver
// does not do them as the store needs; see folder.go.
type bucket struct {
	blob *blob.Bucket
	name string
	dir  string // path of the folder; empty for other buckets
	ways int    // number of parallel requests
	// watch is called before and after each write; tests end the process there.
	watch func(key string)
}

// item is one entry of a listing.
type item struct {
	key  string
	size int64
	time time.Time
}

func openBucket(ctx context.Context, at string) (*bucket, error) {
	dir, ok, err := folderOf(at)
	switch {
	case err != nil:
		return nil, err
	case ok:
		b, err := fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, DirFileMode: 0o700,
			NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
		return &bucket{blob: b, name: dir, dir: dir, ways: 4}, err
	}
	at, err = withDefaults(at)
	if err != nil {
		return nil, err
	}
	b, err := blob.OpenBucket(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(at), err)
	}
	return &bucket{blob: b, name: redacted(at), ways: 32}, nil
}

// folderOf returns the folder that a path or a file URL names.
func folderOf(at string) (string, bool, error) {
	if at == "" {
		return "", false, errors.New("no URL is given: name a folder, or a bucket such as s3://name?region=eu-1")
	}
	if !strings.Contains(at, "://") {
		dir, err := filepath.Abs(at)
		return dir, true, err
	}
	u, err := url.Parse(at)
	if err != nil {
		return "", false, fmt.Errorf("read the store's URL: %w", errors.Unwrap(err))
	}
	if u.Scheme != "file" {
		return "", false, nil
	}
	if u.Host != "" && u.Host != "localhost" || u.Path == "" || u.RawQuery != "" {
		return "", false, fmt.Errorf("%s names no folder of this machine: write file:///the/folder", u.Redacted())
	}
	return filepath.FromSlash(u.Path), true, nil
}

// withDefaults turns off the S3 client's own check of responses, because the store verifies digests
// itself. The client would log each response that it cannot check.
func withDefaults(at string) (string, error) {
	u, err := url.Parse(at)
	if err != nil {
		return "", fmt.Errorf("read the store's URL: %w", errors.Unwrap(err))
	}
	q := u.Query()
	if u.Scheme == "s3" && !q.Has("response_checksum_validation") {
		q.Set("response_checksum_validation", "when_required")
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// redacted returns a URL without its query, which may contain a secret.
func redacted(at string) string {
	before, _, _ := strings.Cut(at, "?")
	return before
}

func (b *bucket) close() error { return b.blob.Close() }

func (b *bucket) wrote(key string) {
	if b.watch != nil {
		b.watch(key)
	}
}

func (b *bucket) ping(ctx context.Context) error {
	if b.dir != "" {
		return pingFolder(b.dir)
	}
	ok, err := b.blob.IsAccessible(ctx)
	if err == nil && !ok {
		err = errors.New("there is no such bucket: create it, or name another")
	}
	return err
}

// put writes a key that may exist already. Readers see all of the value or none of it.
func (b *bucket) put(ctx context.Context, key string, data []byte) error {
	return b.write(ctx, key, nil, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// over overwrites a key whose value may be seen half written, and whose concurrent writes may be
// lost.
func (b *bucket) over(ctx context.Context, key string, data []byte) error {
	if b.dir != "" {
		if done, err := b.overwrite(key, data); done || err != nil {
			return err
		}
	}
	return b.put(ctx, key, data)
}

// write writes a key through fn; if fn fails, the key is left as it was.
func (b *bucket) write(ctx context.Context, key string, o *blob.WriterOptions, fn func(io.Writer) error) error {
	if o == nil {
		o = &blob.WriterOptions{}
	}
	o.ContentType = octets // set, because the driver guesses it otherwise
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.wrote(key)
	w, err := b.blob.NewWriter(ctx, key, o)
	if err != nil {
		return err
	}
	if err := fn(w); err != nil {
		cancel() // Close after cancel discards the written bytes
		_ = w.Close()
		return err
	}
	err = w.Close()
	b.wrote(key)
	return err
}

// create writes a key that must not exist yet. One of several concurrent writers succeeds; all
// others get errTaken.
func (b *bucket) create(ctx context.Context, key string, data []byte) error {
	if b.dir != "" {
		return b.link(key, data)
	}
	err := b.write(ctx, key, &blob.WriterOptions{IfNotExist: true}, func(w io.Writer) error { _, err := w.Write(data); return err })
	if gcerrors.Code(err) == gcerrors.FailedPrecondition {
		return errTaken
	}
	return err
}

func (b *bucket) open(ctx context.Context, key string) (*blob.Reader, error) {
	r, err := b.blob.NewReader(ctx, key, nil)
	return r, found(err)
}

func (b *bucket) get(ctx context.Context, key string) ([]byte, error) {
	r, err := b.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The size was read a moment before: a file in a folder may have been replaced since.
	data := bytes.NewBuffer(make([]byte, 0, r.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return data.Bytes(), nil
}

func (b *bucket) stat(ctx context.Context, key string) (item, error) {
	if b.dir != "" {
		return b.statFile(key)
	}
	a, err := b.blob.Attributes(ctx, key)
	if err != nil {
		return item{}, found(err)
	}
	return item{key: key, size: a.Size, time: a.ModTime}, nil
}

// remove deletes a key; it succeeds if the key does not exist.
func (b *bucket) remove(ctx context.Context, key string) error {
	b.wrote(key)
	err := found(b.blob.Delete(ctx, key))
	b.wrote(key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// list calls fn with the finished keys below a prefix, in no particular order.
func (b *bucket) list(ctx context.Context, prefix string, fn func(item) error) error {
	return b.listAll(ctx, prefix, func(i item) error {
		if isTemp(i.key) {
			return nil
		}
		return fn(i)
	})
}

// listAll also lists the temporary files of unfinished writes.
func (b *bucket) listAll(ctx context.Context, prefix string, fn func(item) error) error {
	if b.dir != "" {
		return b.walk(ctx, prefix, fn)
	}
	for l := b.blob.List(&blob.ListOptions{Prefix: prefix}); ; {
		o, err := l.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		if err := fn(item{key: o.Key, size: o.Size, time: o.ModTime}); err != nil {
			return err
		}
	}
}

// sign returns a URL that allows reading a key for a while; empty if the bucket cannot sign URLs.
func (b *bucket) sign(ctx context.Context, key string, valid time.Duration) (string, error) {
	at, err := b.blob.SignedURL(ctx, key, &blob.SignedURLOptions{Method: "GET", Expiry: valid})
	if gcerrors.Code(err) == gcerrors.Unimplemented {
		return "", nil
	}
	return at, err
}

// found maps a driver's error for a missing key to ErrNotFound.
func found(err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return ErrNotFound
	}
	return err
}

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

// errTaken says that a key is there already.
var errTaken = errors.New("is taken")

const octets = "application/octet-stream"

// bucket is where bytes lie. Four things are done by hand on a folder, since
// its driver does not do them as we need: see folder.go.
type bucket struct {
	blob *blob.Bucket
	name string
	dir  string // of a folder; empty for other buckets
	ways int    // requests at once
	// watch is told before and after each write; tests end the process there.
	watch func(key string)
}

// item is what a listing shows.
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

// folderOf is the folder that a path or a file URL names.
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

// withDefaults has the S3 client not check what we check ourselves, and not say
// in a log of its own where it cannot.
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

// redacted is a URL without what may be a secret.
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

// put writes a key, whatever was there. It is seen whole or not at all.
func (b *bucket) put(ctx context.Context, key string, data []byte) error {
	return b.write(ctx, key, nil, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// over writes a key for which nobody minds if it is seen half written, or if
// another writer's is lost.
func (b *bucket) over(ctx context.Context, key string, data []byte) error {
	if b.dir != "" {
		if done, err := b.overwrite(key, data); done || err != nil {
			return err
		}
	}
	return b.put(ctx, key, data)
}

// write has a key written by fn; if that fails the key is left as it was.
func (b *bucket) write(ctx context.Context, key string, o *blob.WriterOptions, fn func(io.Writer) error) error {
	if o == nil {
		o = &blob.WriterOptions{}
	}
	o.ContentType = octets // or it would be guessed
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.wrote(key)
	w, err := b.blob.NewWriter(ctx, key, o)
	if err != nil {
		return err
	}
	if err := fn(w); err != nil {
		cancel() // which has Close forget what was written
		_ = w.Close()
		return err
	}
	err = w.Close()
	b.wrote(key)
	return err
}

// create writes a key that must not be there yet: of several who try, one
// succeeds and all others get errTaken.
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
	// The size is of a moment before: a folder's file may have been replaced since.
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

// remove takes a key away; one that is not there is a success.
func (b *bucket) remove(ctx context.Context, key string) error {
	b.wrote(key)
	err := found(b.blob.Delete(ctx, key))
	b.wrote(key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// list calls fn with what lies below a prefix, in no order that counts.
func (b *bucket) list(ctx context.Context, prefix string, fn func(item) error) error {
	return b.listAll(ctx, prefix, func(i item) error {
		if isTemp(i.key) {
			return nil
		}
		return fn(i)
	})
}

// listAll lists what is not finished as well.
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

// sign is a URL that gets a key for a while; empty where buckets cannot sign.
func (b *bucket) sign(ctx context.Context, key string, valid time.Duration) (string, error) {
	at, err := b.blob.SignedURL(ctx, key, &blob.SignedURLOptions{Method: "GET", Expiry: valid})
	if gcerrors.Code(err) == gcerrors.Unimplemented {
		return "", nil
	}
	return at, err
}

// found puts our word for what every driver says in its own.
func found(err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return ErrNotFound
	}
	return err
}

package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev/broker/network"
)

// errTaken reports that a key exists already.
var errTaken = errors.New("is taken")

// errHidden reports that a key is listed and not shown.
var errHidden = errors.New("the store lists")

// bucket reads and writes keys.
type bucket struct {
	backend
	name string
	ways int // number of parallel requests
	// watch is called before and after each write; tests end the process there.
	watch func(key string)
}

// backend is a folder or a bucket of S3.
type backend interface {
	ping(ctx context.Context) error
	close()
	// write writes a key that may exist already. Readers see all of the value or none of it. If r
	// fails, the key is left as it was.
	write(ctx context.Context, key string, size int64, r io.Reader) error
	// over overwrites a key whose value may be seen half written, and whose concurrent writes may
	// be lost.
	over(ctx context.Context, key string, data []byte) error
	// create writes a key that must not exist yet. One of several concurrent writers succeeds; all
	// others get errTaken. It calls step after each change that it makes.
	create(ctx context.Context, key string, data []byte, step func()) error
	// open returns the value of a key, and its size.
	open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	stat(ctx context.Context, key string) (item, error)
	// touch sets a key's time to now. It returns errors.ErrUnsupported if the key must be written
	// again for that.
	touch(ctx context.Context, key string, now time.Time) error
	remove(ctx context.Context, key string) error
	// listAll calls fn with the keys below a prefix, in no particular order. The temporary files of
	// unfinished writes are among them.
	listAll(ctx context.Context, prefix string, fn func(item) error) error
	// sign returns a URL that allows reading a key for a while; empty if it cannot sign URLs.
	sign(ctx context.Context, key string, valid time.Duration) (string, error)
	// prune removes a folder and the folders in it if no file is left there.
	prune(prefix string) error
	// pruneOne removes a folder if it is empty.
	pruneOne(prefix string) error
}

// item is one entry of a listing.
type item struct {
	key  string
	size int64
	time time.Time
}

func openBucket(at string, over network.Network) (*bucket, error) {
	dir, ok, err := folderOf(at)
	switch {
	case err != nil:
		return nil, err
	case ok:
		f, err := openFolder(dir)
		return &bucket{backend: f, name: dir, ways: 4}, err
	}
	b, err := openS3(at, over)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(at), err)
	}
	return &bucket{backend: b, name: redacted(at), ways: s3Ways}, nil
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
		return "", false, fmt.Errorf("%s names no folder of this machine: write file:///the/folder", redacted(at))
	}
	return filepath.FromSlash(u.Path), true, nil
}

// redacted returns a URL without its user and its query, which may contain secrets.
func redacted(at string) string {
	before, _, _ := strings.Cut(at, "?")
	scheme, rest, _ := strings.Cut(before, "://")
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(host, "@"); i >= 0 {
		return strings.TrimSuffix(scheme+"://"+host[i+1:]+"/"+path, "/")
	}
	return before
}

func (b *bucket) wrote(key string) {
	if b.watch != nil {
		b.watch(key)
	}
}

// put writes a key that may exist already. Readers see all of the value or none of it.
func (b *bucket) put(ctx context.Context, key string, data []byte) error {
	return b.write(ctx, key, int64(len(data)), bytes.NewReader(data))
}

func (b *bucket) write(ctx context.Context, key string, size int64, r io.Reader) error {
	b.wrote(key)
	err := b.backend.write(ctx, key, size, r)
	b.wrote(key)
	return err
}

func (b *bucket) over(ctx context.Context, key string, data []byte) error {
	b.wrote(key)
	err := b.backend.over(ctx, key, data)
	b.wrote(key)
	return err
}

func (b *bucket) create(ctx context.Context, key string, data []byte) error {
	b.wrote(key)
	return b.backend.create(ctx, key, data, func() { b.wrote(key) })
}

func (b *bucket) get(ctx context.Context, key string) ([]byte, error) {
	r, size, err := b.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The size was read a moment before: a file in a folder may have been replaced since.
	data := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := data.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return data.Bytes(), nil
}

// find is get for a key that must not be taken for removed while it is only hidden.
func (b *bucket) find(ctx context.Context, key string) ([]byte, error) {
	data, err := b.get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		err = cmp.Or(b.gone(ctx, key), err)
	}
	return data, err
}

// gone returns an error if a key that was not found is listed. A bucket that fails over may hide a key for a
// time, and then nothing may be decided for ever.
func (b *bucket) gone(ctx context.Context, key string) error {
	if _, is := b.backend.(*s3); !is { // a folder hides nothing
		return nil
	}
	return b.list(ctx, key, func(i item) error {
		if i.key != key {
			return nil
		}
		return fmt.Errorf("%w %s and does not show it yet: try again later", errHidden, key)
	})
}

// remove deletes a key; it succeeds if the key does not exist.
func (b *bucket) remove(ctx context.Context, key string) error {
	b.wrote(key)
	err := b.backend.remove(ctx, key)
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

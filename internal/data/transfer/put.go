package transfer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"tidemill.dev/api"
)

// A request asks for at most so many objects, and for at most so many bytes of them: a bucket writes old objects
// again before the gateway answers.
const (
	pageObjects = 4000
	pageBytes   = 2 << 30
)

// object is a range of a file to be uploaded. Files that share it upload it once.
type object struct {
	api.Part
	file string
	at   int64
	of   []*pending
}

// pending counts the objects of a file that are not done.
type pending struct{ left atomic.Int32 }

// transfer is one call of Put or Get.
type transfer struct {
	*Client
	http  *http.Client
	tally tally
	moved tally
}

func (c *Client) carrying(count Count) *transfer {
	return &transfer{Client: c, http: c.noRedirects(), tally: tally{count: count}, moved: tally{count: c.Moved}}
}

// Put uploads the missing objects of files below a folder. A repeated Put continues, because
// uploaded objects are no longer missing.
func (c *Client) Put(ctx context.Context, dir string, files []api.File, count Count) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("read the folder: %w", err)
	}
	defer root.Close()
	p := &upload{transfer: c.carrying(count), root: root, crew: newCrew(ctx, c.ways())}
	return p.crew.wait(p.askPages(objectsOf(files)))
}

// objectsOf returns the objects of files, in their order.
func objectsOf(files []api.File) []*object {
	var all []*object
	known := make(map[string]*object, len(files))
	for i := range files {
		f, at := &files[i], int64(0)
		parts := partsOf(f)
		wait := &pending{}
		wait.left.Store(int32(len(parts)))
		for _, part := range parts {
			o := known[part.Digest]
			if o == nil {
				o = &object{Part: part, file: f.Path, at: at}
				known[part.Digest], all = o, append(all, o)
			}
			o.of = append(o.of, wait)
			at += part.Size
		}
	}
	return all
}

func partsOf(f *api.File) []api.Part {
	if len(f.Parts) > 0 {
		return f.Parts
	}
	return []api.Part{{Digest: f.Digest, Size: f.Size}}
}

// upload is one call of Put.
type upload struct {
	*transfer
	root *os.Root
	crew *workerPool
}

// askPages asks page by page which objects are missing, while the missing objects of earlier pages
// are uploaded.
func (p *upload) askPages(all []*object) error {
	for len(all) > 0 {
		n, bytes := 1, all[0].Size
		for ; n < min(len(all), pageObjects) && bytes+all[n].Size <= pageBytes; n++ {
			bytes += all[n].Size
		}
		if err := p.page(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (p *upload) page(all []*object) error {
	asked, lack := api.Missing{}, api.Missing{}
	of := make(map[string]*object, len(all))
	for _, o := range all {
		asked.Objects, of[o.Digest] = append(asked.Objects, o.Part), o
	}
	if err := p.askJSON(p.crew.ctx, "/objects/missing", asked, &lack); err != nil {
		return fmt.Errorf("list missing objects: %w", err)
	}
	var missing []*object
	for _, m := range lack.Objects {
		if o := of[m.Digest]; o != nil {
			missing = append(missing, o)
			delete(of, m.Digest)
		}
	}
	for _, o := range of {
		p.countStored(o)
	}
	p.startUploads(missing)
	return nil
}

// startUploads uploads the missing objects. Small objects are sent in batches, and each large
// object in its own request.
func (p *upload) startUploads(missing []*object) {
	var b batch
	for _, o := range missing {
		switch {
		case o.Size > smallObject:
			p.crew.start(func(ctx context.Context) error { return p.uploadAlone(ctx, o) })
			continue
		case b.isFull(o):
			full := b
			p.crew.start(func(ctx context.Context) error { return p.uploadBatch(ctx, full) })
			b = batch{}
		}
		b.add(o)
	}
	if len(b.objects) > 0 {
		p.crew.start(func(ctx context.Context) error { return p.uploadBatch(ctx, b) })
	}
}

// uploadAlone uploads an object in a request of its own.
func (p *upload) uploadAlone(ctx context.Context, o *object) error {
	query := url.Values{"digest": {o.Digest}, "size": {strconv.FormatInt(o.Size, 10)}}
	err := p.sendWithRetry(ctx, request{method: http.MethodPost, url: p.Base + "/object?" + query.Encode(), media: "application/octet-stream", length: o.Size,
		body: func() io.Reader { return &objectReader{root: p.root, o: o} }})
	if err != nil {
		return fmt.Errorf("put %s: %w", o.file, err)
	}
	p.countSent(o)
	return nil
}

// countSent counts an object that was uploaded.
func (p *upload) countSent(o *object) {
	p.moved.add(p.countStored(o), o.Size)
}

// countStored counts an object that is in the store. It returns the number of files that this
// completes.
func (p *upload) countStored(o *object) (files int) {
	for _, f := range o.of {
		if f.left.Add(-1) == 0 {
			files++
		}
	}
	p.tally.add(files, o.Size*int64(len(o.of)))
	return files
}

// draft is an incomplete file under a temporary name.
type draft struct {
	file *api.File
	at   string // path of the complete file
	f    *os.File
	left atomic.Int32 // number of missing parts
}

// draftName is the prefix of drafts' names. Scan skips drafts that a killed process has left.
const draftName = ".tidemill-get-"

func newDraft(f *api.File, at string, c *cache) (*draft, error) {
	folder, mode := filepath.Dir(at), os.FileMode(0o666)
	if f.Executable {
		mode = 0o777
	}
	if c != nil {
		folder, mode = c.drafts(), 0o600
	}
	temp, err := create(folder, mode)
	if err != nil {
		return nil, err
	}
	d := &draft{file: f, at: at, f: temp}
	d.left.Store(int32(len(partsOf(f))))
	return d, nil
}

// create creates a file with a new name; the umask reduces its mode.
func create(folder string, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(filepath.Join(folder, draftName+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// writeObject writes an object at its offset, and checks that its bytes have its digest.
func (d *draft) writeObject(r io.Reader, p api.Part, at int64) error {
	h := sha256.New()
	to := &errorRecorder{w: io.NewOffsetWriter(d.f, at)}
	n, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(r, p.Size+1))
	switch {
	case to.err != nil:
		return asLocalFault(to.err)
	case err != nil:
		return err // also that of an answer that was cut off
	case n != p.Size || sum(h) != p.Digest:
		return asLocalFault(fmt.Errorf("object %s came with other bytes than its digest names: it is corrupt in the store, or on the way", p.Digest))
	}
	return nil
}

// errorRecorder remembers a write error, which a retry cannot repair.
type errorRecorder struct {
	w   io.Writer
	err error
}

func (f *errorRecorder) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		f.err = err
	}
	return n, err
}

// finish puts the complete file at its place.
func (d *draft) finish(c *cache) error {
	if c != nil {
		return errors.Join(d.f.Close(), c.addFile(d.file, d.f.Name(), d.at))
	}
	if err := d.f.Close(); err != nil {
		return err
	}
	return os.Rename(d.f.Name(), d.at)
}

func (d *draft) drop() {
	_ = d.f.Close() // it may be closed already
	_ = os.Remove(d.f.Name())
}

const (
	smallObject  = 1 << 20 // size above which an object is uploaded alone
	batchBytes   = 8 << 20
	batchObjects = 1000
)

// batch is a set of small objects that are uploaded in one request.
type batch struct {
	objects []*object
	length  int64 // length of the body
}

func (b *batch) isFull(next *object) bool {
	return len(b.objects) == batchObjects || len(b.objects) > 0 && b.length+api.ObjectHead+next.Size > batchBytes
}

func (b *batch) add(o *object) {
	b.objects = append(b.objects, o)
	b.length += api.ObjectHead + o.Size
}

func (p *upload) uploadBatch(ctx context.Context, b batch) error {
	err := p.sendWithRetry(ctx, request{method: http.MethodPost, url: p.Base + "/objects", media: api.ObjectsType, length: b.length,
		body: func() io.Reader { return &batchReader{root: p.root, left: b.objects} }})
	if err != nil {
		return fmt.Errorf("put %d objects, the first of %s: %w", len(b.objects), b.objects[0].file, err)
	}
	for _, o := range b.objects {
		p.countSent(o)
	}
	return nil
}

// batchReader is the body of a batch. It opens one file after the other.
type batchReader struct {
	root *os.Root
	left []*object
	head []byte // rest of the next object's head
	now  *objectReader
}

func (b *batchReader) Read(to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = b.some(to[n:])
		n += k
	}
	return n, err
}

func (b *batchReader) some(to []byte) (int, error) {
	switch {
	case len(b.head) > 0:
		n := copy(to, b.head)
		b.head = b.head[n:]
		return n, nil
	case b.now != nil:
		n, err := b.now.Read(to)
		if errors.Is(err, io.EOF) {
			b.now, err = nil, nil
		}
		return n, err
	case len(b.left) == 0:
		return 0, io.EOF
	}
	o := b.left[0]
	digest, err := hex.DecodeString(o.Digest)
	if err != nil {
		return 0, asLocalFault(err)
	}
	b.head = binary.BigEndian.AppendUint64(digest, uint64(o.Size))
	b.now, b.left = &objectReader{root: b.root, o: o}, b.left[1:]
	return 0, nil
}

func (b *batchReader) Close() error {
	if b.now != nil {
		return b.now.Close()
	}
	return nil
}

// objectReader reads the bytes of an object from the file. It fails if they have changed since the
// scan.
type objectReader struct {
	root *os.Root
	o    *object
	f    *os.File
	n    int64
	sum  hash.Hash
}

func (r *objectReader) Read(to []byte) (int, error) {
	if r.n == r.o.Size && r.sum != nil {
		return 0, io.EOF
	}
	if err := r.open(); err != nil {
		return 0, asLocalFault(err)
	}
	n, err := r.f.ReadAt(to[:min(int64(len(to)), r.o.Size-r.n)], r.o.at+r.n)
	r.n += int64(n)
	r.sum.Write(to[:n])
	switch {
	case r.n == r.o.Size && sum(r.sum) != r.o.Digest, err != nil && errors.Is(err, io.EOF) && r.n < r.o.Size:
		return 0, asLocalFault(errors.Join(fmt.Errorf("%s has changed since it was read: try again when no process writes to it", r.o.file), r.Close()))
	case r.n == r.o.Size:
		return n, asLocalFault(r.Close())
	case err != nil:
		return n, asLocalFault(err)
	}
	return n, nil
}

func (r *objectReader) open() (err error) {
	if r.f == nil {
		r.sum = sha256.New()
		r.f, _, err = openFile(r.root, r.o.file)
	}
	return err
}

// Close closes the file.
func (r *objectReader) Close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}

package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"

	"tidemill.dev/api"
)

const (
	pageObjects = 4000    // asked for at once
	pageBytes   = 1 << 30 // so that what was signed is not old when its turn comes
)

// object is a stretch of a file that is to be put. Files that have it in common
// put it once.
type object struct {
	api.Part
	file string
	at   int64
	of   []*pending
}

// pending is a file whose objects are not all done.
type pending struct{ left atomic.Int32 }

// carrying is one Put or Get.
type carrying struct {
	*Client
	http  *http.Client
	tally tally
	moved tally
}

func (c *Client) carrying(count Count) *carrying {
	return &carrying{Client: c, http: c.staying(), tally: tally{count: count}, moved: tally{count: c.Moved}}
}

// Put uploads the objects of files below a folder that are missing. Begun again
// it goes on: what was put is there.
func (c *Client) Put(ctx context.Context, dir string, files []api.File, count Count) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("read the folder: %w", err)
	}
	defer root.Close()
	p := &putting{carrying: c.carrying(count), root: root, crew: newCrew(ctx, c.ways())}
	return p.crew.wait(p.pages(objectsOf(files)))
}

// objectsOf are the objects of files, in their order.
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

// putting is one Put.
type putting struct {
	*carrying
	root *os.Root
	crew *crew
}

// pages asks for a page after the other what is missing, while what was missing
// of those before is under way.
func (p *putting) pages(all []*object) error {
	for len(all) > 0 {
		n, bytes := 0, int64(0)
		for n < min(len(all), pageObjects) && (n == 0 || bytes+all[n].Size <= pageBytes) {
			bytes += all[n].Size
			n++
		}
		if err := p.page(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (p *putting) page(all []*object) error {
	asked, lack := api.Missing{}, api.Missing{}
	of := make(map[string]*object, len(all))
	for _, o := range all {
		asked.Objects, of[o.Digest] = append(asked.Objects, o.Part), o
	}
	if err := p.askJSON(p.crew.ctx, "/objects/missing", asked, &lack); err != nil {
		return fmt.Errorf("ask what is missing: %w", err)
	}
	var missing []*object
	for _, m := range lack.Objects {
		if o := of[m.Digest]; o != nil {
			missing = append(missing, o)
			delete(of, m.Digest)
		}
	}
	for _, o := range of {
		p.done(o)
	}
	p.start(missing, lack.Puts)
	return nil
}

// start has the missing put: small ones together, others alone.
func (p *putting) start(missing []*object, direct map[string]string) {
	var b batch
	for _, o := range missing {
		to := direct[o.Digest]
		switch {
		case to != "" || o.Size > smallObject:
			p.crew.do(func(ctx context.Context) error { return p.alone(ctx, o, to) })
			continue
		case b.isFull(o):
			full := b
			p.crew.do(func(ctx context.Context) error { return p.together(ctx, full) })
			b = batch{}
		}
		b.add(o)
	}
	if len(b.objects) > 0 {
		p.crew.do(func(ctx context.Context) error { return p.together(ctx, b) })
	}
}

// alone streams an object to where it may be put directly, or to the gateway.
// What was signed a while ago may count no more; the gateway takes it then.
func (p *putting) alone(ctx context.Context, o *object, direct string) error {
	if direct != "" {
		err := p.put(ctx, o, ask{method: http.MethodPut, url: direct, foreign: true})
		var r *refusal
		if err == nil || !errors.As(err, &r) {
			return err
		}
	}
	query := url.Values{"digest": {o.Digest}, "size": {strconv.FormatInt(o.Size, 10)}}
	return p.put(ctx, o, ask{method: http.MethodPost, url: p.Base + "/object?" + query.Encode(), media: "application/octet-stream"})
}

func (p *putting) put(ctx context.Context, o *object, a ask) error {
	a.length = o.Size
	a.body = func() io.Reader { return &objectReader{root: p.root, o: o} }
	if err := p.do(ctx, a); err != nil {
		return fmt.Errorf("put %s: %w", o.file, err)
	}
	p.sent(o)
	return nil
}

// sent counts an object that went over the wire.
func (p *putting) sent(o *object) {
	p.moved.add(p.done(o), o.Size)
}

// done counts an object that is where it belongs, and the files that are whole
// with it.
func (p *putting) done(o *object) (files int) {
	for _, f := range o.of {
		if f.left.Add(-1) == 0 {
			files++
		}
	}
	p.tally.add(files, o.Size*int64(len(o.of)))
	return files
}

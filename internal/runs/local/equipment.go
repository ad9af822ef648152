package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/runs/agent"
)

// cookieName is the variable by which our processes are found.
const cookieName = "TIDEMILL_COOKIE"

// gear is what an attempt was given, to be given back.
type gear struct {
	l     *Launcher
	deal  *deal
	index int  // of the worker
	none  bool // a parameter server has no cards
	cards []card
}

// equip gives an attempt what the machine has for it. What can be wrong is
// looked at before anything is waited for.
func (g *gear) equip(ctx context.Context, p tidemill.Plan) (e agent.Equipment, err error) {
	e.Env, err = secrets(g.l.o.Secrets, p.Secrets)
	if err != nil {
		return e, err
	}
	e.Env = append(e.Env, cookieName+"="+g.l.cookie)
	if p.Image == "" {
		e.Image = g.l.folders.of(p.Dir)
	} else if err := g.contain(ctx, &e); err != nil {
		return e, err
	}
	if !g.none {
		if g.cards, err = g.deal.take(ctx, g.index, p.GPUs); err != nil {
			return e, err
		}
	}
	for _, c := range g.cards {
		e.GPUs, e.Card, e.Driver = append(e.GPUs, c.index), c.product, c.driver
	}
	if p.Image == "" {
		e.Env = append(e.Env, g.l.cards.visible(g.cards)...)
	}
	return e, nil
}

func (g *gear) contain(ctx context.Context, e *agent.Equipment) (err error) {
	if e.Engine, err = g.l.engine.find(ctx); err != nil {
		return err
	}
	e.Labels = []string{cookieLabel + "=" + g.l.cookie}
	g.l.guard.engine(e.Engine)
	return (legacy{Cookie: g.l.cookie, Engine: e.Engine}).leave(g.l.o.Dir)
}

const maxSecret = 64 << 10

// secrets reads those that a run names, each as a variable. A file beneath the
// folder is one, without the newline at its end.
func secrets(dir string, named map[string]string) (env []string, err error) {
	if len(named) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the secrets of the run: %w: make the folder, and in it a file NAME/KEY for each", err)
	}
	defer root.Close()
	for variable, ref := range named {
		text, err := secret(root, ref)
		if err != nil {
			return nil, fmt.Errorf("secret %s for %s: %w: write it into %s", ref, variable, err, filepath.Join(dir, filepath.FromSlash(ref)))
		}
		env = append(env, variable+"="+text)
	}
	return env, nil
}

func secret(root *os.Root, ref string) (string, error) {
	f, err := root.Open(filepath.FromSlash(ref))
	if err != nil {
		return "", inner(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("it is longer than %d bytes", maxSecret)
	}
	return strings.TrimRight(string(text), "\r\n"), inner(err)
}

// inner is an error without the path, which is told elsewhere.
func inner(err error) error {
	if p := new(os.PathError); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// cookieLabel is the label by which our containers are found.
const cookieLabel = "tidemill.cookie"

const askEngine = 20 * time.Second

// engine is docker or podman, as soon as one was asked for and answered.
type engine struct {
	mu   sync.Mutex
	path string
}

// find looks for one that answers: a docker without its daemon is there too, and
// is of no use. One that does not answer may do so later.
func (e *engine) find(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.path != "" {
		return e.path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askEngine)
	defer cancel()
	var silent []string
	for _, name := range []string{"docker", "podman"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err = quietly(ctx, path, "version"); err == nil {
			e.path = path
			return path, nil
		}
		silent = append(silent, fmt.Sprintf("%s is here and does not answer (%s version: %v)", name, name, err))
	}
	if len(silent) == 0 {
		return "", fmt.Errorf("an image needs docker or podman, and neither is here: install one, or give the recipe run.dir for run.image")
	}
	return "", fmt.Errorf("an image needs docker or podman: %s; start it (%w)", strings.Join(silent, ", and "), agent.ErrPassing)
}

// endContainers ends the containers that bear a cookie.
func endContainers(ctx context.Context, engine, cookie string) {
	if engine == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEngine)
	defer cancel()
	out, err := exec.CommandContext(ctx, engine, "ps", "--all", "--quiet", "--filter", "label="+cookieLabel+"="+cookie).Output()
	ids := strings.Fields(string(out))
	if err != nil || len(ids) == 0 {
		return
	}
	_ = quietly(ctx, engine, append([]string{"kill"}, ids...)...) // one that has ended is an error
	_ = quietly(ctx, engine, append([]string{"rm", "--force"}, ids...)...)
}

// card is a GPU.
type card struct {
	index           int
	product, driver string
}

// cards are the machine's GPUs, handed out by their indexes, in the order in
// which they are asked for.
type cards struct {
	all []card

	mu    sync.Mutex
	free  []card
	queue []*wish
}

// wish waits for cards.
type wish struct {
	n   int
	got chan []card
}

func newCards(all []card) *cards { return &cards{all: all, free: slices.Clone(all)} }

// lookForCards asks nvidia-smi; a machine without it has none.
func lookForCards(ctx context.Context) (*cards, error) {
	found, err := agent.LookForCards(ctx)
	return newCards(cardsOf(found)), err
}

func cardsOf(found []agent.Card) (all []card) {
	for _, c := range found {
		all = append(all, card{c.Index, c.Product, c.Driver})
	}
	return all
}

// take waits until so many are free. Who came first is served first, so that
// one who wants many is not passed by for ever.
func (c *cards) take(ctx context.Context, n int) ([]card, error) {
	if n == 0 {
		return nil, nil
	}
	if n > len(c.all) {
		return nil, fmt.Errorf("the run wants %d GPUs and this machine has %d: lower run.gpus, or run it where there are more", n, len(c.all))
	}
	w := &wish{n, make(chan []card, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, w)
	c.serve()
	c.mu.Unlock()
	select {
	case got := <-w.got:
		return got, nil
	case <-ctx.Done():
		c.leave(w)
		return nil, fmt.Errorf("wait for %d GPUs: %w", n, context.Cause(ctx))
	}
}

// leave gives up a wish, and what came for it at the last moment.
func (c *cards) leave(w *wish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = slices.DeleteFunc(c.queue, func(o *wish) bool { return o == w })
	select {
	case got := <-w.got:
		c.free = append(c.free, got...)
	default:
	}
	c.serve()
}

// give takes cards back.
func (c *cards) give(back []card) {
	if len(back) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = append(c.free, back...)
	c.serve()
}

// serve serves those who wait, the first first.
func (c *cards) serve() {
	slices.SortFunc(c.free, func(a, b card) int { return a.index - b.index })
	for len(c.queue) > 0 && c.queue[0].n <= len(c.free) {
		w := c.queue[0]
		c.queue = c.queue[1:]
		w.got <- slices.Clone(c.free[:w.n])
		c.free = slices.Delete(c.free, 0, w.n)
	}
}

// visible are the variables that show a command its cards and no others. The
// order is set too: by itself CUDA puts the fastest first, and nvidia-smi does not.
func (c *cards) visible(given []card) []string {
	if len(c.all) == 0 {
		return nil
	}
	texts := make([]string, len(given))
	for i, g := range given {
		texts[i] = strconv.Itoa(g.index)
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(texts, ",")}
}

const (
	digestFiles = 20_000
	digestBytes = 64 << 20
	digestFresh = time.Second // several runs begin at once
)

// folderDigests tells versions of recipes' folders apart, as an image's digest
// does of images.
type folderDigests struct {
	mu  sync.Mutex
	all map[string]*folderDigest
}

// folderDigest is one folder's. It remembers its files by their size and time,
// so that to look again is cheap.
type folderDigest struct {
	mu    sync.Mutex
	at    time.Time
	value string
	files map[string]fileDigest
}

type fileDigest struct {
	size int64
	time time.Time
	sum  string
}

// of is the digest of a folder; empty if it cannot be read, which is told by
// whoever runs something in it.
func (f *folderDigests) of(dir string) string {
	f.mu.Lock()
	if f.all == nil {
		f.all = map[string]*folderDigest{}
	}
	one := f.all[dir]
	if one == nil {
		one = &folderDigest{}
		f.all[dir] = one
	}
	f.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Since(one.at) > digestFresh {
		one.value = one.look(dir)
		one.at = time.Now()
	}
	return one.value
}

var errEnough = errors.New("enough")

// look goes through the folder. What is beyond the bounds counts by its size and
// time alone, or not at all: to be cheap matters more for a folder so large.
func (d *folderDigest) look(dir string) string {
	h, now := sha256.New(), map[string]fileDigest{}
	files, left := 0, int64(digestBytes)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && name == dir:
			return err
		case err != nil:
			return nil // it has gone meanwhile
		case e.IsDir():
			return skip(name == dir, e.Name())
		}
		if files++; files > digestFiles {
			return errEnough
		}
		d.add(h, now, dir, name, &left)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return ""
	}
	d.files = now
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// skip passes over what others make and keep in a folder of programs, our own
// data among it.
func skip(top bool, name string) error {
	if !top && (strings.HasPrefix(name, ".") || name == "__pycache__" || name == "node_modules" || name == "venv") {
		return fs.SkipDir
	}
	return nil
}

func (d *folderDigest) add(h hash.Hash, now map[string]fileDigest, dir, name string, left *int64) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	is := fileDigest{size: info.Size(), time: info.ModTime()}
	if was, ok := d.files[name]; ok && was.size == is.size && was.time.Equal(is.time) {
		is.sum = was.sum
		*left -= is.size
	} else if *left -= is.size; *left >= 0 {
		is.sum = sumOf(name)
	}
	if is.sum == "" {
		is.sum = is.time.UTC().Format(time.RFC3339Nano)
	}
	now[name] = is
	relative := strings.TrimPrefix(name, dir)
	fmt.Fprintf(h, "%q %d %t %s\n", filepath.ToSlash(relative), is.size, info.Mode()&0o111 != 0, is.sum)
}

// sumOf is a file's digest; empty if it cannot be read.
func sumOf(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

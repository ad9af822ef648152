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

// cookieName is the environment variable that marks our processes.
const cookieName = "TIDEMILL_COOKIE"

// gear holds the cards of one worker or server of an attempt.
type gear struct {
	l     *Launcher
	deal  *cardShares
	index int  // index of the worker
	none  bool // a parameter server has no cards
	cards []card
}

// equip collects the secrets, container engine and GPUs of an attempt. It waits for GPUs last,
// after all checks that may fail.
func (g *gear) equip(ctx context.Context, p tidemill.Plan) (e agent.Equipment, err error) {
	e.Env, err = secrets(g.l.o.Secrets, p.Secrets)
	if err != nil {
		return e, err
	}
	e.Env = append(e.Env, cookieName+"="+g.l.cookie)
	if p.Image == "" {
		e.Image = g.l.folders.digestOf(p.Dir)
	} else if err := g.contain(ctx, &e); err != nil {
		return e, err
	}
	if !g.none {
		if g.cards, err = g.deal.takeShare(ctx, g.index, p.GPUs); err != nil {
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
	return (launcherRecord{Cookie: g.l.cookie, Engine: e.Engine}).leave(g.l.o.Dir)
}

const maxSecret = 64 << 10

// secrets reads the named secrets and returns each as an environment variable. A secret is a file
// in the folder, without the newline at the file's end.
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
		return "", withoutPath(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("it is longer than %d bytes", maxSecret)
	}
	return strings.TrimRight(string(text), "\r\n"), withoutPath(err)
}

// withoutPath removes the path from an error, because the caller adds it.
func withoutPath(err error) error {
	if p := new(os.PathError); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// cookieLabel is the label that marks our containers.
const cookieLabel = "tidemill.cookie"

const askEngine = 20 * time.Second

// engine is docker or podman. The program is looked up at the first use.
type engine struct {
	mu   sync.Mutex
	path string
}

// find returns an engine that answers, because docker may be installed without a running daemon. If
// no engine answers, the next call tries again.
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
		if err = runQuiet(ctx, path, "version"); err == nil {
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

// endContainers ends the containers with a cookie.
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
	_ = runQuiet(ctx, engine, append([]string{"kill"}, ids...)...) // fails if a container has ended
	_ = runQuiet(ctx, engine, append([]string{"rm", "--force"}, ids...)...)
}

// card is a GPU.
type card struct {
	index           int
	product, driver string
}

// cards are the machine's GPUs. Requests for cards are served in their order.
type cards struct {
	mu    sync.Mutex
	all   []card
	fault error // reason why the cards are not known; nil if they are
	free  []card
	queue []*cardRequest
}

// cardRequest is a waiting request for cards.
type cardRequest struct {
	n   int
	got chan []card
}

func newCards(all []card) *cards { return &cards{all: all, free: slices.Clone(all)} }

// lookForCards lists the cards with nvidia-smi; a machine without nvidia-smi has no cards.
func lookForCards(ctx context.Context) *cards {
	found, err := agent.LookForCards(ctx)
	c := newCards(cardsOf(found))
	c.fault = err
	return c
}

// lookAgain lists the cards if that has failed before: their driver may answer by now.
func (c *cards) lookAgain(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		return nil
	}
	found, err := agent.LookForCards(ctx)
	if c.fault = err; err != nil {
		return fmt.Errorf("%w (%w)", err, agent.ErrPassing)
	}
	c.all = cardsOf(found)
	c.free = slices.Clone(c.all)
	return nil
}

func (c *cards) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

func cardsOf(found []agent.Card) (all []card) {
	for _, c := range found {
		all = append(all, card{c.Index, c.Product, c.Driver})
	}
	return all
}

// acquire waits until n cards are free. Requests are served in their order, so that a request for many
// cards does not wait for ever.
// waits is called with the reason if the request has to wait, and with an empty text after that.
func (c *cards) acquire(ctx context.Context, n int, waits func(why string)) ([]card, error) {
	if n == 0 {
		return nil, nil
	}
	if err := c.lookAgain(ctx); err != nil {
		return nil, err
	}
	all := c.count()
	if n > all {
		return nil, fmt.Errorf("the run wants %d GPUs and this machine has %d: lower run.gpus, or run it where there are more", n, all)
	}
	w := &cardRequest{n, make(chan []card, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, w)
	c.serve()
	free := len(c.free)
	c.mu.Unlock()
	select {
	case got := <-w.got:
		return got, nil
	default:
		waits(fmt.Sprintf("it waits for %d of this machine's %d GPUs, of which %d are free", n, all, free))
	}
	select {
	case got := <-w.got:
		waits("")
		return got, nil
	case <-ctx.Done():
		c.leave(w)
		return nil, fmt.Errorf("wait for %d GPUs: %w", n, context.Cause(ctx))
	}
}

// leave removes a request and gives back cards that the request has just received.
func (c *cards) leave(w *cardRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = slices.DeleteFunc(c.queue, func(o *cardRequest) bool { return o == w })
	select {
	case got := <-w.got:
		c.free = append(c.free, got...)
	default:
	}
	c.serve()
}

// giveBack makes cards free again.
func (c *cards) giveBack(back []card) {
	if len(back) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = append(c.free, back...)
	c.serve()
}

// serve gives free cards to the waiting requests, in their order.
func (c *cards) serve() {
	slices.SortFunc(c.free, func(a, b card) int { return a.index - b.index })
	for len(c.queue) > 0 && c.queue[0].n <= len(c.free) {
		w := c.queue[0]
		c.queue = c.queue[1:]
		w.got <- slices.Clone(c.free[:w.n])
		c.free = slices.Delete(c.free, 0, w.n)
	}
}

// visible returns the variables that show a command only its own cards. One of them sets the order
// of the cards, because CUDA sorts cards by speed by default, and nvidia-smi does not.
func (c *cards) visible(given []card) []string {
	if c.count() == 0 {
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
	digestFresh = time.Second // runs that begin together use one digest
)

// folderDigests computes the digests of recipes' folders. Such a digest identifies a version of the
// folder, like an image's digest.
type folderDigests struct {
	mu  sync.Mutex
	all map[string]*folderDigest
}

// folderDigest is the digest of one folder. It stores each file's sum, and computes the sum again
// only if the file's size or time has changed.
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

// digestOf returns the digest of a folder; empty if the folder cannot be read. The start of the command
// reports that error.
func (f *folderDigests) digestOf(dir string) string {
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
		one.value = one.compute(dir)
		one.at = time.Now()
	}
	return one.value
}

var errEnough = errors.New("enough")

// compute computes the digest of the folder. The work is bounded for large folders: beyond
// digestBytes, only the size and time of a file count; files beyond digestFiles do not count.
func (d *folderDigest) compute(dir string) string {
	h, now := sha256.New(), map[string]fileDigest{}
	files, left := 0, int64(digestBytes)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && name == dir:
			return err
		case err != nil:
			return nil // the file was deleted during the walk
		case e.IsDir():
			return skipFolder(name == dir, e.Name())
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

// skipFolder skips our data folder, and folders that tools create next to programs.
func skipFolder(top bool, name string) error {
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

// sumOf returns the digest of a file; empty if the file cannot be read.
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

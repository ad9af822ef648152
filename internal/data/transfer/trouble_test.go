package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
)

// many returns a folder of small files.
func many(t testing.TB, n int) string {
	dir := t.TempDir()
	for i := range n {
		leave(t, dir, fmt.Sprintf("%02d/%d.txt", i%20, i), fmt.Appendf(nil, "file %d", i), 0o644)
	}
	return dir
}

// Failures are retried: each kind of failure once, during transfers.
func TestWhatPassesIsTriedAgain(t *testing.T) {
	t.Parallel()
	d, from, to := newDepot(t), many(t, 50), t.TempDir()
	leave(t, from, "large", noise(2<<20), 0o644)
	var mu sync.Mutex
	broken := map[string]int{}
	breaks := []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, // as S3 says it
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			hangUp(w)
		},
		func(w http.ResponseWriter, r *http.Request) { // half of an answer
			if strings.HasPrefix(r.URL.Path, "/base/object") && r.Method == http.MethodPost && r.URL.Path != "/base/objects/missing" {
				w.WriteHeader(http.StatusBadGateway)
			}
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "{")
		},
		func(w http.ResponseWriter, _ *http.Request) { hangUp(w) },
	}
	d.trouble = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		what := r.Method + r.URL.Path
		n := broken[what]
		broken[what]++
		mu.Unlock()
		if n < len(breaks) {
			breaks[n](w, r)
		}
		return n < len(breaks)
	}
	c, again := d.client(), 0
	c.Again = func(error) { mu.Lock(); again++; mu.Unlock() }
	all := scanned(t, from)
	if err := c.Put(t.Context(), from, all, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), to, all, nil); err != nil {
		t.Fatal(err)
	}
	same(t, from, to, all)
	if len(broken) != 4 || again < 4*len(breaks)-2 { // net/http itself retries a GET on a reused connection
		t.Errorf("%v were broken, and %d tries made again", broken, again)
	}
}

func hangUp(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.Close()
	}
}

// A gateway's refusal is returned at once, with its own text.
func TestARefusalStays(t *testing.T) {
	t.Parallel()
	d, from := newDepot(t), many(t, 3)
	all := scanned(t, from)
	err := d.client().Get(t.Context(), t.TempDir(), all, nil)
	var p *api.Problem
	if !errors.As(err, &p) || p.Detail != "it is not there" || p.Status != http.StatusNotFound || !strings.Contains(err.Error(), "get 0") {
		t.Errorf("%v", err)
	}
	d.mu.Lock() // handlers of cancelled requests may still run
	d.trouble = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout")
		return true
	}
	d.mu.Unlock()
	if err := d.client().Put(t.Context(), from, all, nil); err == nil || !strings.Contains(err.Error(), `"short and stout"`) {
		t.Errorf("%v", err)
	}
	if n := d.count("POST /base/objects/missing"); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// A bucket may have to write all objects of a question again. So the bytes of a question are limited: they can be written
// before the client gives the request up.
func TestAQuestionIsShort(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	var all []api.File
	for i := range 100 {
		digest := fmt.Sprintf("%064x", i)
		d.objects[digest] = nil
		all = append(all, api.File{Path: digest, Digest: digest, Size: api.PartSize})
	}
	if err := d.client().Put(t.Context(), t.TempDir(), all, nil); err != nil {
		t.Fatal(err)
	}
	if n := d.count("POST /base/objects/missing"); n != 4 || d.asked != len(all) {
		t.Errorf("%d requests asked for %d objects", n, d.asked)
	}
}

// A full disk is said at once, but it may have room again.
func TestAFullDiskPasses(t *testing.T) {
	t.Parallel()
	d, from := newDepot(t), many(t, 3)
	for status, passes := range map[int]bool{http.StatusInsufficientStorage: true, http.StatusBadRequest: false} {
		d.mu.Lock()
		d.trouble = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true }
		d.mu.Unlock()
		asked := d.count("POST /base/objects/missing")
		err := d.client().Put(t.Context(), from, scanned(t, from), nil)
		if n := d.count("POST /base/objects/missing") - asked; err == nil || Passes(t.Context(), err) != passes || n != 1 {
			t.Errorf("%d: %v, asked %d times", status, err, n)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if Passes(ended, &refusal{status: http.StatusInsufficientStorage}) {
		t.Error("it passes for a caller that has left")
	}
}

func TestAFileThatChangesIsNamed(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{"other": []byte("FILE 1"), "shorter": []byte("f"), "gone": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, from := newDepot(t), many(t, 5)
			all := scanned(t, from)
			if data == nil {
				if err := os.Remove(filepath.Join(from, "01/1.txt")); err != nil {
					t.Fatal(err)
				}
			} else {
				leave(t, from, "01/1.txt", data, 0o644)
			}
			err := d.client().Put(t.Context(), from, all, nil)
			if err == nil || !strings.Contains(err.Error(), "01/1.txt") {
				t.Errorf("%v", err)
			}
			if n := d.count("POST /base/objects"); n > 1 {
				t.Errorf("tried %d times", n)
			}
		})
	}
}

// Wrong bytes from a store, or wrong paths in a tree, do no harm.
func TestWhatIsWrongIsNotLaidDown(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{false, true} {
		d, from, dir := newDepot(t), many(t, 1), t.TempDir()
		c := d.client()
		if cached {
			c.Cache = t.TempDir()
		}
		all := scanned(t, from)
		to := filepath.Join(dir, "to")
		for _, text := range []string{"FILE 0", "FI", ""} {
			d.objects[all[0].Digest] = []byte(text)
			ctx, end := context.WithCancel(t.Context())
			c.Again = func(err error) { t.Errorf("%q is asked for again: %v", text, err); end() }
			if err := c.Get(ctx, to, all, nil); err == nil || !strings.Contains(err.Error(), "corrupt") {
				t.Errorf("%q: %v", text, err)
			}
			end()
		}
		for _, path := range []string{"../out", "/out", "a/../../out", ".", ""} {
			if err := c.Get(t.Context(), to, []api.File{{Path: path, Digest: all[0].Digest}}, nil); err == nil || !strings.Contains(err.Error(), "path is not below the folder") {
				t.Errorf("%q: %v", path, err)
			}
		}
		same(t, from, dir, nil)
		if cached {
			same(t, from, c.Cache, nil)
		}
	}
}

func TestGetKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	d, from, to := newDepot(t), many(t, 10), t.TempDir()
	c, all := d.client(), scanned(t, from)
	if err := c.Put(t.Context(), from, all, nil); err != nil {
		t.Fatal(err)
	}
	leave(t, to, all[0].Path, []byte("FILE 0"), 0o644)
	if err := c.Get(t.Context(), to, all, nil); err == nil || !strings.Contains(err.Error(), "is there and is not that file") {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(filepath.Join(to, all[0].Path)); string(b) != "FILE 0" || err != nil {
		t.Errorf("%s, %v", b, err)
	}
	c.Replace = true
	all[1].Executable = true
	data, err := os.ReadFile(filepath.Join(from, all[1].Path))
	if err != nil {
		t.Fatal(err)
	}
	leave(t, to, all[1].Path, data, 0o644)
	if err := c.Get(t.Context(), to, all, nil); err != nil {
		t.Fatal(err)
	}
	same(t, from, to, all)
	d = d.twin(t)
	if err := d.client().Get(t.Context(), to, all, nil); err != nil || d.count("GET /base/object") > 0 {
		t.Errorf("%v, and %d were got again", err, d.count("GET /base/object"))
	}
}

// An interrupted Get leaves only complete files, and a second Get continues.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	d, from, to := newDepot(t), many(t, 100), t.TempDir()
	c, all := d.client(), scanned(t, from)
	if err := c.Put(t.Context(), from, all, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	err := c.Get(ctx, to, all, func(files int, _ int64) {
		if n += files; n == 30 {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	there := scanned(t, to)
	if len(there) < 30 || len(there) == 100 {
		t.Errorf("%d files are there", len(there))
	}
	for _, e := range mustReadDir(t, to) {
		if strings.HasPrefix(e.Name(), draftName) {
			t.Errorf("%s is left", e.Name())
		}
	}
	d = d.twin(t)
	if err := d.client().Get(t.Context(), to, all, nil); err != nil {
		t.Fatal(err)
	}
	same(t, from, to, all)
	if got := d.count("GET /base/object"); got != 100-len(there) {
		t.Errorf("%d were got again", got-100+len(there))
	}
}

func mustReadDir(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A request to a server that never answers is cancelled after a minute. It is repeated until the
// time is up.
func TestASilentServer(t *testing.T) {
	from := many(t, 1)
	synctest.Test(t, func(t *testing.T) {
		c := Client{Base: "http://silent.example", HTTP: &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		}}}}
		began := time.Now()
		err := c.askMissing(t.Context(), from)
		if took := time.Since(began); !errors.Is(err, errStalled) || took < 2*stallAfter || took > tryFor+2*stallAfter {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func (c *Client) askMissing(ctx context.Context, dir string) error {
	all, err := Scan(ctx, dir, nil)
	if err != nil {
		return err
	}
	return c.Put(ctx, dir, all, nil)
}
